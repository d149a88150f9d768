"""The places of a transform's elements in cuFFT's terms: embedded lengths, a stride and a distance. Pure.

Element (b, i, j, k) of a transform of three dimensions lies at b·distance + ((i·embed[1] + j)·embed[2] + k)·stride
(cuFFT, "Advanced Data Layout"). Elements in other places are copied.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from atomr_mp.protocol.layout import Layout


class Embedding(NamedTuple):
    """The places of elements; counted in elements."""

    embed: tuple[int, ...]
    stride: int
    distance: int


class TransformLayout(NamedTuple):
    """A transform in the form of cuFFT."""

    axes: tuple[int, ...]
    """The dimensions in cuFFT's order."""
    source: Embedding | None
    """None if the array has to be copied first."""
    target: Embedding | None
    """None if the result has to be copied."""


def placed(source: Layout, target: Layout, axes: Sequence[int], *, halved: bool) -> TransformLayout:
    """Return the order of the axes that needs the fewest copies.

    Args:
        source: Layout of the array to transform.
        target: Layout of the result.
        axes: The dimensions.
        halved: Whether the last axis is half of a spectrum on one side, so that it stays the last.
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
    """Return the places of the elements; None if cuFFT has no terms for them."""
    item = layout.item_bytes
    batch = [axis for axis in range(len(layout.shape)) if axis not in axes and layout.shape[axis] != 1]
    distance = _collapsed(layout, batch)
    embed: list[int] = []
    stride = step = 0
    for axis in reversed(axes):
        n, bytes_apart = layout.shape[axis], layout.strides[axis]
        if n == 1:  # its stride does not matter: it is told as if packed around the inner dimensions
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
    whole = stride * math.prod(embed)  # cuFFT refuses a distance of 0 even for a single transform
    return Embedding(tuple(reversed(embed)), stride, distance // item or whole)


def _collapsed(layout: Layout, batch: Sequence[int]) -> int | None:
    """Return the stride in bytes of some dimensions that lie as one; None if they do not, or it is not positive."""
    distance, reach = 0, None
    for axis in reversed(batch):
        n, stride = layout.shape[axis], layout.strides[axis]
        if stride <= 0 or (reach is not None and stride != reach):
            return None
        distance, reach = distance or stride, stride * n
    return distance
