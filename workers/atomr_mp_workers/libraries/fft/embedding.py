"""How cuFFT is told where the elements of a transform lie: embedded lengths, a stride and a distance. Pure.

Element (b, i, j, k) of a transform of three dimensions lies at b·distance + ((i·embed[1] + j)·embed[2] + k)·stride
(cuFFT, "Advanced Data Layout"). What does not lie so is copied to where it does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from atomr_mp.protocol.layout import Layout


class Embedding(NamedTuple):
    """Where the elements lie; counted in elements."""

    embed: tuple[int, ...]
    stride: int
    distance: int


class TransformLayout(NamedTuple):
    """A transform as cuFFT is asked for it."""

    axes: tuple[int, ...]
    """The dimensions in the order in which they are told."""
    source: Embedding | None
    """None if it has to be copied first."""
    target: Embedding | None
    """None if the result has to be copied."""


def placed(source: Layout, target: Layout, axes: Sequence[int], *, halved: bool) -> TransformLayout:
    """Return in which order the axes are told so that as little as possible is copied.

    Args:
        source: Of the array that is transformed.
        target: Of the result.
        axes: The dimensions.
        halved: The last of the axes is half of a spectrum on one side, so it stays the last.
    """
    ndim = len(source.shape)
    whole = [axis % ndim for axis in axes]
    orders = itertools.permutations(whole[:-1] if halved else whole)
    found = []
    for order in orders:
        told = (*order, whole[-1]) if halved else order
        found.append(TransformLayout(told, embedding(source, told), embedding(target, told)))
    return min(found, key=lambda each: (each.source is None) + (each.target is None))


def embedding(layout: Layout, axes: Sequence[int]) -> Embedding | None:
    """Return where the elements lie; None if cuFFT cannot be told so."""
    item = layout.item_bytes
    batch = [axis for axis in range(len(layout.shape)) if axis not in axes and layout.shape[axis] != 1]
    distance = _collapsed(layout, batch)
    embed: list[int] = []
    stride = step = 0
    for axis in reversed(axes):
        n, bytes_apart = layout.shape[axis], layout.strides[axis]
        if n == 1:  # its stride does not count: it is told as if it were close around what is within
            bytes_apart = step * embed[-1] if embed else item
        if bytes_apart <= 0:
            return None
        if not step:
            stride = bytes_apart // item
        elif bytes_apart % step or bytes_apart // step < embed[-1]:
            return None
        else:
            embed[-1] = bytes_apart // step
        step = bytes_apart
        embed.append(n)
    if distance is None:
        return None
    whole = stride * math.prod(embed)  # where there is one transform only, cuFFT refuses a distance of 0 all the same
    return Embedding(tuple(reversed(embed)), stride, distance // item or whole)


def _collapsed(layout: Layout, batch: Sequence[int]) -> int | None:
    """Return the stride of some dimensions, in bytes, if they lie as one; None if not, or if it is not positive."""
    distance, reach = 0, None
    for axis in reversed(batch):
        n, stride = layout.shape[axis], layout.strides[axis]
        if stride <= 0 or (reach is not None and stride != reach):
            return None
        distance, reach = distance or stride, stride * n
    return distance
