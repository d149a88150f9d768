"""Factors: parameters that multiply arrays. Pure.

A factor is a number in the message, or an array of one element, which is read when the request runs: so a number that
a step of a program has computed is a factor of a later one without being known to the host. An array counts as not 0
where a factor of 0 would leave something unread. A library that reads its factors in host memory only declares them
as `Scalar`, and takes no arrays for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from atomr_mp.protocol.declaration.arguments import ARGUMENT, Argument, arrays_of
from atomr_mp.protocol.refs import Operand

Scalar = int | float | tuple[float, float]
"""A number: a real or (real part, imaginary part), since msgpack has no complex numbers."""

PAIR: Final = 2
REALS: Final = frozenset({int, float})

WIDE: Final = {
    "float16": "float32",
    "bfloat16": "float32",
    "float8_e4m3fn": "float32",
    "float8_e5m2": "float32",
    "int8": "int32",
}
"""Element types that are not computed in their own type, and the type that they are computed in."""

REAL_OF: Final = {"complex64": "float32", "complex128": "float64"}


def compute_type(request: Any) -> str:
    """Return the type that a request computes in, which is that of its factors."""
    dtype = next(operand.dtype for _, _, operand in arrays_of(request) if operand is not None)
    return WIDE.get(dtype, dtype)


def real_compute_type(request: Any) -> str:
    """Return the type of the real numbers that a request computes with."""
    dtype = compute_type(request)
    return REAL_OF.get(dtype, dtype)


class FactorType(type):
    """Type of `Factor` and `RealFactor`: msgspec asks them whether a value is a factor."""

    numbers: frozenset[type]
    """Types of numbers."""

    def has(cls, value: object) -> bool:
        """Return whether a value is a factor."""
        return type(value) in cls.numbers or isinstance(value, Operand)

    __instancecheck__ = has


if TYPE_CHECKING:
    Factor = Scalar | Operand
    """Type of a field with a factor of the type that the request computes in."""
    RealFactor = int | float | Operand
    """Type of a field with a real factor, of complex arrays too."""
else:

    class Factor(metaclass=FactorType):
        """Type of a field with a factor of the type that the request computes in."""

        numbers = frozenset({*REALS, tuple})

    class RealFactor(metaclass=FactorType):
        """Type of a field with a real factor, of complex arrays too."""

        numbers = REALS

    setattr(Factor, ARGUMENT, Argument("*_", writes=False, reads=True, dtype=compute_type))
    setattr(RealFactor, ARGUMENT, Argument("*_", writes=False, reads=True, dtype=real_compute_type))


def decoded(kind: type, value: Any) -> Any:
    """Return the value of a field of a factor's type, for msgspec, which has lists where a factor is a pair.

    Raises:
        ValueError: It is no factor.
    """
    if not isinstance(kind, FactorType):
        return value
    takes_pairs = tuple in kind.numbers
    if isinstance(value, list | tuple):
        parts = [float(part) for part in value if type(part) in REALS]
        if takes_pairs and len(parts) == len(value) == PAIR:
            return tuple(parts)
    elif kind.has(value):
        return value
    raise ValueError(f"it must be a {'' if takes_pairs else 'real '}number, or a ref to an array with one element")
