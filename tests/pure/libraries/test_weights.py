"""How much requests are to do, and how large arrays may seem that repeat their elements."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import blas, dnn, elementwise, tensor
from atomr_mp_workers.libraries.weights import UNKNOWN, check_extents, weight
from tests.cases.library_cases import CASES, Case
from tests.fakes.fake_arrays import FakeArray

INLINE: Final = 65536
"""Bytes that a host's request may touch on the loop, by default."""


def of(*shape: int, strides: tuple[int, ...] | None = None, dtype: str = "float64") -> Any:
    """Return an array, of no more memory than it touches."""
    layout = Layout.contiguous(dtype, shape)
    return FakeArray(layout if strides is None else layout._replace(strides=strides))


def test_what_takes_long_is_heavy_however_few_bytes_it_touches() -> None:
    """Elements in one place, empty dimensions of loops, and windows, steps and samples of the host's loops."""
    one = of(10**6, strides=(0,))
    for request in (
        elementwise.Negative(one, of(10**6, strides=(0,))),
        tensor.Reduction(of(10**6, strides=(0,)), "i", "", of()),
        blas.Gemm(of(10**4, 0), of(0, 10**4), of(10**4, 10**4, strides=(0, 0))),
        blas.Gemm(of(200, 200, strides=(0, 0)), of(200, 200, strides=(0, 0)), of(200, 200, strides=(0, 0))),
    ):
        assert weight(request) > INLINE, request
    assert weight(dnn.WindowPool(of(1, 1, 9), of(1, 1, 1), kernel_size=(9,))) == UNKNOWN
    assert weight(dnn.RnnForward(of(9, 0, 1), of(16), of(9, 0, 1), hidden_size=1)) == UNKNOWN


def test_small_requests_stay_light() -> None:
    """They are done at once, without a thread."""
    assert weight(elementwise.Negative(of(1000), of(1000))) < INLINE
    assert weight(blas.Gemm(of(32, 32), of(32, 32), of(32, 32))) < INLINE


@given(st.lists(st.tuples(st.integers(1, 10**6), st.booleans()), max_size=4), st.integers(0, 10**9))
def test_only_arrays_that_repeat_may_seem_too_large(dimensions: list[tuple[int, bool]], most: int) -> None:
    """An array whose elements have places of their own is memory that is there."""
    shape, step, strides = tuple(n for n, _ in dimensions), 8, list[int]()
    for n, repeats in dimensions:
        strides.append(0 if repeats else step)
        step *= 1 if repeats else n
    layout = Layout("float64", shape, tuple(strides), 0)
    operand = FakeArray.__new__(FakeArray)
    operand.layout = layout
    request = elementwise.Negative(operand, operand)
    repeated = any(repeats and n > 1 for n, repeats in dimensions)
    if layout.nbytes > most and repeated:
        with pytest.raises(errors.OutOfMemory, match="repeats its elements") as raised:
            check_extents(request, most)
        assert not raised.value.maybe_executed
    else:
        check_extents(request, most)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_request_has_a_weight(case: Case) -> None:
    """Of a number that is not negative, whatever its declaration, and as much as its arrays at least."""

    @settings(max_examples=10)
    @given(case.drawn())
    def check(request: Any) -> None:
        assert weight(request) >= max(
            [each.layout.nbytes for _, _, each in request.arrays() if each is not None] or [0]
        )

    check()
