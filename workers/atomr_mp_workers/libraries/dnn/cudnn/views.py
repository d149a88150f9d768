"""Arrays without gaps as cuDNN's classic calls see them: images, and other arrays as if they were images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from atomr_mp.protocol.layout import Layout
from atomr_mp_workers.libraries.base import alignment

ALIGNED_BYTES: Final = 16
"""Arrays begin at multiples of this: kernels read so much at a time."""


class View(NamedTuple):
    """An array as cuDNN sees it; lengths and strides are elements."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def packed(cls, *dims: int) -> View:
        """Return that of a row-major array."""
        return cls(dims, tuple(math.prod(dims[at + 1 :]) for at in range(len(dims))))

    @classmethod
    def image(cls, *dims: int, last: bool) -> View:
        """Return that of an image that is row-major, or has its channels last."""
        if not last:
            return cls.packed(*dims)
        n, c, *space = dims
        steps = cls.packed(n, *space, c).strides
        return cls((n, c, *space), (steps[0], steps[-1], *steps[1:-1]))


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


def _is_last(layout: Layout) -> bool:
    """Return whether the channels of an image come last."""
    axes = [0, *range(2, len(layout.shape)), 1]
    return _lies(layout, [axis for axis in axes if layout.shape[axis] > 1])


def are_last(layouts: Iterable[Layout]) -> bool | None:
    """Return False if some images are all row-major, True if all have their channels last, else None.

    None, too, if one begins where cuDNN may not read it.
    """
    found = list(layouts)
    if any(alignment(each) < ALIGNED_BYTES for each in found):
        return None
    if all(each.is_contiguous() for each in found):
        return False
    return True if all(_is_last(each) for each in found) else None


def flat(layout: Layout) -> tuple[int, ...]:
    """Return the lengths of an image with all of its space in one dimension."""
    n, c, *space = layout.shape
    return n, c, 1, math.prod(space)
