"""What LAPACK's `info` says of the data, as the caller is told it. Pure."""

from __future__ import annotations

from atomr_mp import errors


def singular(info: int, batch: int = -1, undefined: str = "") -> errors.NumericalError:
    """Return the error of a pivot that is 0."""
    row = info - 1
    return _of("is singular: its pivot in row {row} is 0", batch, row, undefined)


def indefinite(info: int, batch: int = -1, undefined: str = "") -> errors.NumericalError:
    """Return the error of a matrix that has no Cholesky factor."""
    row = info - 1
    return _of("is not positive definite: its leading minor that ends in row {row} is not", batch, row, undefined)


def outside(place: int, batch: int = -1, undefined: str = "b") -> errors.NumericalError:
    """Return the error of a pivot that is no row."""
    return _of("has pivots of which number {row} is no row of it", batch, place, undefined)


def _of(words: str, batch: int, row: int, undefined: str) -> errors.NumericalError:
    matrix = "the matrix" if batch < 0 else f"matrix {batch}"
    return errors.NumericalError(f"{matrix} {words.format(row=row)}", batch=batch, row=row, undefined=undefined)
