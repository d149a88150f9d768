"""Compares what the steps of programs have surely written with masks of NumPy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.coverage import Coverage

SHAPE: Final = (4, 6)
WHOLE: Final = Layout.contiguous("float32", SHAPE)
slices = st.tuples(*[st.slices(n) for n in SHAPE])


def array_of(index: Any) -> Any:
    """Return a view of an array."""
    return SimpleNamespace(memory="m", layout=WHOLE.indexed(index))


@given(written=st.lists(st.tuples(slices, st.sampled_from(["", "", "L"])), max_size=6), read=slices)
def test_what_is_surely_written_was_and_what_surely_was_not_is_not(written: list[tuple[Any, str]], read: Any) -> None:
    """Whatever views of an array were written, as a whole or in a triangle; one that was written as it is counts."""
    coverage, surely, maybe = Coverage(), np.zeros(SHAPE, bool), np.zeros(SHAPE, bool)
    for index, triangle in written:
        request = SimpleNamespace(written=lambda: [array_of(index)], triangle_of=lambda _: triangle)  # noqa: B023
        coverage.add(request)  # type: ignore[arg-type]
        maybe[index] = True
        if not triangle:
            surely[index] = True
    array = array_of(read)
    if coverage.has_all(array):
        assert surely[read].all()
    if not coverage.has_some(array):
        assert not maybe[read].any()
    if any(index == read and not triangle for index, triangle in written):
        assert coverage.has_all(array)
