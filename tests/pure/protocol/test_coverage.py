"""Compares what the steps of programs have surely written with masks of NumPy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.coverage import Coverage, first_reads

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


def viewed(slot: int, memory: int, index: Any) -> Any:
    """Return a view that is a slot, or lies in one."""
    return SimpleNamespace(memory=memory, layout=WHOLE.indexed(index), slot=slot, index=index)


@st.composite
def recorded(draw: st.DrawFn) -> list[Any]:
    """Draw steps that read and write four slots: two views of one memory, one of another, and a temporary."""
    views = {slot: draw(slices) for slot in range(4)}
    memories = [0, 0, 1, 2]

    def step(_: None) -> st.SearchStrategy[Any]:
        view = st.sampled_from([viewed(slot, memories[slot], index) for slot, index in views.items()])
        return st.builds(
            lambda read, written, triangle: SimpleNamespace(
                read=lambda: read, written=lambda: [written], triangle_of=lambda _: triangle
            ),
            st.lists(view, max_size=2),
            view,
            st.sampled_from(["", "", "L", None]),
        )

    return draw(st.lists(st.none().flatmap(step), max_size=6))


@given(steps=recorded())
def test_what_is_settled_when_a_slot_is_read_was_written_before(steps: list[Any]) -> None:
    """All of it that any step writes; and a slot that is never read too early is not named."""
    found = first_reads(steps, lambda view: view.slot if view.slot < 3 else None)
    elements = np.arange(WHOLE.size).reshape(SHAPE)
    written: dict[int, set[int]] = {memory: set() for memory in range(3)}
    triangles: set[tuple[int, str]] = set()
    seen: set[int] = set()
    for number, step in enumerate(steps):
        for view in step.read():
            needed = set(elements[view.index].flat) - written[view.memory]
            if view.slot == 3 or view.slot in seen:
                continue
            assert view.slot in found or not needed
            if view.slot not in found or not _is_first(steps, number, view):
                continue
            seen.add(view.slot)
            for slot in found[view.slot]:
                for other in steps:
                    target, triangle = other.written()[0], other.triangle_of(None)
                    if target.slot == slot:
                        assert target.memory == view.memory
                        assert (slot, triangle) in triangles or set(elements[target.index].flat) <= written[view.memory]
        target, triangle = step.written()[0], step.triangle_of(None)
        if triangle == "":
            written[target.memory] |= set(elements[target.index].flat)
        elif triangle is not None:
            triangles.add((target.slot, triangle))


def _is_first(steps: list[Any], number: int, view: Any) -> bool:
    """Return whether a step is the first at which a slot is not surely written as a whole."""
    coverage = Coverage()
    for step in steps[:number]:
        coverage.add(step)
    return not coverage.has_all(view)
