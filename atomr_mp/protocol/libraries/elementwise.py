"""Arithmetic, element by element, with NumPy's names and broadcasting. Pure.

The arrays of a request have the same element type: nothing is promoted, so `cast` first. Shapes are broadcast as NumPy
does; an array without dimensions stands for a number. Half precision is computed in float32, and rounded once; integers
wrap around. An output may be an input itself, element for element.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import Sizes, reads, writes
from atomr_mp.protocol.libraries.base import COMPLEX, HALF, REAL, LibraryRequest
from atomr_mp.protocol.refs import Operand

SIGNED_INTEGERS = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED_INTEGERS, "uint8", "uint16", "uint32", "uint64")
ORDERED = (*INTEGERS, *HALF, *REAL)
NUMERIC = (*ORDERED, *COMPLEX)
SIGNED = (*SIGNED_INTEGERS, *HALF, *REAL, *COMPLEX)
INEXACT = (*HALF, *REAL, *COMPLEX)
ANY = ("bool", *NUMERIC)

Dtype = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128",
]  # fmt: skip
"""An element type that numbers can be cast to."""


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that arrays have when they are broadcast, as NumPy defines it.

    Raises:
        InvalidRequest: They cannot be.
    """
    ndim = max(map(len, shapes))
    found = [1] * ndim
    for shape in shapes:
        for axis, n in enumerate(shape, ndim - len(shape)):
            if n != 1 and found[axis] not in {1, n}:
                raise errors.InvalidRequest(f"shapes {' and '.join(map(str, shapes))} cannot be broadcast together")
            found[axis] = n if n != 1 else found[axis]
    return tuple(found)


def _of_both(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The shape of x and y, broadcast."""
    return broadcast(request.x.shape, request.y.shape)


def _of_three(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The shape of condition, x and y, broadcast."""
    return broadcast(request.condition.shape, request.x.shape, request.y.shape)


def _is_truth(_request: Any) -> str:
    return "bool"


def _magnitude(request: Any) -> str:
    dtype: str = request.x.dtype
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def _is_wanted(request: Any) -> str:
    dtype: str = request.dtype
    return dtype


class _OfTwo(LibraryRequest, frozen=True):
    """Base of requests on two arrays, with a result of the same type."""

    work: ClassVar = "out"
    x: Annotated[Operand, reads("*_")]
    y: Annotated[Operand, reads("*_")]
    out: Annotated[Operand | None, writes(_of_both, alias=("x", "y"))] = None


class _Comparison(LibraryRequest, frozen=True):
    """Base of requests on two arrays, with truth values for a result."""

    work: ClassVar = "out"
    x: Annotated[Operand, reads("*_")]
    y: Annotated[Operand, reads("*_")]
    out: Annotated[Operand | None, writes(_of_both, dtype=_is_truth)] = None


class _OfOne(LibraryRequest, frozen=True):
    """Base of requests on one array, with a result of the same type."""

    work: ClassVar = "dims"
    x: Annotated[Operand, reads("*dims")]
    out: Annotated[Operand | None, writes("*dims", alias=("x",))] = None


class Add(_OfTwo, frozen=True):
    """Compute x + y."""

    name: ClassVar = "add"
    types: ClassVar = {"T": NUMERIC}


class Subtract(_OfTwo, frozen=True):
    """Compute x - y."""

    name: ClassVar = "subtract"
    types: ClassVar = {"T": NUMERIC}


class Multiply(_OfTwo, frozen=True):
    """Compute x·y."""

    name: ClassVar = "multiply"
    types: ClassVar = {"T": NUMERIC}


class Divide(_OfTwo, frozen=True):
    """Compute x / y."""

    name: ClassVar = "divide"
    types: ClassVar = {"T": INEXACT}


class Minimum(_OfTwo, frozen=True):
    """Compute the smaller of x and y; a NaN if either is one."""

    name: ClassVar = "minimum"
    types: ClassVar = {"T": ORDERED}


class Maximum(_OfTwo, frozen=True):
    """Compute the larger of x and y; a NaN if either is one."""

    name: ClassVar = "maximum"
    types: ClassVar = {"T": ORDERED}


class Equal(_Comparison, frozen=True):
    """Compute x == y."""

    name: ClassVar = "equal"
    types: ClassVar = {"T": NUMERIC}


class NotEqual(_Comparison, frozen=True):
    """Compute x != y."""

    name: ClassVar = "not_equal"
    types: ClassVar = {"T": NUMERIC}


class Less(_Comparison, frozen=True):
    """Compute x < y."""

    name: ClassVar = "less"
    types: ClassVar = {"T": ORDERED}


class LessEqual(_Comparison, frozen=True):
    """Compute x <= y."""

    name: ClassVar = "less_equal"
    types: ClassVar = {"T": ORDERED}


class Greater(_Comparison, frozen=True):
    """Compute x > y."""

    name: ClassVar = "greater"
    types: ClassVar = {"T": ORDERED}


class GreaterEqual(_Comparison, frozen=True):
    """Compute x >= y."""

    name: ClassVar = "greater_equal"
    types: ClassVar = {"T": ORDERED}


class Negative(_OfOne, frozen=True):
    """Compute -x."""

    name: ClassVar = "negative"
    types: ClassVar = {"T": SIGNED}


class Sqrt(_OfOne, frozen=True):
    """Compute the square root of x; a NaN for a negative number."""

    name: ClassVar = "sqrt"
    types: ClassVar = {"T": INEXACT}


class Absolute(LibraryRequest, frozen=True):
    """Compute |x|, a real number for a complex one."""

    name: ClassVar = "absolute"
    types: ClassVar = {"T": SIGNED}
    x: Annotated[Operand, reads("*dims")]
    out: Annotated[Operand | None, writes("*dims", dtype=_magnitude, alias=("x",))] = None


class Where(LibraryRequest, frozen=True):
    """Take elements of x where condition is true, else of y."""

    name: ClassVar = "where"
    types: ClassVar = {"C": ("bool",), "T": ANY}
    condition: Annotated[Operand, reads("*_", dtype="C")]
    x: Annotated[Operand, reads("*_")]
    y: Annotated[Operand, reads("*_")]
    out: Annotated[Operand | None, writes(_of_three, alias=("x", "y"))] = None


class Cast(LibraryRequest, frozen=True):
    """Convert elements to another type, as NumPy's `astype` does; of complex numbers the real part, but for bool."""

    name: ClassVar = "cast"
    types: ClassVar = {"T": ANY}
    x: Annotated[Operand, reads("*dims")]
    dtype: Dtype
    """The element type of the result."""
    out: Annotated[Operand | None, writes("*dims", dtype=_is_wanted)] = None


class ElementCopy(_OfOne, frozen=True):
    """Copy elements; strides may differ."""

    name: ClassVar = "copy"
    types: ClassVar = {"T": ANY}
    work: ClassVar = "0"
