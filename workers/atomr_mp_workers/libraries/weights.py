"""How much a request is to do, and how large its arrays may seem.

A ref of a few bytes can stand for any number of elements, all in the same place, and a Python loop can go over
dimensions of arrays without elements.
"""

from __future__ import annotations

import math
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import LibraryRequest

FLOPS_A_BYTE: Final = 16
"""Arithmetic operations that count as much as touching a byte."""

UNKNOWN: Final = 2**62
"""The weight of a request that may take long: more than of any that is done at once."""


def weight(request: LibraryRequest) -> int:
    """Return how much a request is to do, as the bytes that take as long to touch."""
    if request.loops:
        return UNKNOWN
    touched = sum(_extent(each.layout) for _, _, each in request.arrays() if each is not None)
    return touched + max(0, request.flops()) // FLOPS_A_BYTE


def check_extents(request: LibraryRequest, most_bytes: int) -> None:
    """Check that no array that a request is given has more elements than memory has room for.

    Such an array repeats its elements; what is computed from it might take as much memory as it seems to have.

    Raises:
        OutOfMemory: One has.
    """
    for field, _, operand in request.arrays():
        if operand is None or (nbytes := operand.layout.nbytes) <= most_bytes:
            continue
        low, high = operand.layout.span
        if nbytes > high - low:
            raise errors.OutOfMemory(
                f"{field} repeats its elements: its shape {operand.layout.shape} would be {nbytes} bytes, and a device "
                f"has {most_bytes} (memory_bytes)",
                maybe_executed=False,
                requested_bytes=nbytes,
            )


def _extent(layout: Layout) -> int:
    """Return the bytes of all elements as if no dimension were empty."""
    return layout.item_bytes * math.prod([max(n, 1) for n in layout.shape])
