"""Errors for callers from LAPACK's `info` about the data. Pure."""

from __future__ import annotations

from typing import Final

from atomr_mp import errors

NOT_FINITE: Final = 2**30
"""Stands in for an info: a NaN or an infinity was found beforehand."""


def singular(info: int, batch: int = -1, undefined: str = "") -> errors.NumericalError:
    """Return the error of a pivot that is 0."""
    row = info - 1
    return _of("is singular: its pivot in row {row} is 0", batch, row, undefined)


def indefinite(info: int, batch: int = -1, undefined: str = "") -> errors.NumericalError:
    """Return the error of a matrix that has no Cholesky factor."""
    row = info - 1
    return _of("is not positive definite: its leading minor that ends in row {row} is not", batch, row, undefined)


def outside(place: int, batch: int = -1, undefined: str = "b") -> errors.NumericalError:
    """Return the error of a pivot that is not a row."""
    return _of("has a pivot number {row} that is no row of it", batch, place, undefined)


def dependent(place: int) -> errors.NumericalError:
    """Return the error of a least-squares problem without full rank."""
    return _of("has no full rank: its column, or row if it is wide, {row} depends on those before it", -1, place, "")


def without_values(info: int, batch: int = -1) -> errors.NumericalError:
    """Return the error of a matrix whose singular values or eigenvalues are not found."""
    words = "has an element that is a NaN or an infinity" if info == NOT_FINITE else "has values that are not found"
    return _of(words, batch, -1, "")


def unsolved() -> errors.NumericalError:
    """Return the error of a sparse system."""
    return _of("is singular, or so nearly that x is wrong; or it is not positive definite", -1, -1, "x")


def without_pairs(info: int, n: int) -> errors.NumericalError:
    """Return the error of a generalised problem of n equations; an info above n means that b is wrong."""
    if info == NOT_FINITE or info <= n:
        return without_values(info)
    return _of("b is not positive definite: its leading minor that ends in row {row} is not", -1, info - n - 1, "")


def _of(words: str, batch: int, row: int, undefined: str) -> errors.NumericalError:
    matrix = "the matrix" if batch < 0 else f"matrix {batch}"
    return errors.NumericalError(f"{matrix} {words.format(row=row)}", batch=batch, row=row, undefined=undefined)
