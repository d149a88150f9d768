"""Requests of solver as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atomr_mp.libraries.base import LibraryReference
from atomr_mp.protocol.libraries import solver, sparse
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

    `LibraryReference` says what all methods have in common.
    """

    library: ClassVar[str] = "solver"

    def getrf(self, a: Operand, pivots: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Factor a = p·l·u by exchanging rows; l, but for its diagonal of ones, and u overwrite a.

        In step i, row i was exchanged with row pivots[i], which counts from 0. In row order, a is copied on CUDA.

        Args:
            a: Read and written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            pivots: Written; (the shorter of m and n). Strides: row-major, without gaps.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: A pivot is 0: the matrix is singular. `row` is its place on the diagonal. By the reply.
        """
        return self._request(solver.Getrf(a=a, pivots=pivots), deadline_s)

    def getrs(
        self, a: Operand, pivots: Operand, b: Operand, *, trans: solver.Transpose = "N", deadline_s: float | None = None
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
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: A pivot is no row of the matrix; `row` is its place. By the reply.
        """
        return self._request(solver.Getrs(a=a, pivots=pivots, b=b, trans=trans), deadline_s)

    def getrf_batched(self, a: Operand, pivots: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Factor each square matrix of a batch as getrf does; for many small ones.

        In row order, a is copied on CUDA.

        Args:
            a: Read and written; shape (*batch, n, n). Strides: each matrix with one contiguous dimension; all
                dimensions before these two as if they were one.
            pivots: Written; shape (*batch, n). Strides: row-major, without gaps.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: A matrix is singular; `batch` and `row` tell the first. By the reply.
        """
        return self._request(solver.GetrfBatched(a=a, pivots=pivots), deadline_s)

    def getrs_batched(
        self, a: Operand, pivots: Operand, b: Operand, *, trans: solver.Transpose = "N", deadline_s: float | None = None
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
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: A pivot is no row of its matrix; `batch` and `row` tell the first. By the reply.
        """
        return self._request(solver.GetrsBatched(a=a, pivots=pivots, b=b, trans=trans), deadline_s)

    def potrf(self, a: Operand, *, uplo: solver.Triangle = "L", deadline_s: float | None = None) -> Reply:
        """Factor a = l·lᴴ (uplo "L") or uᴴ·u ("U"); the factor overwrites its triangle of a.

        The other triangle is neither read nor written. Nothing is copied.

        Args:
            a: Read and written, in the triangle that uplo names; shape (n, n). Strides: one contiguous dimension of
                the last two, and the other's stride not less than what it steps over.
            uplo: The triangle of a, as a is seen: "L" or "U".
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: The matrix is not positive definite: its leading minor up to `row` is not. By the reply.
        """
        return self._request(solver.Potrf(a=a, uplo=uplo), deadline_s)

    def potrs(self, a: Operand, b: Operand, *, uplo: solver.Triangle = "L", deadline_s: float | None = None) -> Reply:
        """Solve a·x = b by the factor that potrf has left in a; x overwrites b. Nothing is copied.

        A zero on the factor's diagonal gives infinities and NaNs, not an error.

        Args:
            a: Read, in the triangle that uplo names; shape (n, n). Strides: one contiguous dimension of the last
                two, and the other's stride not less than what it steps over.
            b: Read and written; shape (n, nrhs). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            uplo: The triangle of a that holds the factor, as a is seen: "L" or "U".
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(solver.Potrs(a=a, b=b, uplo=uplo), deadline_s)

    def potrf_batched(self, a: Operand, *, uplo: solver.Triangle = "L", deadline_s: float | None = None) -> Reply:
        """Factor each matrix of a batch as potrf does; for many small ones.

        On a GPU the batch is copied meanwhile, since cuSOLVER writes into the other triangle too.

        Args:
            a: Read and written, in the triangle that uplo names; shape (*batch, n, n). Strides: each matrix with
                one contiguous dimension; all dimensions before these two as if they were one.
            uplo: The triangle of each matrix, as it is seen: "L" or "U".
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: A matrix is not positive definite; `batch` and `row` tell the first. By the reply.
        """
        return self._request(solver.PotrfBatched(a=a, uplo=uplo), deadline_s)

    def potrs_batched(
        self, a: Operand, b: Operand, *, uplo: solver.Triangle = "L", deadline_s: float | None = None
    ) -> Reply:
        """Solve a·x = b for each matrix of a batch, by the factors that potrf_batched has left in a; x overwrites b.

        Nothing is copied.

        Args:
            a: Read, in the triangle that uplo names; shape (*batch, n, n). Strides: each matrix with one contiguous
                dimension; all dimensions before these two as if they were one.
            b: Read and written; shape (*batch, n, nrhs). Strides: each matrix with one contiguous dimension; all
                dimensions before these two as if they were one.
            uplo: The triangle of each matrix that holds its factor, as the matrix is seen: "L" or "U".
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(solver.PotrsBatched(a=a, b=b, uplo=uplo), deadline_s)

    def geqrf(self, a: Operand, tau: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Factor a = q·r; r overwrites the upper triangle of a, and what q is made of the rest and tau.

        q is a product of reflectors 1 - tau[i]·v·vᴴ: v is 0 above row i, 1 there, and below what is left in column
        i of a. In row order, a is copied on CUDA.

        Args:
            a: Read and written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            tau: Written; (the shorter of m and n). Strides: row-major, without gaps.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(solver.Geqrf(a=a, tau=tau), deadline_s)

    def orgqr(self, a: Operand, tau: Operand, *, deadline_s: float | None = None) -> Reply:
        """Overwrite a, in whose first columns geqrf has left reflectors, with the first columns of q.

        In row order, a is copied on CUDA.

        Args:
            a: Read and written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            tau: Read; shape (k). Strides: row-major, without gaps.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(solver.Orgqr(a=a, tau=tau), deadline_s)

    def ungqr(self, a: Operand, tau: Operand, *, deadline_s: float | None = None) -> Reply:
        """Overwrite complex a, in whose first columns geqrf has left reflectors, with the first columns of q.

        In row order, a is copied on CUDA.

        Args:
            a: Read and written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            tau: Read; shape (k). Strides: row-major, without gaps.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(solver.Ungqr(a=a, tau=tau), deadline_s)

    def ormqr(
        self,
        a: Operand,
        tau: Operand,
        c: Operand,
        *,
        side: solver.Side = "L",
        trans: solver.Transposed = "N",
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute c ← q·c, c·q, qᵀ·c or c·qᵀ; geqrf has left the reflectors of q in a.

        In row order, both are copied on CUDA.

        Args:
            a: Read; (m, k) where side is L, (n, k) where it is R. Strides: one contiguous dimension of the last
                two, and the other's stride not less than what it steps over.
            tau: Read; shape (k). Strides: row-major, without gaps.
            c: Read and written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            side: The side of c on which q stands: "L" or "R".
            trans: "T": the transpose of q.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(solver.Ormqr(a=a, tau=tau, c=c, side=side, trans=trans), deadline_s)

    def unmqr(
        self,
        a: Operand,
        tau: Operand,
        c: Operand,
        *,
        side: solver.Side = "L",
        trans: solver.Adjoint = "N",
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute complex c ← q·c, c·q, qᴴ·c or c·qᴴ; geqrf has left the reflectors of q in a.

        In row order, both are copied on CUDA.

        Args:
            a: Read; (m, k) where side is L, (n, k) where it is R. Strides: one contiguous dimension of the last
                two, and the other's stride not less than what it steps over.
            tau: Read; shape (k). Strides: row-major, without gaps.
            c: Read and written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            side: The side of c on which q stands: "L" or "R".
            trans: "C": the conjugate transpose of q.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(solver.Unmqr(a=a, tau=tau, c=c, side=side, trans=trans), deadline_s)

    def gesvd(
        self,
        a: Operand,
        u: Operand | None = None,
        s: Operand | None = None,
        vh: Operand | None = None,
        *,
        job: solver.Job = "A",
        deadline_s: float | None = None,
    ) -> Reply:
        """Decompose a = u·diag(s)·vh; the singular values descend. a is overwritten.

        On CUDA, cuSOLVER waits for the device in between, and so does everybody else. A tall matrix in row order is
        copied there, and so is a wide one in column order.

        Args:
            a: Read and written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            u: Written; (m, m) where job is A, (m, the shorter of m and n) where it is S, (m, 0) where it is N.
                Strides: one contiguous dimension of the last two, and the other's stride not less than what it
                steps over.
            s: Written; (the shorter of m and n). Strides: row-major, without gaps.
            vh: Written; (n, n) where job is A, (the shorter of m and n, n) where it is S, (0, n) where it is N.
                Strides: one contiguous dimension of the last two, and the other's stride not less than what it
                steps over.
            job: "A" for all vectors, "S" for as many as there are singular values, "N" for none.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: An element is a NaN or an infinity, or the iteration does not end. By the reply.
        """
        return self._request(solver.Gesvd(a=a, u=u, s=s, vh=vh, job=job), deadline_s)

    def gesvdj_batched(
        self,
        a: Operand,
        u: Operand | None = None,
        s: Operand | None = None,
        v: Operand | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Reply:
        """Decompose each matrix of a batch, a = u·diag(s)·vᴴ, by Jacobi's method; the singular values descend.

        The matrices have up to 32 rows and columns. They stay as they are, and are copied on CUDA.

        Args:
            a: Read; shape (*batch, m, n). Strides: each matrix with one contiguous dimension; all dimensions before
                these two as if they were one.
            u: Written; shape (*batch, m, m). Strides: each matrix with one contiguous dimension; all dimensions
                before these two as if they were one.
            s: Written; (*batch, the shorter of m and n). Strides: row-major, without gaps.
            v: Written; shape (*batch, n, n). Strides: each matrix with one contiguous dimension; all dimensions
                before these two as if they were one.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: An element is a NaN or an infinity, or the iteration does not end. By the reply.
        """
        return self._request(solver.GesvdjBatched(a=a, u=u, s=s, v=v), deadline_s)

    def syevd(
        self,
        a: Operand,
        w: Operand | None = None,
        *,
        uplo: solver.Triangle = "L",
        jobz: solver.Vectors = "V",
        deadline_s: float | None = None,
    ) -> Reply:
        """Decompose symmetric a = v·diag(w)·vᵀ; v overwrites a, and the eigenvalues ascend.

        Only the named triangle of a is read; all of a is lost where no vectors are asked for. On CUDA, cuSOLVER
        waits for the device in between, and so does everybody else; in row order, a is copied.

        Args:
            a: Read and written; shape (n, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            w: Written; shape (n). Strides: row-major, without gaps.
            uplo: The triangle of a, as a is seen: "L" or "U".
            jobz: "V" for values and vectors, "N" for values.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: An element is a NaN or an infinity, or the iteration does not end. By the reply.
        """
        return self._request(solver.Syevd(a=a, w=w, uplo=uplo, jobz=jobz), deadline_s)

    def heevd(
        self,
        a: Operand,
        w: Operand | None = None,
        *,
        uplo: solver.Triangle = "L",
        jobz: solver.Vectors = "V",
        deadline_s: float | None = None,
    ) -> Reply:
        """Decompose Hermitian a = v·diag(w)·vᴴ; v overwrites a, and the eigenvalues ascend.

        Only the named triangle of a is read; all of a is lost where no vectors are asked for. On CUDA, cuSOLVER
        waits for the device in between, and so does everybody else; in row order, a is copied.

        Args:
            a: Read and written; shape (n, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            w: Written; shape (n). Strides: row-major, without gaps.
            uplo: The triangle of a, as a is seen: "L" or "U".
            jobz: "V" for values and vectors, "N" for values.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: An element is a NaN or an infinity, or the iteration does not end. By the reply.
        """
        return self._request(solver.Heevd(a=a, w=w, uplo=uplo, jobz=jobz), deadline_s)

    def sygvd(
        self,
        a: Operand,
        b: Operand,
        w: Operand | None = None,
        *,
        uplo: solver.Triangle = "L",
        jobz: solver.Vectors = "V",
        itype: solver.Kind = 1,
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve a·v = w·b·v, or what itype says, for symmetric a and positive definite b; the eigenvalues ascend.

        The vectors overwrite a, vᵀ·b·v = 1 (vᵀ·b⁻¹·v = 1 for itype 3), and b's Cholesky factor its triangle. Only
        the named triangles are read; all of a is lost where no vectors are asked for. On CUDA, cuSOLVER waits for
        the device in between, and so does everybody else; in row order, a and b are copied.

        Args:
            a: Read and written; shape (n, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            b: Read and written, in the triangle that uplo names; shape (n, n). Strides: one contiguous dimension of
                the last two, and the other's stride not less than what it steps over.
            w: Written; shape (n). Strides: row-major, without gaps.
            uplo: The triangle of a and b, as they are seen: "L" or "U".
            jobz: "V" for values and vectors, "N" for values.
            itype: 1: a·v = w·b·v; 2: a·b·v = w·v; 3: b·a·v = w·v.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: The matrix b is not positive definite up to `row`; or `row` is -1, an element is no
                number. By the reply.
        """
        return self._request(solver.Sygvd(a=a, b=b, w=w, uplo=uplo, jobz=jobz, itype=itype), deadline_s)

    def hegvd(
        self,
        a: Operand,
        b: Operand,
        w: Operand | None = None,
        *,
        uplo: solver.Triangle = "L",
        jobz: solver.Vectors = "V",
        itype: solver.Kind = 1,
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve a·v = w·b·v, or what itype says, for Hermitian a and positive definite b; the eigenvalues ascend.

        The vectors overwrite a, vᴴ·b·v = 1 (vᴴ·b⁻¹·v = 1 for itype 3), and b's Cholesky factor its triangle. Only
        the named triangles are read; all of a is lost where no vectors are asked for. On CUDA, cuSOLVER waits for
        the device in between, and so does everybody else; in row order, a and b are copied.

        Args:
            a: Read and written; shape (n, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            b: Read and written, in the triangle that uplo names; shape (n, n). Strides: one contiguous dimension of
                the last two, and the other's stride not less than what it steps over.
            w: Written; shape (n). Strides: row-major, without gaps.
            uplo: The triangle of a and b, as they are seen: "L" or "U".
            jobz: "V" for values and vectors, "N" for values.
            itype: 1: a·v = w·b·v; 2: a·b·v = w·v; 3: b·a·v = w·v.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: The matrix b is not positive definite up to `row`; or `row` is -1, an element is no
                number. By the reply.
        """
        return self._request(solver.Hegvd(a=a, b=b, w=w, uplo=uplo, jobz=jobz, itype=itype), deadline_s)

    def solve(self, a: Operand, b: Operand, x: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Solve a·x = b by LU factors, for one matrix or for each of a batch. All is copied first: a and b stay.

        Args:
            a: Read; shape (*batch, n, n).
            b: Read; (rows of a), or (*batch, rows of a, any number).
            x: Written; as b, but with the columns of a for rows.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: A matrix is singular; `row` is the place of its pivot of 0, and `batch` tells which. By
                the reply.
        """
        return self._request(solver.Solve(a=a, b=b, x=x), deadline_s)

    def lstsq(self, a: Operand, b: Operand, x: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Find the x for which a·x is nearest to b; if there are many, the shortest. By QR factors, so a has full rank.

        SciPy's returns residues, rank and singular values too. All is copied first: a and b stay.

        Args:
            a: Read; shape (m, n).
            b: Read; (rows of a), or (*batch, rows of a, any number).
            x: Written; as b, but with the columns of a for rows.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: Column `row` of a, or row where a has fewer rows, depends on those before it. By the
                reply.
        """
        return self._request(solver.Lstsq(a=a, b=b, x=x), deadline_s)

    def inv(self, a: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Invert a matrix, or each of a batch. All is copied first: a stays.

        Args:
            a: Read; shape (*batch, n, n).
            out: Written; shape (*batch, n, n).
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: A matrix is singular; `row` is the place of its pivot of 0, and `batch` tells which. By
                the reply.
        """
        return self._request(solver.Inv(a=a, out=out), deadline_s)

    def det(self, a: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute the determinant of a matrix, or of each of a batch. All is copied first: a stays.

        The output has the dimensions of the batch: none for a single matrix.

        Args:
            a: Read; shape (*batch, n, n).
            out: Written; shape (*batch).
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(solver.Det(a=a, out=out), deadline_s)

    def cholesky(
        self, a: Operand, out: Operand | None = None, *, lower: bool = False, deadline_s: float | None = None
    ) -> Reply:
        """Factor a = uᴴ·u, or l·lᴴ if `lower`, for one matrix or each of a batch.

        The other triangle of the result is 0. Only the triangle of a is read in which the factor lies. All is copied
        first: a stays.

        Args:
            a: Read; shape (*batch, n, n).
            out: Written; shape (*batch, n, n).
            lower: The factor is the lower triangle.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: A matrix is not positive definite: `row` is where its leading minor ends, `batch` tells
                which. By the reply.
        """
        return self._request(solver.Cholesky(a=a, out=out, lower=lower), deadline_s)

    def qr(
        self,
        a: Operand,
        q: Operand | None = None,
        r: Operand | None = None,
        *,
        mode: solver.Mode = "full",
        deadline_s: float | None = None,
    ) -> Reply:
        """Factor a = q·r, q with orthonormal columns and r an upper triangle. All is copied first: a stays.

        Args:
            a: Read; shape (m, n).
            q: Written; (m, m) where mode is full, (m, the shorter of m and n) where it is economic.
            r: Written; (m, n) where mode is full, (the shorter of m and n, n) where it is economic.
            mode: "full", or "economic": q has no more columns than a has rows and columns.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(solver.Qr(a=a, q=q, r=r, mode=mode), deadline_s)

    def svd(
        self,
        a: Operand,
        u: Operand | None = None,
        s: Operand | None = None,
        vh: Operand | None = None,
        *,
        full_matrices: bool = True,
        deadline_s: float | None = None,
    ) -> Reply:
        """Decompose a = u·diag(s)·vh; the singular values descend. All is copied first: a stays.

        On CUDA, cuSOLVER waits for the device in between, and so does everybody else.

        Args:
            a: Read; shape (m, n).
            u: Written; (m, m), or (m, the shorter of m and n) without full_matrices.
            s: Written; (the shorter of m and n).
            vh: Written; (n, n), or (the shorter of m and n, n) without full_matrices.
            full_matrices: u and vh are square; else they have no more vectors than there are singular values.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: An element is a NaN or an infinity, or the iteration does not end. By the reply.
        """
        return self._request(solver.Svd(a=a, u=u, s=s, vh=vh, full_matrices=full_matrices), deadline_s)

    def svdvals(self, a: Operand, s: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute the singular values of a, which descend. All is copied first: a stays.

        On CUDA, cuSOLVER waits for the device in between, and so does everybody else.

        Args:
            a: Read; shape (m, n).
            s: Written; (the shorter of m and n).
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: An element is a NaN or an infinity, or the iteration does not end. By the reply.
        """
        return self._request(solver.Svdvals(a=a, s=s), deadline_s)

    def eigh(
        self,
        a: Operand,
        w: Operand | None = None,
        v: Operand | None = None,
        *,
        lower: bool = True,
        deadline_s: float | None = None,
    ) -> Reply:
        """Decompose symmetric or Hermitian a = v·diag(w)·vᴴ; the eigenvalues ascend. All is copied first: a stays.

        Only the triangle that `lower` names is read. For a·v = w·b·v there are sygvd and hegvd. On CUDA, cuSOLVER
        waits for the device in between, and so does everybody else.

        Args:
            a: Read; shape (n, n).
            w: Written; shape (n).
            v: Written; shape (n, n).
            lower: The lower triangle of a is read, not the upper one.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: An element is a NaN or an infinity, or the iteration does not end. By the reply.
        """
        return self._request(solver.Eigh(a=a, w=w, v=v, lower=lower), deadline_s)

    def eigvalsh(
        self, a: Operand, w: Operand | None = None, *, lower: bool = True, deadline_s: float | None = None
    ) -> Reply:
        """Compute the eigenvalues of symmetric or Hermitian a, which ascend. All is copied first: a stays.

        Only the triangle that `lower` names is read. On CUDA, cuSOLVER waits for the device in between, and so does
        everybody else.

        Args:
            a: Read; shape (n, n).
            w: Written; shape (n).
            lower: The lower triangle of a is read, not the upper one.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: An element is a NaN or an infinity, or the iteration does not end. By the reply.
        """
        return self._request(solver.Eigvalsh(a=a, w=w, lower=lower), deadline_s)

    def spsolve(
        self,
        a: sparse.Matrix,
        b: Operand,
        x: Operand | None = None,
        *,
        method: solver.Factors = "lu",
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve a·x = b for a sparse matrix, by LU factors, or by Cholesky factors if it is positive definite.

        The matrix is one of `device.sparse`, in csr with int32 indices; all of it is given for Cholesky factors too. On
        CUDA this needs cuDSS, which allocates device memory by itself. The order in which it eliminates is found by the
        first request of a structure, on a thread of its own, and kept.

        Args:
            a: A sparse matrix, as `Sparse.csr` and its like make it.
            b: Read; (rows of a), or (rows of a, any number).
            x: Written; (rows of a), or (rows of a, any number).
            method: "lu", or "cholesky" for a symmetric or Hermitian a that is positive definite; "qr" is
                `Unsupported`.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: The matrix is singular, or so nearly that x is wrong; or it is not positive definite. By
                the reply.
        """
        return self._request(solver.Spsolve(a=a, b=b, x=x, method=method), deadline_s)
