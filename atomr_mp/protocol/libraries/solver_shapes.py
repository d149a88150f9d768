"""Shapes, element types and rules of the solvers' requests. Pure.

The docstrings of shapes and rules are what callers read: in the documentation, and in errors.
"""

from __future__ import annotations

import math
from typing import Any

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import Sizes

COUNTED = 2**31
"""LAPACK, and half of cuSOLVER, count in 32 bits."""

JACOBI = 32
"""Most rows and columns of what cuSOLVER's gesvdjBatched takes."""

PIVOTS = "int64"
REAL_OF = {"complex64": "float32", "complex128": "float64"}


def pivot_dtype(_request: Any) -> str:
    """Return the element type of pivots."""
    return PIVOTS


def real_dtype(request: Any) -> str:
    """Return the element type of the absolute values of a."""
    dtype: str = request.a.dtype
    return REAL_OF.get(dtype, dtype)


def is_counted(request: Any, sizes: Sizes) -> bool:
    """Lengths, and the number of matrices of a batch, must be below 2³¹: LAPACK counts in 32 bits."""
    lengths = [n for _, _, array in request.arrays() if array is not None for n in array.shape]
    return max(lengths, default=0) < COUNTED and math.prod(sizes.get("batch", ())) < COUNTED


def shorter(_request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(the shorter of m and n)."""
    return (min(sizes["m"], sizes["n"]),)


def shorter_batched(_request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(*batch, the shorter of m and n)."""
    return (*sizes["batch"], min(sizes["m"], sizes["n"]))


def is_tall(_request: Any, sizes: Sizes) -> bool:
    """The array a needs as many rows as columns, or more, and tau no more elements than a has columns."""
    return bool(sizes["m"] >= sizes["n"] >= sizes["k"])


def stands_beside_c(request: Any, sizes: Sizes) -> tuple[int, int]:
    """(m, k) where side is L, (n, k) where it is R."""
    return (sizes["m"] if request.side == "L" else sizes["n"]), sizes["k"]


def has_few_reflectors(request: Any, sizes: Sizes) -> bool:
    """There cannot be more reflectors than q has rows."""
    return bool(sizes["k"] <= stands_beside_c(request, sizes)[0])


def left_vectors(request: Any, sizes: Sizes) -> tuple[int, int]:
    """(m, m) where job is A, (m, the shorter of m and n) where it is S, (m, 0) where it is N."""
    m, n = sizes["m"], sizes["n"]
    return m, {"A": m, "S": min(m, n), "N": 0}[request.job]


def right_vectors(request: Any, sizes: Sizes) -> tuple[int, int]:
    """(n, n) where job is A, (the shorter of m and n, n) where it is S, (0, n) where it is N."""
    m, n = sizes["m"], sizes["n"]
    return {"A": n, "S": min(m, n), "N": 0}[request.job], n


def is_small(_request: Any, sizes: Sizes) -> bool:
    """The matrices can have up to 32 rows and columns; svd takes larger ones, one at a time."""
    return bool(max(sizes["m"], sizes["n"]) <= JACOBI)


def right_sides(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(rows of a), or (*batch, rows of a, any number)."""
    rows = sizes["m"] if "m" in sizes else sizes["n"]
    if request.b.ndim < 2:
        return (rows,)
    return (*sizes.get("batch", ()), rows, request.b.shape[-1])


def solutions(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """As b, but with the columns of a for rows."""
    if request.b.ndim < 2:
        return (sizes["n"],)
    return (*sizes.get("batch", ()), sizes["n"], request.b.shape[-1])


def is_one_system(request: Any, sizes: Sizes) -> bool:
    """For a batch of matrices, b must have as many dimensions as a: (*batch, n, 1) for a vector each."""
    return request.b.ndim > 1 or not sizes.get("batch", ())


def orthogonal(request: Any, sizes: Sizes) -> tuple[int, int]:
    """(m, m) where mode is full, (m, the shorter of m and n) where it is economic."""
    m, n = sizes["m"], sizes["n"]
    return m, m if request.mode == "full" else min(m, n)


def trapezoid(request: Any, sizes: Sizes) -> tuple[int, int]:
    """(m, n) where mode is full, (the shorter of m and n, n) where it is economic."""
    m, n = sizes["m"], sizes["n"]
    return m if request.mode == "full" else min(m, n), n


def left_of_all(request: Any, sizes: Sizes) -> tuple[int, int]:
    """(m, m), or (m, the shorter of m and n) without full_matrices."""
    m, n = sizes["m"], sizes["n"]
    return m, m if request.full_matrices else min(m, n)


def right_of_all(request: Any, sizes: Sizes) -> tuple[int, int]:
    """(n, n), or (the shorter of m and n, n) without full_matrices."""
    m, n = sizes["m"], sizes["n"]
    return n if request.full_matrices else min(m, n), n


def sparse_sides(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """(rows of a), or (rows of a, any number)."""
    rows: int = request.a.shape[0]
    return (rows,) if request.b.ndim < 2 else (rows, request.b.shape[-1])


def is_square(request: Any, _sizes: Sizes) -> bool:
    """A sparse matrix must be square, in csr with int32 indices: that is all that cuDSS takes."""
    a = request.a
    if request.method == "qr":
        raise errors.Unsupported(
            "solver.spsolve has no QR factors, for neither cuDSS nor SciPy has: take method='lu', or solver.qr"
        )
    if a.format != "csr" or a.index != "int32":
        raise errors.Unsupported("solver.spsolve takes a in csr with int32 indices: convert it with index='int32'")
    return bool(a.shape[0] == a.shape[1])
