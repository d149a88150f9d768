"""Requests of sparse as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, SupportsIndex

from atomr_mp.libraries.base import LibraryReference, Number, element_type, factor, lengths
from atomr_mp.protocol.libraries import sparse
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from atomr_mp.client.reply import Reply


class SparseRequests(LibraryReference):
    """Sparse matrices in a device's memory: products, triangular systems, sampled products and conversions.

    A matrix is a *checked structure*, which says where its elements stand, and a ref to its values. The worker has
    copied and checked the structure when the matrix was made: in every request the indices are in range, sorted, and
    none comes twice. The values stay the caller's: they may be written, and the same structure takes others. A
    transpose is a view: that of a matrix in CSR is one in CSC.

    Names and formats are SciPy's, and cuSPARSE's blocked ELL. What cuSPARSE does not have by format, element type or
    width of indices is `Unsupported` on every backend, before anything is sent.

    `LibraryReference` says what all methods have in common.
    """

    library: ClassVar[str] = "sparse"

    def structure(
        self,
        indices: Operand,
        indptr: Operand | None = None,
        data: Operand | None = None,
        *,
        to: sparse.Format = "csr",
        shape: SupportsIndex | Sequence[SupportsIndex] = (),
        blocksize: SupportsIndex | Sequence[SupportsIndex] = (1, 1),
        deadline_s: float | None = None,
    ) -> Reply:
        """Copy and check the indices of a matrix; answer with a ref that names them. For `Sparse.csr` and its like.

        Indices must be in range, ascend in each row (of csc in each column), and none may come twice. If `data` is
        given, indices of csr, csc and coo that do not ascend are sorted, and so is a copy of data in the answer.

        Args:
            indices: Read; any shape. Strides: row-major, without gaps.
            indptr: Read; shape (_). Strides: row-major, without gaps.
            data: Read; shape (_). Strides: row-major, without gaps.
            to: The format. For coo, indices are the columns and indptr the rows; blocked_ell has no indptr, and -1
                fills the end of a row of its indices.
            shape: Rows and columns.
            blocksize: Rows and columns of a block, for bsr and blocked_ell.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            sparse.Structure(
                indices=indices,
                indptr=indptr,
                data=data,
                to=to,
                shape=lengths("shape", shape),
                blocksize=lengths("blocksize", blocksize),
            ),
            deadline_s,
        )

    def arrays(self, a: sparse.Pattern, *, deadline_s: float | None = None) -> Reply:
        """Answer with refs to copies of the indices of a matrix: [indices, indptr], for coo [col, row]; as stored.

        Args:
            a: A checked structure, as `Sparse.csr` and its like make it.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(sparse.Arrays(a=a), deadline_s)

    def spmv(
        self,
        a: sparse.Matrix,
        x: Operand,
        y: Operand | None = None,
        *,
        alpha: Number | Operand = 1.0,
        beta: Number | Operand = 0.0,
        conj_a: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute y ← alpha·a·x + beta·y.

        Args:
            a: A sparse matrix, as `Sparse.csr` and its like make it.
            x: Read unless alpha is 0; shape (k). Strides: a stride that is not 0.
            y: Written, and read unless beta is 0; the rows of a. Strides: a stride that is not 0.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            beta: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            conj_a: Take the conjugate of a.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            sparse.Spmv(
                a=a, x=x, y=y, alpha=self._factor("alpha", alpha), beta=self._factor("beta", beta), conj_a=conj_a
            ),
            deadline_s,
        )

    def spmm(
        self,
        a: sparse.Matrix,
        b: Operand,
        c: Operand | None = None,
        *,
        alpha: Number | Operand = 1.0,
        beta: Number | Operand = 0.0,
        conj_a: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute c ← alpha·a·b + beta·c for a dense b.

        Args:
            a: A sparse matrix, as `Sparse.csr` and its like make it.
            b: Read unless alpha is 0; shape (k, n). Strides: one contiguous dimension of the last two, and the
                other's stride not less than what it steps over.
            c: Written, and read unless beta is 0; the rows of a, the columns of b. Strides: one contiguous
                dimension of the last two, and the other's stride not less than what it steps over.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            beta: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            conj_a: Take the conjugate of a.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            sparse.Spmm(
                a=a, b=b, c=c, alpha=self._factor("alpha", alpha), beta=self._factor("beta", beta), conj_a=conj_a
            ),
            deadline_s,
        )

    def spgemm(
        self, a: sparse.Matrix, b: sparse.Matrix, *, alpha: Number = 1.0, deadline_s: float | None = None
    ) -> Reply:
        """Compute alpha·a·b for sparse a and b in csr or csc; answers with a matrix in the format of a.

        On a GPU the result is made on a thread of its own, since cuSPARSE has to know its size. Other requests go on
        meanwhile; those that write a or b wait.

        Args:
            a: A sparse matrix, as `Sparse.csr` and its like make it.
            b: A sparse matrix, as `Sparse.csr` and its like make it.
            alpha: A factor; complex only for complex arrays.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(sparse.Spgemm(a=a, b=b, alpha=factor("alpha", alpha)), deadline_s)

    def spsv(
        self,
        a: sparse.Matrix,
        b: Operand,
        x: Operand | None = None,
        *,
        uplo: sparse.Triangle,
        alpha: Number | Operand = 1.0,
        conj_a: bool = False,
        diag: sparse.Diagonal = "N",
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve a·x = alpha·b for x, with a the named triangle of a matrix; the other one is not read.

        Args:
            a: A sparse matrix, as `Sparse.csr` and its like make it.
            b: Read unless alpha is 0; shape (n). Strides: a stride that is not 0.
            x: Written; shape (n). Strides: a stride that is not 0. May be b itself.
            uplo: The triangle of a: "L" or "U".
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            conj_a: Take the conjugate of a.
            diag: "U": the diagonal of a is all ones, and is not read.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: An element of the diagonal is 0, or is not there. By the reply.
        """
        return self._request(
            sparse.Spsv(a=a, b=b, uplo=uplo, x=x, alpha=self._factor("alpha", alpha), conj_a=conj_a, diag=diag),
            deadline_s,
        )

    def spsm(
        self,
        a: sparse.Matrix,
        b: Operand,
        x: Operand | None = None,
        *,
        uplo: sparse.Triangle,
        alpha: Number | Operand = 1.0,
        conj_a: bool = False,
        diag: sparse.Diagonal = "N",
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve a·x = alpha·b for the columns of x, with a the named triangle of a matrix; the other one is not read.

        Args:
            a: A sparse matrix, as `Sparse.csr` and its like make it.
            b: Read unless alpha is 0; shape (n, m). Strides: one contiguous dimension of the last two, and the
                other's stride not less than what it steps over.
            x: Written; shape (n, m). Strides: one contiguous dimension of the last two, and the other's stride not
                less than what it steps over. May be b itself.
            uplo: The triangle of a: "L" or "U".
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            conj_a: Take the conjugate of a.
            diag: "U": the diagonal of a is all ones, and is not read.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: An element of the diagonal is 0, or is not there. By the reply.
        """
        return self._request(
            sparse.Spsm(a=a, b=b, uplo=uplo, x=x, alpha=self._factor("alpha", alpha), conj_a=conj_a, diag=diag),
            deadline_s,
        )

    def sddmm(
        self,
        a: Operand,
        b: Operand,
        c: sparse.Pattern,
        out: Operand | None = None,
        *,
        alpha: Number | Operand = 1.0,
        beta: Number | Operand = 0.0,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← alpha·(a·b) + beta·out where c has elements: the values of a matrix with the structure of c.

        Args:
            a: Read unless alpha is 0; shape (m, k). Strides: one contiguous dimension of the last two, and the
                other's stride not less than what it steps over.
            b: Read unless alpha is 0; shape (k, n). Strides: one contiguous dimension of the last two, and the
                other's stride not less than what it steps over.
            c: A checked structure, as `Sparse.csr` and its like make it.
            out: Written, and read unless beta is 0; the shape of the values of c. Strides: row-major, without gaps.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            beta: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            sparse.Sddmm(a=a, b=b, c=c, out=out, alpha=self._factor("alpha", alpha), beta=self._factor("beta", beta)),
            deadline_s,
        )

    def convert(
        self,
        a: sparse.Matrix,
        *,
        to: sparse.Format,
        blocksize: SupportsIndex | Sequence[SupportsIndex] = (1, 1),
        index: DTypeLike | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Answer with a matrix of the same elements in another format; zeros that are stored stay, or fill blocks.

        Args:
            a: A sparse matrix, as `Sparse.csr` and its like make it.
            to: The format.
            blocksize: Rows and columns of a block, for bsr and blocked_ell.
            index: The type of the indices; that of a if it is left out.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            sparse.Convert(
                a=a,
                to=to,
                blocksize=lengths("blocksize", blocksize),
                index=None if index is None else element_type(index),
            ),
            deadline_s,
        )

    def dense_to_sparse(
        self, x: Operand, *, to: sparse.Flat = "csr", index: DTypeLike = "int32", deadline_s: float | None = None
    ) -> Reply:
        """Answer with a sparse matrix of the elements of x that are not 0.

        Args:
            x: Read; shape (m, n).
            to: The format.
            index: The type of the indices.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(sparse.DenseToSparse(x=x, to=to, index=element_type(index)), deadline_s)

    def sparse_to_dense(
        self, a: sparse.Matrix, out: Operand | None = None, *, deadline_s: float | None = None
    ) -> Reply:
        """Write all elements of a into a dense matrix.

        Args:
            a: A sparse matrix, as `Sparse.csr` and its like make it.
            out: Written; the shape of a.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(sparse.SparseToDense(a=a, out=out), deadline_s)
