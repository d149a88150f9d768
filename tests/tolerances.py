"""How far a result may be from its reference, for every element type, in one place."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

EPSILONS: Final = {
    "float8_e5m2": 2.0**-2,
    "float8_e4m3fn": 2.0**-3,
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
    "float32": 2.0**-23,
    "complex64": 2.0**-23,
    "float64": 2.0**-52,
    "complex128": 2.0**-52,
}
"""From 1 to the next number; of a complex type, of its parts."""

_SMALLEST: Final = {"float8_e5m2": 2.0**-16, "float8_e4m3fn": 2.0**-9, "float16": 2.0**-24}
"""The least number above 0, where it is not far below what is computed with."""

_LARGEST: Final = {"float16": 65504.0}
"""The greatest number, where results may be beyond it: those are infinite."""

_ROUNDINGS: Final = 4
"""Roundings per term that are allowed for: those of a complex product, and as many in reserve."""


class Tolerance(NamedTuple):
    """As `numpy.isclose` has them."""

    rtol: float
    atol: float


def tolerance(dtype: str, length: int = 1, magnitude: float = 1.0) -> Tolerance:
    """Return how far a sum may be from its exact value.

    Half-precision types are computed in float32 and rounded once at the end.

    Args:
        dtype: Name of the element type.
        length: Number of terms that are added up.
        magnitude: Of the largest term; cancellation leaves errors of its size, however small the sum.
    """
    stored = EPSILONS[dtype]
    computed = min(stored, EPSILONS["float32"])
    atol = _ROUNDINGS * computed * max(1, length) * magnitude + _SMALLEST.get(dtype, 0)
    return Tolerance(rtol=_ROUNDINGS * stored, atol=atol)


def assert_close(
    actual: npt.ArrayLike,
    expected: npt.ArrayLike,
    dtype: str,
    length: int = 1,
    magnitude: float = 1.0,
    rounded: npt.ArrayLike = 0.0,
) -> None:
    """Check that a result is within its tolerance, integers exactly; NaNs belong in the same places.

    Args:
        actual: The result.
        expected: The exact values.
        dtype: Name of the element type.
        length: As `tolerance` has it.
        magnitude: As `tolerance` has it.
        rounded: What is rounded to the element type on the way; it may cancel in the end.
    """
    if dtype not in EPSILONS:
        np.testing.assert_array_equal(actual, np.asarray(expected).astype(dtype))
        return
    rtol, atol = tolerance(dtype, length, magnitude)
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    found, exact = np.asarray(actual).astype(wide), np.asarray(expected).astype(wide)
    if dtype in _LARGEST:
        beyond = (np.abs(exact) > _LARGEST[dtype]) & (found == np.copysign(np.inf, exact))
        found = np.where(beyond, exact, found)
    if np.any(rounded):
        near = np.abs(found - exact) <= atol + rtol * np.abs(exact) + EPSILONS[dtype] * np.abs(rounded)
        found = np.where(near, exact, found)
    np.testing.assert_allclose(found, exact, rtol=rtol, atol=atol)
