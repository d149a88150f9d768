"""The parts of arrays that the steps of a program have written so far. Pure.

It is sure of what lies in spans that were written without gaps, and of views that were written as they are. Of views
with gaps that make up a whole together it is not: they count as written in part.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.refs import Operand

Span = tuple[int, int]


class Coverage:
    """The parts of arrays that were written, by the name of their memory."""

    def __init__(self) -> None:
        self._views: Final[set[tuple[Hashable, Layout]]] = set()
        """Views whose elements were all written."""
        self._whole: Final[dict[Hashable, list[Span]]] = {}
        """Spans whose bytes were all written, joined."""
        self._touched: Final[dict[Hashable, list[Span]]] = {}
        """Spans in which something was written."""

    def add(self, request: LibraryRequest) -> None:
        """Note what a step writes."""
        for array in request.written():
            memory, layout = array.memory, array.layout
            _join(self._touched.setdefault(memory, []), layout.span)
            if request.triangle_of(array) == "":
                self._views.add((memory, layout))
                if is_dense(layout):
                    _join(self._whole.setdefault(memory, []), layout.span)

    def has_all(self, array: Operand) -> bool:
        """Return whether all elements of an array were surely written."""
        low, high = array.layout.span
        return (
            low == high
            or (array.memory, array.layout) in self._views
            or any(begin <= low and high <= end for begin, end in self._whole.get(array.memory, ()))
        )

    def has_some(self, array: Operand) -> bool:
        """Return whether some elements of an array may have been written."""
        low, high = array.layout.span
        return low == high or any(begin < high and low < end for begin, end in self._touched.get(array.memory, ()))

    def unwritten(self, request: LibraryRequest) -> list[Any]:
        """Return the arrays that a step reads and that were not surely written as a whole."""
        return [array for array in request.read() if not self.has_all(array)]


def is_dense(layout: Layout) -> bool:
    """Return whether elements lie without gaps, in any order of the dimensions."""
    expected = layout.item_bytes
    for stride, n in sorted((abs(stride), n) for n, stride in zip(layout.shape, layout.strides, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= n
    return True


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
