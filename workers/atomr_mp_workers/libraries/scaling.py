"""Multiplication by alpha and beta as BLAS defines it, and the type that it is computed in. Pure.

A factor of 1 leaves an array as it is, and what a factor of 0 multiplies is neither read nor added. NumPy multiplies
complex numbers by 1 + 0j, which makes a NaN of the finite part of an infinite number; and -0 + 0 is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def multiply(values: Any, factor: Any) -> None:
    """Multiply an array of either backend in place, half precision in float32."""
    values[...] = (widened(values) * factor).astype(values.dtype, copy=False)


def widened(values: Any) -> Any:
    """Return an array in the type that is computed in: half precision as float32."""
    return values.astype("float32") if values.itemsize == 2 else values


def times(factor: complex, values: Any) -> Any:
    """Return a factor times an array: the array itself for 1."""
    return values if factor == 1 else factor * values


def weighted_sum(*terms: tuple[complex, Callable[[], Any]]) -> Any:
    """Return the sum of factors times arrays, 0 if all factors are 0.

    Args:
        terms: Factors, each with a function that returns its array; it is not called for a factor of 0.
    """
    total: Any = None
    for factor, values in terms:
        if factor:
            term = times(factor, values())
            total = term if total is None else total + term
    return 0 if total is None else total
