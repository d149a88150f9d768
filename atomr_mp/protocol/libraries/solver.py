"""Dense solvers and factorisations: LAPACK's names for what works in place, SciPy's for what keeps what it reads. Pure.

Requests with LAPACK's names (`getrf`, `potrs`) write their results over what they read. A matrix may lie in row or in
column order. cuSOLVER knows column order only: LU and QR factors, reflectors and eigenvectors in row order go through a
copy on the device; a Cholesky factor and what it solves never do. Pivots count from 0 and eigenvalues ascend.

Source of the rules: LAPACK's and cuSOLVER's documentation; SciPy's for what has its names.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from atomr_mp.protocol.declaration.arguments import Sizes, reads, updates, writes
from atomr_mp.protocol.declaration.strides import matrices, matrix, packed
from atomr_mp.protocol.libraries.base import FULL, LibraryRequest
from atomr_mp.protocol.refs import Operand

COUNTED = 2**31
"""LAPACK, and half of cuSOLVER, count in 32 bits."""

Triangle = Literal["L", "U"]
"""Lower, upper."""
Transpose = Literal["N", "T", "C"]
"""As it is, transposed, conjugated and transposed."""

PIVOTS = "int64"


def pivot_dtype(_request: Any) -> str:
    """Return the element type of pivots."""
    return PIVOTS


def _is_counted(_request: Any, sizes: Sizes) -> bool:
    """Lengths, and the number of matrices of a batch, must be below 2³¹: LAPACK counts in 32 bits."""
    return all((math.prod(n) if isinstance(n, tuple) else n) < COUNTED for n in sizes.values())


def _shorter(_request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(the shorter of m and n)."""
    return (min(sizes["m"], sizes["n"]),)


class _SolverRequest(LibraryRequest, frozen=True):
    """What most requests have in common."""

    types: ClassVar = {"T": FULL}
    rules: ClassVar = (_is_counted,)
    captured: ClassVar = False


# --- LU ---------------------------------------------------------------------------------------------------------------


class Getrf(_SolverRequest, frozen=True):
    """Factor a = p·l·u by exchanging rows; l, but for its diagonal of ones, and u overwrite a.

    In step i, row i was exchanged with row pivots[i], which counts from 0. In row order, a is copied on CUDA.
    """

    name: ClassVar = "getrf"
    captured: ClassVar = True
    undefined: ClassVar = "A pivot is 0: the matrix is singular. `row` is its place on the diagonal."
    a: Annotated[Operand, updates("m n", lies=matrix)]
    pivots: Annotated[Operand | None, writes(_shorter, dtype=pivot_dtype, lies=packed)] = None

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return 2/3·n³ for a square, and what LAPACK counts for others."""
        m, n, k = sizes["m"], sizes["n"], min(sizes["m"], sizes["n"])
        return int(2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3)


class Getrs(_SolverRequest, frozen=True):
    """Solve a·x = b, or the transpose of a, by the factors that getrf has left in a; x overwrites b.

    In row order, a is copied on CUDA, and so is b.
    """

    name: ClassVar = "getrs"
    undefined: ClassVar = "A pivot is no row of the matrix; `row` is its place."
    a: Annotated[Operand, reads("n n", lies=matrix)]
    pivots: Annotated[Operand, reads("n", dtype=pivot_dtype, lies=packed)]
    b: Annotated[Operand, updates("n nrhs", lies=matrix)]
    trans: Transpose = "N"
    """"T" or "C": the transpose of a, or its conjugate, is in the place of a."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return a product and a sum for each element of the factors and right-hand side."""
        return int(2 * sizes["n"] ** 2 * sizes["nrhs"])


class GetrfBatched(_SolverRequest, frozen=True):
    """Factor each square matrix of a batch as getrf does; for many small ones.

    In row order, a is copied on CUDA.
    """

    name: ClassVar = "getrf_batched"
    undefined: ClassVar = "A matrix is singular; `batch` and `row` tell the first."
    a: Annotated[Operand, updates("*batch n n", lies=matrices)]
    pivots: Annotated[Operand | None, writes("*batch n", dtype=pivot_dtype, lies=packed)] = None

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return 2/3·n³ for each matrix."""
        return int(math.prod(sizes["batch"]) * 2 * sizes["n"] ** 3 / 3)


class GetrsBatched(_SolverRequest, frozen=True):
    """Solve a·x = b for each matrix of a batch, by the factors that getrf_batched has left in a; x overwrites b.

    In row order, a is copied on CUDA, and so is b.
    """

    name: ClassVar = "getrs_batched"
    undefined: ClassVar = "A pivot is no row of its matrix; `batch` and `row` tell the first."
    a: Annotated[Operand, reads("*batch n n", lies=matrices)]
    pivots: Annotated[Operand, reads("*batch n", dtype=pivot_dtype, lies=packed)]
    b: Annotated[Operand, updates("*batch n nrhs", lies=matrices)]
    trans: Transpose = "N"
    """"T" or "C": the transpose of each matrix, or its conjugate, is in the place of the matrix."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return a product and a sum for each element of the factors and right-hand side."""
        return int(math.prod(sizes["batch"]) * 2 * sizes["n"] ** 2 * sizes["nrhs"])


# --- Cholesky ---------------------------------------------------------------------------------------------------------


class Potrf(_SolverRequest, frozen=True):
    """Factor a = l·lᴴ (uplo "L") or uᴴ·u ("U"); the factor overwrites its triangle of a.

    The other triangle is neither read nor written. Nothing is copied.
    """

    name: ClassVar = "potrf"
    captured: ClassVar = True
    undefined: ClassVar = "The matrix is not positive definite: its leading minor up to `row` is not."
    a: Annotated[Operand, updates("n n", lies=matrix, triangle="uplo")]
    uplo: Triangle = "L"
    """The triangle of a, as a is seen: "L" or "U"."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return n³/3."""
        return int(sizes["n"] ** 3 / 3)


class Potrs(_SolverRequest, frozen=True):
    """Solve a·x = b by the factor that potrf has left in a; x overwrites b. Nothing is copied.

    A zero on the factor's diagonal gives infinities and NaNs, not an error.
    """

    name: ClassVar = "potrs"
    captured: ClassVar = True
    a: Annotated[Operand, reads("n n", lies=matrix, triangle="uplo")]
    b: Annotated[Operand, updates("n nrhs", lies=matrix)]
    uplo: Triangle = "L"
    """The triangle of a that holds the factor, as a is seen: "L" or "U"."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return a product and a sum for each element of the factor, twice, and right-hand side."""
        return int(2 * sizes["n"] ** 2 * sizes["nrhs"])


class PotrfBatched(_SolverRequest, frozen=True):
    """Factor each matrix of a batch as potrf does; for many small ones. Nothing is copied."""

    name: ClassVar = "potrf_batched"
    captured: ClassVar = True
    undefined: ClassVar = "A matrix is not positive definite; `batch` and `row` tell the first."
    a: Annotated[Operand, updates("*batch n n", lies=matrices, triangle="uplo")]
    uplo: Triangle = "L"
    """The triangle of each matrix, as it is seen: "L" or "U"."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return n³/3 for each matrix."""
        return int(math.prod(sizes["batch"]) * sizes["n"] ** 3 / 3)


class PotrsBatched(_SolverRequest, frozen=True):
    """Solve a·x = b for each matrix of a batch, by the factors that potrf_batched has left in a; x overwrites b.

    Nothing is copied, unless complex a lies in row order and b in column order, or the other way round.
    """

    name: ClassVar = "potrs_batched"
    a: Annotated[Operand, reads("*batch n n", lies=matrices, triangle="uplo")]
    b: Annotated[Operand, updates("*batch n nrhs", lies=matrices)]
    uplo: Triangle = "L"
    """The triangle of each matrix that holds its factor, as the matrix is seen: "L" or "U"."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return a product and a sum for each element of the factor, twice, and right-hand side."""
        return int(math.prod(sizes["batch"]) * 2 * sizes["n"] ** 2 * sizes["nrhs"])
