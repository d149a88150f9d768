"""The parts of arrays that the steps of a program have written so far. Pure.

It is sure of what lies in spans that were written without gaps, and of views that were written as they are. Of views
with gaps that make up a whole together it is not: they count as written in part. What only one body of a block has
written counts as written in part behind it, since the body may not have been done; of a branch with two bodies one is
done, so what both have written is sure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.blocks import ConditionRead, Enter, Leave, LoopResult, Otherwise
from atomr_mp.protocol.refs import Operand

Span = tuple[int, int]

MOST_COMPARED: Final = 4096
"""Most writes that are looked at for the slots of a program that are settled."""


class _Sure(NamedTuple):
    """The parts of arrays that were surely written."""

    views: set[tuple[Hashable, Layout, str | None]]
    whole: dict[Hashable, list[Span]]


class Coverage:
    """The parts of arrays that were written, by the name of their memory."""

    def __init__(self) -> None:
        self._views: Final[set[tuple[Hashable, Layout, str | None]]] = set()
        """Views that were written, and which of their triangles was."""
        self._whole: Final[dict[Hashable, list[Span]]] = {}
        """Spans whose bytes were all written, joined."""
        self._touched: Final[dict[Hashable, list[Span]]] = {}
        """Spans in which something was written."""
        self._behind: Final[list[_Sure]] = []
        """For each open body the parts that are sure behind it if it is not done: of the second body of a branch, if
        the first one is."""
        self._left = _Sure(set(), {})
        """The parts that were sure at the end of the body that has ended last."""
        self.has_left = False
        """Whether a body has ended, so that less may be sure than before."""

    def enter(self) -> None:
        """Begin the body of a block. Its later rounds find at least what its first one finds."""
        self._behind.append(self._sure())

    def leave(self) -> None:
        """End the body that has begun last: it may not have been done."""
        self.has_left = True
        self._left = self._sure()
        other = self._behind.pop()
        self._views.intersection_update(other.views)
        whole = {memory: _common(spans, other.whole.get(memory, ())) for memory, spans in self._whole.items()}
        self._whole.clear()
        self._whole.update(whole)

    def enter_second(self) -> None:
        """Begin the second body of the branch whose first one has just ended."""
        self._behind.append(self._left)

    def _sure(self) -> _Sure:
        return _Sure(set(self._views), {memory: [*spans] for memory, spans in self._whole.items()})

    def add(self, request: LibraryRequest | ConditionRead | LoopResult) -> None:
        """Note what a step writes."""
        for array in request.written():
            memory, layout = array.memory, array.layout
            triangle = request.triangle_of(array)
            _join(self._touched.setdefault(memory, []), layout.span)
            self._views.add((memory, layout, triangle))
            if triangle == "" and is_dense(layout):
                _join(self._whole.setdefault(memory, []), layout.span)

    def has_all(self, array: Operand) -> bool:
        """Return whether all elements of an array were surely written."""
        low, high = array.layout.span
        return (
            low == high
            or (array.memory, array.layout, "") in self._views
            or any(begin <= low and high <= end for begin, end in self._whole.get(array.memory, ()))
        )

    def has_triangle(self, array: Operand, triangle: str | None) -> bool:
        """Return whether a triangle of an array was surely written, which may be "" for all of it."""
        known = triangle is not None and (array.memory, array.layout, triangle) in self._views
        return known or self.has_all(array)

    def has_some(self, array: Operand) -> bool:
        """Return whether some elements of an array may have been written."""
        low, high = array.layout.span
        return low == high or any(begin < high and low < end for begin, end in self._touched.get(array.memory, ()))

    def unwritten(self, request: LibraryRequest) -> list[Any]:
        """Return the arrays that a step reads and that were not surely written as a whole."""
        return [array for array in request.read() if not self.has_all(array)]


def first_reads(
    steps: Sequence[Any],
    slot_of: Callable[[Any], int | None],
    candidates: Mapping[int, Iterable[int]] | None = None,
) -> dict[int, list[int]]:
    """Return the slots that steps read before they have surely written all of it, each with those that are settled.

    A slot is settled if all that any step writes of it was surely written before that first read, and before each later
    one too: behind a block less is sure than in it.

    Args:
        steps: The steps of a program, in order; with `Enter`, `Otherwise` and `Leave` where bodies begin and end.
        slot_of: Returns the slot of an array, None if the array is a temporary's.
        candidates: The slots to look at, for each that is read; None for those in the same memory.
    """
    writes: dict[int, list[tuple[Any, str | None]]] = {}
    for step in steps:
        for array in () if isinstance(step, Enter | Otherwise | Leave) else step.written():
            if (slot := slot_of(array)) is not None:
                writes.setdefault(slot, []).append((array, step.triangle_of(array)))
    by_memory: dict[Hashable, list[int]] = {}
    for slot, arrays in writes.items():
        by_memory.setdefault(arrays[0][0].memory, []).append(slot)
    found: dict[int, list[int]] = {}
    written, left = Coverage(), MOST_COMPARED
    for _, unwritten in walked(steps, written):
        for array in unwritten:
            slot = slot_of(array)
            if slot is None or (slot in found and not (written.has_left and found[slot])):
                continue
            known = by_memory.get(array.memory, ()) if candidates is None else candidates.get(slot, ())
            others, settled = found.get(slot, known), list[int]()
            for other in others:
                arrays = writes.get(other, [])
                left -= len(arrays)
                if left >= 0 and all(written.has_triangle(*each) for each in arrays):
                    settled.append(other)
            found[slot] = settled
    return found


def walked(steps: Sequence[Any], written: Coverage) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each step, with the arrays that it reads and that were not surely written as a whole before.

    Args:
        steps: The steps of a program, in order; with `Enter`, `Otherwise` and `Leave` where bodies begin and end.
        written: Nothing yet; then what the steps before have written.
    """
    for step in steps:
        if isinstance(step, Enter):
            written.enter()
        elif isinstance(step, Otherwise):
            written.leave()
            written.enter_second()
        elif isinstance(step, Leave):
            written.leave()
        else:
            yield step, written.unwritten(step)
            written.add(step)


def is_dense(layout: Layout) -> bool:
    """Return whether elements lie without gaps, in any order of the dimensions."""
    expected = layout.item_bytes
    for stride, n in sorted((abs(stride), n) for n, stride in zip(layout.shape, layout.strides, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= n
    return True


def _common(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Return the bytes that lie in spans of both lists. Spans of one list neither overlap nor touch."""
    found, left, right = list[Span](), sorted(spans), sorted(others)
    while left and right:
        low, high = max(left[-1][0], right[-1][0]), min(left[-1][1], right[-1][1])
        if low < high:
            found.append((low, high))
        (left if left[-1][0] > right[-1][0] else right).pop()
    return found


def _join(spans: list[Span], new: Span) -> None:
    """Add a span, and join those that overlap or touch it."""
    low, high = new
    if low == high:
        return
    apart = [each for each in spans if each[1] < low or high < each[0]]
    for begin, end in spans:
        if end >= low and begin <= high:
            low, high = min(low, begin), max(high, end)
    spans[:] = [*apart, (low, high)]
