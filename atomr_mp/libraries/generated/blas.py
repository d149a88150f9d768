"""Requests of blas as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, SupportsFloat

from atomr_mp.libraries.base import LibraryReference, Number
from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


class BlasRequests(LibraryReference):
    """Dense linear algebra as BLAS defines it, level 1 to 3, and cuBLAS' geam and batched gemm.

    Sizes, increments and leading dimensions follow from the layouts of the arrays. A transpose is a view: a matrix may
    lie in row or column order. An array with a factor of 0 is not read, except by scal: a NaN in it is gone. Half
    precision is computed in float32, and rounded once.

    Source of the rules: the BLAS Technical Forum's standard; cuBLAS' documentation for geam and batches.

    `LibraryReference` says what all methods have in common.
    """

    library: ClassVar[str] = "blas"

    def axpy(self, x: Operand, y: Operand, *, alpha: Number | Operand = 1.0, deadline_s: float | None = None) -> Reply:
        """Compute y ← alpha·x + y.

        Args:
            x: Read unless alpha is 0; shape (n). Strides: a stride that is not 0.
            y: Read and written; shape (n). Strides: a stride that is not 0.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.Axpy(x=x, y=y, alpha=self._factor("alpha", alpha)), deadline_s)

    def scal(self, x: Operand, *, alpha: Number | Operand, deadline_s: float | None = None) -> Reply:
        """Compute x ← alpha·x. An alpha of 0 multiplies too, so a NaN stays a NaN.

        Args:
            x: Read and written; shape (n). Strides: a stride that is not 0.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.Scal(x=x, alpha=self._factor("alpha", alpha)), deadline_s)

    def nrm2(self, x: Operand, *, deadline_s: float | None = None) -> Reply:
        """Compute √Σ|x_i|² without overflow on the way. The result is a float.

        Args:
            x: Read; shape (n). Strides: a stride that is not 0.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.Nrm2(x=x), deadline_s)

    def dot(self, x: Operand, y: Operand, *, conjugate: bool = False, deadline_s: float | None = None) -> Reply:
        """Compute Σ x_i·y_i. The result is a float; for complex arrays, a complex number.

        A complex result arrives as a NumPy array without dimensions, for msgpack has no complex numbers.

        Args:
            x: Read; shape (n). Strides: a stride that is not 0.
            y: Read; shape (n). Strides: a stride that is not 0.
            conjugate: Take the conjugate of x_i; nothing changes for reals.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.Dot(x=x, y=y, conjugate=conjugate), deadline_s)

    def inner(
        self,
        x: Operand,
        y: Operand,
        out: Operand | None = None,
        *,
        conjugate: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← Σ x_i·y_i, an array without dimensions: for a program, whose numbers stay on the device.

        Args:
            x: Read; shape (n). Strides: a stride that is not 0.
            y: Read; shape (n). Strides: a stride that is not 0.
            out: Written; shape ().
            conjugate: Take the conjugate of x_i; nothing changes for reals.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.Inner(x=x, y=y, out=out, conjugate=conjugate), deadline_s)

    def asum(self, x: Operand, *, deadline_s: float | None = None) -> Reply:
        """Compute Σ|x_i|, for complex arrays Σ(|re x_i| + |im x_i|). The result is a float.

        Args:
            x: Read; shape (n). Strides: a stride that is not 0.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.Asum(x=x), deadline_s)

    def iamax(self, x: Operand, *, deadline_s: float | None = None) -> Reply:
        """Find the largest |x_i|, for complex arrays |re x_i| + |im x_i|.

        The result is its index, an int that counts from 0; the smallest if there are several. Undefined where there are
        NaNs.

        Args:
            x: Read; shape (n). Strides: a positive stride.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.Iamax(x=x), deadline_s)

    def iamin(self, x: Operand, *, deadline_s: float | None = None) -> Reply:
        """Find the smallest |x_i|, for complex arrays |re x_i| + |im x_i|.

        The result is its index, an int that counts from 0; the smallest if there are several. Undefined where there are
        NaNs.

        Args:
            x: Read; shape (n). Strides: a positive stride.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.Iamin(x=x), deadline_s)

    def copy(self, x: Operand, y: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute y ← x.

        Args:
            x: Read; shape (n). Strides: a stride that is not 0.
            y: Written; shape (n). Strides: a stride that is not 0.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.VectorCopy(x=x, y=y), deadline_s)

    def swap(self, x: Operand, y: Operand, *, deadline_s: float | None = None) -> Reply:
        """Exchange x and y.

        Args:
            x: Read and written; shape (n). Strides: a stride that is not 0.
            y: Read and written; shape (n). Strides: a stride that is not 0.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.Swap(x=x, y=y), deadline_s)

    def rot(
        self,
        x: Operand,
        y: Operand,
        *,
        c: SupportsFloat | Operand,
        s: Number | Operand,
        deadline_s: float | None = None,
    ) -> Reply:
        """Rotate: (x_i, y_i) ← (c·x_i + s·y_i, c·y_i - conj(s)·x_i). The factor c is real.

        Args:
            x: Read and written; shape (n). Strides: a stride that is not 0.
            y: Read and written; shape (n). Strides: a stride that is not 0.
            c: A real factor; for a rotation, the cosine. An array of one element is read when the request runs.
            s: A factor; for a rotation, the sine. Complex only for complex arrays. An array of one element is read
                when the request runs.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(blas.Rot(x=x, y=y, c=self._real_factor("c", c), s=self._factor("s", s)), deadline_s)

    def gemv(
        self,
        a: Operand,
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
            a: Read unless alpha is 0; shape (m, n). Strides: one contiguous dimension of the last two, and the
                other's stride not less than what it steps over.
            x: Read unless alpha is 0; shape (n). Strides: a stride that is not 0.
            y: Written, and read unless beta is 0; shape (m). Strides: a stride that is not 0.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            beta: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            conj_a: Take the conjugate of a.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            blas.Gemv(
                a=a, x=x, y=y, alpha=self._factor("alpha", alpha), beta=self._factor("beta", beta), conj_a=conj_a
            ),
            deadline_s,
        )

    def ger(
        self,
        a: Operand,
        x: Operand,
        y: Operand,
        *,
        alpha: Number | Operand = 1.0,
        conjugate: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute a ← alpha·x·yᵀ + a.

        Args:
            a: Read and written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            x: Read unless alpha is 0; shape (m). Strides: a stride that is not 0.
            y: Read unless alpha is 0; shape (n). Strides: a stride that is not 0.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            conjugate: Take the conjugate of y.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            blas.Ger(a=a, x=x, y=y, alpha=self._factor("alpha", alpha), conjugate=conjugate), deadline_s
        )

    def geam(
        self,
        a: Operand,
        b: Operand,
        c: Operand | None = None,
        *,
        alpha: Number | Operand = 1.0,
        beta: Number | Operand = 1.0,
        conj_a: bool = False,
        conj_b: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute c ← alpha·a + beta·b. With beta 0 this transposes, scales and copies.

        Args:
            a: Read unless alpha is 0; shape (m, n). Strides: one contiguous dimension of the last two, and the
                other's stride not less than what it steps over.
            b: Read unless beta is 0; shape (m, n). Strides: one contiguous dimension of the last two, and the
                other's stride not less than what it steps over.
            c: Written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's stride not
                less than what it steps over. May be a or b itself.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            beta: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            conj_a: Take the conjugate of a.
            conj_b: Take the conjugate of b.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            blas.Geam(
                a=a,
                b=b,
                c=c,
                alpha=self._factor("alpha", alpha),
                beta=self._factor("beta", beta),
                conj_a=conj_a,
                conj_b=conj_b,
            ),
            deadline_s,
        )

    def syrk(
        self,
        a: Operand,
        c: Operand | None = None,
        *,
        uplo: blas.Triangle,
        alpha: Number | Operand = 1.0,
        beta: Number | Operand = 0.0,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute c ← alpha·a·aᵀ + beta·c in the named triangle of c; nothing is conjugated.

        The other triangle is neither read nor written; it is undefined if c was left out.

        Args:
            a: Read unless alpha is 0; shape (n, k). Strides: one contiguous dimension of the last two, and the
                other's stride not less than what it steps over.
            c: Written, and read unless beta is 0, in the triangle that uplo names; shape (n, n). Strides: one
                contiguous dimension of the last two, and the other's stride not less than what it steps over.
            uplo: The triangle of c, as c is seen: "L" or "U".
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            beta: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            blas.Syrk(a=a, uplo=uplo, c=c, alpha=self._factor("alpha", alpha), beta=self._factor("beta", beta)),
            deadline_s,
        )

    def trsm(
        self,
        a: Operand,
        b: Operand,
        *,
        uplo: blas.Triangle,
        side: blas.Side = "L",
        alpha: Number | Operand = 1.0,
        conj_a: bool = False,
        diag: blas.Diagonal = "N",
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve a·x = alpha·b (side "L") or x·a = alpha·b ("R") for x, which overwrites b.

        Only the named triangle of a is read. A zero on its diagonal gives infinities and NaNs, not an error.

        Args:
            a: Read unless alpha is 0, in the triangle that uplo names; (m, m) where side is L, (n, n) where it is
                R. Strides: one contiguous dimension of the last two, and the other's stride not less than what it
                steps over.
            b: Read and written; shape (m, n). Strides: one contiguous dimension of the last two, and the other's
                stride not less than what it steps over.
            uplo: The triangle of a, as a is seen: "L" or "U".
            side: The side of x on which a stands: "L" or "R".
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            conj_a: Take the conjugate of a.
            diag: "U": the diagonal of a is all ones, and is not read.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            blas.Trsm(a=a, b=b, uplo=uplo, side=side, alpha=self._factor("alpha", alpha), conj_a=conj_a, diag=diag),
            deadline_s,
        )

    def gemm(
        self,
        a: Operand,
        b: Operand,
        c: Operand | None = None,
        *,
        alpha: Number | Operand = 1.0,
        beta: Number | Operand = 0.0,
        conj_a: bool = False,
        conj_b: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute c ← alpha·a·b + beta·c.

        Args:
            a: Read unless alpha is 0; shape (m, k). Strides: one contiguous dimension of the last two, and the
                other's stride not less than what it steps over.
            b: Read unless alpha is 0; shape (k, n). Strides: one contiguous dimension of the last two, and the
                other's stride not less than what it steps over.
            c: Written, and read unless beta is 0; shape (m, n). Strides: one contiguous dimension of the last two,
                and the other's stride not less than what it steps over.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            beta: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            conj_a: Take the conjugate of a.
            conj_b: Take the conjugate of b.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            blas.Gemm(
                a=a,
                b=b,
                c=c,
                alpha=self._factor("alpha", alpha),
                beta=self._factor("beta", beta),
                conj_a=conj_a,
                conj_b=conj_b,
            ),
            deadline_s,
        )

    def gemm_strided_batched(
        self,
        a: Operand,
        b: Operand,
        c: Operand | None = None,
        *,
        alpha: Number | Operand = 1.0,
        beta: Number | Operand = 0.0,
        conj_a: bool = False,
        conj_b: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute c_i ← alpha·a_i·b_i + beta·c_i for each matrix i of a batch.

        Matrices that are read may overlap, and may be the same for all of the batch: a stride of 0.

        Args:
            a: Read unless alpha is 0; shape (*batch, m, k). Strides: each matrix with one contiguous dimension; all
                dimensions before these two as if they were one.
            b: Read unless alpha is 0; shape (*batch, k, n). Strides: each matrix with one contiguous dimension; all
                dimensions before these two as if they were one.
            c: Written, and read unless beta is 0; shape (*batch, m, n). Strides: each matrix with one contiguous
                dimension; all dimensions before these two as if they were one.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            beta: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            conj_a: Take the conjugate of a.
            conj_b: Take the conjugate of b.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            blas.GemmStridedBatched(
                a=a,
                b=b,
                c=c,
                alpha=self._factor("alpha", alpha),
                beta=self._factor("beta", beta),
                conj_a=conj_a,
                conj_b=conj_b,
            ),
            deadline_s,
        )
