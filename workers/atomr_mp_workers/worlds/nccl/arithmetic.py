"""How reductions are computed by NCCL: in which type, and what is done before and behind that. With CuPy.

NCCL adds whole numbers of 8, 32 and 64 bits, halves, floats and doubles. Other whole numbers are widened, and their low
bits are right. Complex numbers are added as pairs of real ones. Products of complex numbers are none of NCCL's: all
ranks get all elements, and multiply them. Halves are added in float32 where there are more than two, and rounded once;
the sum or product of two is the same either way. An average is the sum, divided here.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import cupy
import numpy as np

from atomr_mp_workers.worlds.exchange.operators import HALVES

_WIDER: Final = {"int16": "int32", "uint16": "uint32"}
_PARTS: Final = {"complex64": "float32", "complex128": "float64"}
_QUIET_NAN: Final = 0x7FC0
"""A NaN of bfloat16."""

_FUNCTIONS: Final = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}


class ReductionWay(NamedTuple):
    """How one reduction is computed."""

    wire: str
    """The type of the elements that NCCL gets, or that are gathered."""
    operator: str
    """"sum", "prod", "min" or "max"."""
    parts: int
    """How many numbers of that type an element has for NCCL."""
    divides: bool
    """Whether the sum is divided by the number of ranks."""
    gathers: bool
    """Whether all ranks get all elements, and each computes for itself."""


def way_of(operator: str, name: str, size: int, *, scaled: bool) -> ReductionWay:
    """Return how a reduction is computed.

    Args:
        operator: The operator.
        name: The element type's name.
        size: How many ranks there are.
        scaled: Whether elements are multiplied by a factor first.
    """
    divides = operator == "avg"
    operator = "sum" if divides else operator
    if name in _PARTS:
        gathers = operator == "prod"
        return ReductionWay(name if gathers else _PARTS[name], operator, 1 if gathers else 2, divides, gathers)
    exact = operator in {"min", "max"} or size == 2
    if name in HALVES and (scaled or divides or not exact):
        return ReductionWay("float32", operator, 1, divides, gathers=False)
    return ReductionWay(_WIDER.get(name, name), operator, 1, divides, gathers=False)


def to_wire(x: Any, name: str, way: ReductionWay, factor: Any) -> Any:
    """Return elements as they are sent: a vector of the type that NCCL gets; the same memory where nothing changes.

    Args:
        x: An array of CuPy's, row-major, on the current stream.
        name: Its element type.
        way: How it is reduced.
        factor: What elements are multiplied by first, as `factor_of` gives it; None for nothing.
    """
    flat = x.reshape(-1)
    if factor is not None and name not in HALVES:
        flat = flat * flat.dtype.type(factor)
    if way.parts == 2:
        return flat.view(way.wire)
    if way.wire == name:
        return flat
    wide = _from_brain(flat) if name == "bfloat16" else flat.astype(way.wire)
    return wide if factor is None or name not in HALVES else wide * np.float32(factor)


def from_wire(sums: Any, y: Any, name: str, way: ReductionWay, size: int) -> None:
    """Write reduced elements to a result, on the current stream; do nothing if they are there already.

    Args:
        sums: A vector of the type that NCCL gets.
        y: The result, row-major.
        name: Its element type.
        way: How it was reduced.
        size: How many ranks there are.
    """
    if way.divides:
        sums /= size
    flat = y.reshape(-1)
    if way.parts == 2:
        sums = sums.view(flat.dtype)
    if sums.data.ptr == flat.data.ptr:
        return
    if name == "bfloat16":
        flat.view(np.uint16)[...] = _to_brain(sums) if way.wire == "float32" else sums.view(np.uint16)
    else:
        flat[...] = sums.astype(flat.dtype)


def is_direct(name: str, way: ReductionWay) -> bool:
    """Return whether NCCL may write the result itself."""
    return not way.gathers and (way.wire == name or way.parts == 2)


def reduced(rows: Any, operator: str) -> Any:
    """Return rows reduced to one, in their order."""
    function = getattr(cupy, _FUNCTIONS[operator])
    total = rows[0]
    for each in rows[1:]:
        total = function(total, each)
    return total


def _from_brain(flat: Any) -> Any:
    """Return bfloat16 elements as float32."""
    return (flat.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _to_brain(floats: Any) -> Any:
    """Return the bits of float32 elements that are rounded to bfloat16, to even."""
    bits = floats.view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
    return cupy.where(cupy.isnan(floats), np.uint16(_QUIET_NAN), rounded)
