"""Arrays without gaps as cuDNN sees them: images, and other arrays as if they were images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from atomr_mp.protocol.layout import Layout
from atomr_mp_workers.libraries.base import alignment

ALIGNED_BYTES: Final = 16
"""Arrays begin at multiples of this: kernels read so much at a time."""

MOST_ELEMENTS: Final = 2**31 - 1
"""cuDNN's classic calls count with 32 bits; graphs of larger arrays have not been tried."""


class View(NamedTuple):
    """An array as cuDNN sees it; lengths and strides are elements."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, *dims: int, last: bool = False) -> View:
        """Return that of an array that is row-major, or has its channels last."""
        return cls(dims, tuple(packed(dims, last=last)))


def packed(dims: Sequence[int], *, last: bool = False) -> list[int]:
    """Return strides, in elements, of an array without gaps."""
    strides, step = [0] * len(dims), 1
    for axis in reversed(_order(len(dims), last=last)):
        strides[axis] = step
        step *= max(dims[axis], 1)
    return strides


def lies(layout: Layout, *, last: bool) -> bool:
    """Return whether an array is packed, row-major or with the channels last."""
    return _lies(layout, [axis for axis in _order(len(layout.shape), last=last) if layout.shape[axis] > 1])


def is_last(layout: Layout) -> bool:
    """Return whether an array has its channels last, and is not row-major as well."""
    return len(layout.shape) > 2 and lies(layout, last=True) and not lies(layout, last=False)


def _order(count: int, *, last: bool) -> Sequence[int]:
    """Return the dimensions of an array, slowest first."""
    return [0, *range(2, count), 1] if last and count > 2 else range(count)


def common_order(layouts: Iterable[Layout]) -> list[int] | None:
    """Return the dimensions of more than one element, slowest first, by which all arrays of a shape lie without gaps.

    None if there is no such order, or an array begins where cuDNN may not read it.
    """
    first, *_ = found = list(layouts)
    order = [axis for axis, n in enumerate(first.shape) if n > 1]
    order.sort(key=lambda axis: -first.strides[axis])
    return order if all(_lies(each, order) and alignment(each) >= ALIGNED_BYTES for each in found) else None


def _lies(layout: Layout, order: Sequence[int]) -> bool:
    step = layout.item_bytes
    for axis in reversed(order):
        if layout.strides[axis] != step:
            return False
        step *= layout.shape[axis]
    return True


def are_last(layouts: Iterable[Layout]) -> bool | None:
    """Return False if some images are all row-major, True if all have their channels last, else None.

    None, too, if one begins where cuDNN may not read it.
    """
    found = list(layouts)
    if any(alignment(each) < ALIGNED_BYTES for each in found):
        return None
    if all(each.is_contiguous() for each in found):
        return False
    return True if all(lies(each, last=True) for each in found) else None


def is_of_size(request: Any) -> bool:
    """Return whether all arrays have elements, and not too many."""
    return all(1 <= each.size <= MOST_ELEMENTS for _, _, each in request.arrays() if each is not None)


def flat(layout: Layout) -> tuple[int, ...]:
    """Return the lengths of an image with all of its space in one dimension."""
    n, c, *space = layout.shape
    return n, c, 1, math.prod(space)
