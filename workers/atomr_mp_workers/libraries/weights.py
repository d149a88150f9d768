"""How much a request is to do, and how large its arrays may seem.

A ref of a few bytes can stand for any number of elements, all in the same place, and a Python loop can go over
dimensions of arrays without elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import LibraryRequest

FLOPS_A_BYTE: Final = 16
"""Arithmetic operations that count as much as touching a byte."""

UNKNOWN: Final = 2**62
"""The weight of a request that may take long: more than of any that is done at once."""

TOLD: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("memory.empty", "memory.full", "memory.put", "memory.put_part", "memory.get", "memory.get_part"),
                *("memory.fill", "memory.copy", "memory.borrow", "memory.accept", "memory.share", "memory.claim"),
                *("memory.statistics", "blas.nrm2", "blas.dot", "blas.asum", "blas.iamax", "blas.iamin", "blas.copy"),
                *("blas.swap", "elementwise.absolute", "elementwise.where", "elementwise.cast", "elementwise.copy"),
                *("sparse.sparse_to_dense", "tensor.permutation", "dnn.rnn_pack"),
            ),
            0,
        ),
        **dict.fromkeys(
            (
                *("rng.bits", "rng.uniform", "rng.normal", "rng.lognormal", "rng.exponential", "rng.cauchy"),
                *("rng.gamma", "rng.beta", "rng.poisson", "rng.choice"),
            ),
            64,
        ),
    }
)
"""Requests that declare no operations, or answer with a value, and take as long as their arrays take to touch; each
with the bytes as which one more element of its output counts. Any other such request may take long."""


def weight(request: LibraryRequest) -> int:
    """Return how much a request is to do with the arrays that it is given, as the bytes that take as long to touch."""
    if request.loops:
        return UNKNOWN
    touched = sum(_extent(each.layout) for _, _, each in request.arrays() if each is not None)
    return touched + max(0, request.flops()) // FLOPS_A_BYTE


def unshown_weight(request: LibraryRequest, left_out: Mapping[str, Layout]) -> int:
    """Return how much a request is to do besides `weight`, with what no array that it is given shows.

    Args:
        request: A request that is not idle.
        left_out: The outputs that are made for it, see `LibraryRequest.results`.

    Returns:
        `UNKNOWN` if its declaration does not tell how long it takes.
    """
    kind: type[LibraryRequest] = type(request)
    if not is_told(kind):
        return UNKNOWN
    found = made_bytes(left_out)
    if all(operand is None for _, _, operand in request.arrays()):
        found += request.moved_bytes()  # what it carries, or fills
    each = TOLD.get(name_of(kind), 0)
    if each:
        written = [array.layout for array in request.written()]
        found += each * sum(layout.size for layout in (*written, *left_out.values()))
    return found


def made_bytes(left_out: Mapping[str, Layout]) -> int:
    """Return the size of all outputs that are made for a request."""
    return sum([layout.nbytes for layout in left_out.values()])


@functools.cache
def is_told(request: type[LibraryRequest]) -> bool:
    """Return whether the declaration of a request tells how long it takes."""
    if name_of(request) in TOLD:
        return True
    declares = request.flops is not LibraryRequest.flops or request.work != LibraryRequest.work
    return declares and not request.answers


def name_of(request: type[LibraryRequest]) -> str:
    """Return the library and the name of a request, "blas.gemm"."""
    return f"{request.__module__.rpartition('.')[2]}.{request.name}"


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
