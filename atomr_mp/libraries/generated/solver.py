"""Requests of solver as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atomr_mp.libraries.base import LibraryReference
from atomr_mp.protocol.libraries import solver
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


class SolverRequests(LibraryReference):
    """Dense solvers and factorisations: LAPACK's names for what works in place, SciPy's for what keeps what it reads.

    Requests with LAPACK's names (`getrf`, `potrs`) write their results over what they read. A matrix may lie in row or
    in column order. cuSOLVER knows column order only: LU and QR factors, reflectors and eigenvectors in row order go
    through a copy on the device; a Cholesky factor and what it solves never do. Pivots count from 0 and eigenvalues
    ascend.

    Source of the rules: LAPACK's and cuSOLVER's documentation; SciPy's for what has its names.

    Methods return at once. The reply's result is None unless a method says otherwise: a result is written to the arrays
    that are named as written, and to no others. An output that was left out is allocated on the device, and the reply's
    result is a ref to it; a list of refs if there are several. `deadline_s` is the request's, in seconds, None for the
    pool's default.

    Every method raises `InvalidRequest` for element types, shapes, strides or parameters that do not fit, and
    `BorrowConflict` for an array that is written and overlaps another one; nothing has been sent then.
    """

    library: ClassVar[str] = "solver"

    def getrf(
        self,
        a: Operand,
        pivots: Operand | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Reply:
        """Factor a = p·l·u by exchanging rows; l, but for its diagonal of ones, and u overwrite a.

        In step i, row i was exchanged with row pivots[i], which counts from 0. In row order, a is copied on CUDA.

        Args:
            a: Read and written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            pivots: Written; (the shorter of m and n). Strides: row-major, without gaps.
            deadline_s: Seconds from now until which it must have started; None for the pool's default.

        Raises:
            NumericalError: A pivot is 0: the matrix is singular. `row` is its place on the diagonal. By the reply.
        """
        return self._request(solver.Getrf(a=a, pivots=pivots), deadline_s)

    def getrs(
        self,
        a: Operand,
        pivots: Operand,
        b: Operand,
        *,
        trans: solver.Transpose = "N",
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve a·x = b, or the transpose of a, by the factors that getrf has left in a; x overwrites b.

        In row order, a is copied on CUDA, and so is b.

        Args:
            a: Read; shape (n, n). Strides: one contiguous dimension of the last two, and the other's stride not
                less than what it steps over.
            pivots: Read; shape (n). Strides: row-major, without gaps.
            b: Read and written; shape (n, nrhs). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            trans: "T" or "C": the transpose of a, or its conjugate, is in the place of a.
            deadline_s: Seconds from now until which it must have started; None for the pool's default.

        Raises:
            NumericalError: A pivot is no row of the matrix; `row` is its place. By the reply.
        """
        return self._request(solver.Getrs(a=a, pivots=pivots, b=b, trans=trans), deadline_s)

    def getrf_batched(
        self,
        a: Operand,
        pivots: Operand | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Reply:
        """Factor each square matrix of a batch as getrf does; for many small ones.

        In row order, a is copied on CUDA.

        Args:
            a: Read and written; shape (*batch, n, n). Strides: each matrix with one contiguous dimension; all
                dimensions before these two as if they were one.
            pivots: Written; shape (*batch, n). Strides: row-major, without gaps.
            deadline_s: Seconds from now until which it must have started; None for the pool's default.

        Raises:
            NumericalError: A matrix is singular; `batch` and `row` tell the first. By the reply.
        """
        return self._request(solver.GetrfBatched(a=a, pivots=pivots), deadline_s)

    def getrs_batched(
        self,
        a: Operand,
        pivots: Operand,
        b: Operand,
        *,
        trans: solver.Transpose = "N",
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve a·x = b for each matrix of a batch, by the factors that getrf_batched has left in a; x overwrites b.

        In row order, a is copied on CUDA, and so is b.

        Args:
            a: Read; shape (*batch, n, n). Strides: each matrix with one contiguous dimension; all dimensions before
                these two as if they were one.
            pivots: Read; shape (*batch, n). Strides: row-major, without gaps.
            b: Read and written; shape (*batch, n, nrhs). Strides: each matrix with one contiguous dimension; all
                dimensions before these two as if they were one.
            trans: "T" or "C": the transpose of each matrix, or its conjugate, is in the place of the matrix.
            deadline_s: Seconds from now until which it must have started; None for the pool's default.

        Raises:
            NumericalError: A pivot is no row of its matrix; `batch` and `row` tell the first. By the reply.
        """
        return self._request(solver.GetrsBatched(a=a, pivots=pivots, b=b, trans=trans), deadline_s)

    def potrf(
        self,
        a: Operand,
        *,
        uplo: solver.Triangle = "L",
        deadline_s: float | None = None,
    ) -> Reply:
        """Factor a = l·lᴴ (uplo "L") or uᴴ·u ("U"); the factor overwrites its triangle of a.

        The other triangle is neither read nor written. Nothing is copied.

        Args:
            a: Read and written, in the triangle that uplo names; shape (n, n). Strides: one contiguous dimension of
                the last two, and the other's stride not less than what it steps over.
            uplo: The triangle of a, as a is seen: "L" or "U".
            deadline_s: Seconds from now until which it must have started; None for the pool's default.

        Raises:
            NumericalError: The matrix is not positive definite: its leading minor up to `row` is not. By the reply.
        """
        return self._request(solver.Potrf(a=a, uplo=uplo), deadline_s)

    def potrs(
        self,
        a: Operand,
        b: Operand,
        *,
        uplo: solver.Triangle = "L",
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve a·x = b by the factor that potrf has left in a; x overwrites b. Nothing is copied.

        A zero on the factor's diagonal gives infinities and NaNs, not an error.

        Args:
            a: Read, in the triangle that uplo names; shape (n, n). Strides: one contiguous dimension of the last
                two, and the other's stride not less than what it steps over.
            b: Read and written; shape (n, nrhs). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            uplo: The triangle of a that holds the factor, as a is seen: "L" or "U".
            deadline_s: Seconds from now until which it must have started; None for the pool's default.
        """
        return self._request(solver.Potrs(a=a, b=b, uplo=uplo), deadline_s)

    def potrf_batched(
        self,
        a: Operand,
        *,
        uplo: solver.Triangle = "L",
        deadline_s: float | None = None,
    ) -> Reply:
        """Factor each matrix of a batch as potrf does; for many small ones. Nothing is copied.

        Args:
            a: Read and written, in the triangle that uplo names; shape (*batch, n, n). Strides: each matrix with
                one contiguous dimension; all dimensions before these two as if they were one.
            uplo: The triangle of each matrix, as it is seen: "L" or "U".
            deadline_s: Seconds from now until which it must have started; None for the pool's default.

        Raises:
            NumericalError: A matrix is not positive definite; `batch` and `row` tell the first. By the reply.
        """
        return self._request(solver.PotrfBatched(a=a, uplo=uplo), deadline_s)

    def potrs_batched(
        self,
        a: Operand,
        b: Operand,
        *,
        uplo: solver.Triangle = "L",
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve a·x = b for each matrix of a batch, by the factors that potrf_batched has left in a; x overwrites b.

        Nothing is copied, unless complex a lies in row order and b in column order, or the other way round.

        Args:
            a: Read, in the triangle that uplo names; shape (*batch, n, n). Strides: each matrix with one contiguous
                dimension; all dimensions before these two as if they were one.
            b: Read and written; shape (*batch, n, nrhs). Strides: each matrix with one contiguous dimension; all
                dimensions before these two as if they were one.
            uplo: The triangle of each matrix that holds its factor, as the matrix is seen: "L" or "U".
            deadline_s: Seconds from now until which it must have started; None for the pool's default.
        """
        return self._request(solver.PotrsBatched(a=a, b=b, uplo=uplo), deadline_s)
