"""Tells whether two arrays of one buffer share an element: exact for rows, columns and blocks of a matrix. Pure."""

from __future__ import annotations

from typing import NamedTuple

from atomr_mp.protocol.layout import Layout


class Comb(NamedTuple):
    """Bytes in runs of one length, one step apart."""

    low: int
    run: int
    """Length of a run."""
    times: int
    """How many runs."""
    step: int
    """Bytes from the start of one run to the start of the next; not less than a run."""

    @property
    def extent(self) -> int:
        """Bytes from the first to the end of the last."""
        return self.step * (self.times - 1) + self.run


def share_elements(one: Layout, other: Layout) -> bool:
    """Return whether arrays of the same buffer share a byte.

    The answer is exact where each is one run, or both are runs with the same step. Otherwise it is that of the spans:
    gaps count then.
    """
    if not one.overlaps(other):
        return False
    first, second = comb_of(one), comb_of(other)
    if first is None or second is None:
        return True
    return _meet(first, second)


def comb_of(layout: Layout) -> Comb | None:
    """Return an array's bytes as runs; None if they are none, or lie in no such way."""
    low, high = layout.span
    if low == high:
        return None
    run, times, step = layout.item_bytes, 1, 0
    for stride, n in sorted((abs(stride), n) for n, stride in zip(layout.shape, layout.strides, strict=True) if n > 1):
        if times == 1 and stride <= run:
            run += stride * (n - 1)
        elif times == 1:
            times, step = n, stride
        elif stride == step * times:
            times *= n
        else:
            return None
    return Comb(low, run, times, step) if times == 1 or step >= run else None


def _meet(one: Comb, other: Comb) -> bool:
    if one.times > 1 and other.times > 1 and one.step != other.step:
        return True  # the spans meet; this counts as an overlap
    step = one.step if one.times > 1 else other.step
    distance = other.low - one.low
    if not step:
        return -other.run < distance < one.run
    # Byte i of run j is i + step·j here and distance + i + step·j there, so they are the same where
    # distance + step·t is a difference of two i, and t of two j.
    first = max(1 - one.times, -((other.run - 1 + distance) // step))
    last = min(other.times - 1, (one.run - 1 - distance) // step)
    return first <= last
