"""Views of arrays: one set of methods for a client's refs and for the arrays of programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, SupportsIndex

from atomr_mp.protocol import amounts
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.layout import Index, Layout
from atomr_mp.protocol.refs import Operand

Whole = SupportsIndex | Sequence[SupportsIndex]
"""Whole numbers of Python's or NumPy's, one by one or in a sequence."""


@checks_names
class ArrayViews(Operand):
    """An array that has views: arrays of other shapes and strides in the same memory."""

    def of_layout(self, layout: Layout) -> Self:
        """Return an array in the same memory, with another layout in its slab."""
        raise NotImplementedError

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Self:
        return self.of_layout(self.layout.indexed(index))

    def reshape(self, *shape: Whole) -> Self:
        """Return a view of another shape on the same elements; one length may be -1.

        Raises:
            InvalidRequest: A length is no whole number.
            ValueError: Another number of elements, or it would need a copy.
        """
        return self.of_layout(self.layout.reshaped(_integers("shape", shape)))

    def transpose(self, *axes: Whole) -> Self:
        """Return a view with the dimensions in another order, by default reversed.

        Raises:
            InvalidRequest: An axis is no whole number.
            ValueError: `axes` does not name each dimension once.
        """
        return self.of_layout(self.layout.transposed(_integers("axes", axes) if axes else None))

    @property
    def T(self) -> Self:  # noqa: N802 - as in NumPy
        """The transpose."""
        return self.transpose()

    def as_strided(self, shape: Whole, strides: Whole, offset: SupportsIndex = 0) -> Self:
        """Return a view of any shape and strides on memory of this array.

        Args:
            shape: Lengths of its dimensions.
            strides: Bytes from one element to the next, by dimension; 0 repeats an element, and may only be read.
            offset: Bytes from this array's first element to that of the view.

        Raises:
            InvalidRequest: A number is no whole one, or strides do not belong to the shape or lie on no elements.
            GpuRefOutOfExtent: It would leave the memory between this array's first and last byte.
        """
        at = amounts.whole("offset", offset, -amounts.MOST)
        return self.of_layout(self.layout.strided(_integers("shape", (shape,)), _integers("strides", (strides,)), at))


def _integers(name: str, given: Sequence[Any]) -> list[int]:
    """Return integers of Python's that were given one by one, or in a sequence.

    Raises:
        InvalidRequest: One is no integer.
    """
    items = given[0] if len(given) == 1 and isinstance(given[0], Sequence) else given
    return [amounts.whole(f"{name}[{at}]", item, -amounts.MOST) for at, item in enumerate(items)]
