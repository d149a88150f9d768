"""BLAS for arrays in a device's memory: refs to messages."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, SupportsFloat, SupportsIndex

from atomr_mp.libraries.base import LibraryReference
from atomr_mp.libraries.operands import (
    Number,
    agreed,
    check_dimensions,
    common_order,
    given,
    in_elements,
    matrix,
    scalar,
    vector,
)
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.libraries.base import KNOWN
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply

Int = SupportsIndex | None


class Blas(LibraryReference):
    """Dense linear algebra on refs: vectors are refs of one dimension, matrices of two.

    Sizes, increments, leading dimensions and the order of elements follow from shapes and strides. Vectors may have
    any stride but 0, matrices must have one contiguous dimension; beside a row-major matrix that is written, a
    column-major one that is read is passed as its transpose, and the other way round. Sizes may be given instead, all
    of a method's and then optionally `order` ("column" unless given): then a ref is only the memory that begins at
    its lowest byte, and BLAS' own rules hold.

    All arrays of a request have the same element type: float32, float64, complex64 or complex128; `axpy`, `scal`,
    `gemm` and `gemm_strided_batched` also take float16 and bfloat16, compute in float32 and round once. Factors are
    real or, for complex arrays, complex; what an `alpha` or `beta` of 0 multiplies is not read (but by `scal`). op(A)
    is A with `trans` "N", its transpose with "T", its conjugate transpose with "C".

    Methods return at once. A reply's result is None unless a method says otherwise: results are written to the arrays
    that come last among the operands, and to no others. `deadline_s` is the request's, None for the pool's default.
    Every method raises `InvalidRequest` for element types, shapes or sizes that do not fit, and `BorrowConflict` for
    what is written and overlaps another operand; nothing has been sent then.

    Rules are those of the BLAS Technical Forum's standard and of cuBLAS, whose documentation says more.
    """

    library: ClassVar[str] = "blas"

    def axpy(
        self,
        x: Operand,
        y: Operand,
        *,
        alpha: Number = 1.0,
        n: Int = None,
        incx: Int = None,
        incy: Int = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute y ← alpha·x + y."""
        sizes = given(n=n, incx=incx, incy=incy) or _pair(x, y)
        return self._request(blas.Axpy(x=x, y=y, alpha=scalar("alpha", alpha), **sizes), deadline_s)

    def scal(
        self, x: Operand, *, alpha: Number, n: Int = None, incx: Int = None, deadline_s: float | None = None
    ) -> Reply:
        """Compute x ← alpha·x. An alpha of 0 multiplies too: a NaN stays one."""
        sizes = given(n=n, incx=incx) or _unordered(x)
        return self._request(blas.Scal(x=x, alpha=scalar("alpha", alpha), **sizes), deadline_s)

    def nrm2(self, x: Operand, *, n: Int = None, incx: Int = None, deadline_s: float | None = None) -> Reply:
        """Compute √Σ|x_i|². The result is a float."""
        return self._request(blas.Nrm2(x=x, **(given(n=n, incx=incx) or _unordered(x))), deadline_s)

    def dot(
        self,
        x: Operand,
        y: Operand,
        *,
        conjugate: bool = False,
        n: Int = None,
        incx: Int = None,
        incy: Int = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute Σ x_i·y_i, with the conjugate of x_i if wanted. The result is a float, of complex arrays complex.

        A complex result arrives as a NumPy array without dimensions, for msgpack has no complex numbers.
        """
        sizes = given(n=n, incx=incx, incy=incy) or _pair(x, y)
        return self._request(blas.Dot(x=x, y=y, conjugate=conjugate, **sizes), deadline_s)

    def asum(self, x: Operand, *, n: Int = None, incx: Int = None, deadline_s: float | None = None) -> Reply:
        """Compute Σ|x_i|, of complex arrays Σ(|re x_i| + |im x_i|). The result is a float."""
        return self._request(blas.Asum(x=x, **(given(n=n, incx=incx) or _unordered(x))), deadline_s)

    def iamax(self, x: Operand, *, n: Int = None, incx: Int = None, deadline_s: float | None = None) -> Reply:
        """Find the largest |x_i|, of complex arrays |re x_i| + |im x_i|.

        The result is its index, an int; the smallest if there are several, *counted from 1* as in BLAS; 0 if x is
        empty. Not for negative strides, which BLAS does not have here. Undefined where there are NaNs.
        """
        return self._request(blas.Iamax(x=x, **(given(n=n, incx=incx) or _single(x))), deadline_s)

    def iamin(self, x: Operand, *, n: Int = None, incx: Int = None, deadline_s: float | None = None) -> Reply:
        """Find the smallest |x_i|, of complex arrays |re x_i| + |im x_i|. Otherwise as `iamax`."""
        return self._request(blas.Iamin(x=x, **(given(n=n, incx=incx) or _single(x))), deadline_s)

    def copy(
        self,
        x: Operand,
        y: Operand,
        *,
        n: Int = None,
        incx: Int = None,
        incy: Int = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute y ← x."""
        return self._request(blas.Copy(x=x, y=y, **(given(n=n, incx=incx, incy=incy) or _pair(x, y))), deadline_s)

    def swap(
        self,
        x: Operand,
        y: Operand,
        *,
        n: Int = None,
        incx: Int = None,
        incy: Int = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Exchange x and y; both are written."""
        return self._request(blas.Swap(x=x, y=y, **(given(n=n, incx=incx, incy=incy) or _pair(x, y))), deadline_s)

    def rot(
        self,
        x: Operand,
        y: Operand,
        *,
        c: SupportsFloat,
        s: Number,
        n: Int = None,
        incx: Int = None,
        incy: Int = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Rotate: (x_i, y_i) ← (c·x_i + s·y_i, c·y_i - conj(s)·x_i); c is real, both x and y are written."""
        sizes = given(n=n, incx=incx, incy=incy) or _pair(x, y)
        return self._request(blas.Rot(x=x, y=y, c=float(c), s=scalar("s", s), **sizes), deadline_s)

    def gemv(
        self,
        a: Operand,
        x: Operand,
        y: Operand,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans: blas.Trans = "N",
        m: Int = None,
        n: Int = None,
        lda: Int = None,
        incx: Int = None,
        incy: Int = None,
        order: blas.Order | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute y ← alpha·op(A)·x + beta·y. A is m by n; x has as many elements as op(A) columns, y as rows."""
        sizes = given(order, m=m, n=n, lda=lda, incx=incx, incy=incy)
        if not sizes:
            order = common_order("a", a.layout)
            op = matrix("a", a.layout, order, trans)
            (columns, incx), (rows, incy) = vector("x", x.layout), vector("y", y.layout)
            rows, columns = (
                agreed("the length of y", a=op.rows, y=rows),
                agreed("the length of x", a=op.columns, x=columns),
            )
            m, n = blas.stored(trans, rows, columns)
            sizes = {"m": m, "n": n, "lda": op.leading, "incx": incx, "incy": incy}
        return self._request(
            blas.Gemv(
                a=a,
                x=x,
                y=y,
                alpha=scalar("alpha", alpha),
                beta=scalar("beta", beta),
                trans=trans,
                order=order or "column",
                **sizes,
            ),
            deadline_s,
        )

    def ger(
        self,
        a: Operand,
        x: Operand,
        y: Operand,
        *,
        alpha: Number = 1.0,
        conjugate: bool = False,
        m: Int = None,
        n: Int = None,
        lda: Int = None,
        incx: Int = None,
        incy: Int = None,
        order: blas.Order | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute A ← alpha·x·yᵀ + A, with the conjugate of y if wanted.

        A, which is written, is m by n; x has m elements, y has n.
        """
        sizes = given(order, m=m, n=n, lda=lda, incx=incx, incy=incy)
        if not sizes:
            order = common_order("a", a.layout)
            target = matrix("a", a.layout, order)
            (rows, incx), (columns, incy) = vector("x", x.layout), vector("y", y.layout)
            sizes = {
                "m": agreed("m", a=target.rows, x=rows),
                "n": agreed("n", a=target.columns, y=columns),
                "lda": target.leading,
                "incx": incx,
                "incy": incy,
            }
        return self._request(
            blas.Ger(
                a=a, x=x, y=y, alpha=scalar("alpha", alpha), conjugate=conjugate, order=order or "column", **sizes
            ),
            deadline_s,
        )

    def geam(
        self,
        a: Operand,
        b: Operand,
        c: Operand,
        *,
        alpha: Number = 1.0,
        beta: Number = 1.0,
        trans_a: blas.Trans = "N",
        trans_b: blas.Trans = "N",
        m: Int = None,
        n: Int = None,
        lda: Int = None,
        ldb: Int = None,
        ldc: Int = None,
        order: blas.Order | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute C ← alpha·op(A) + beta·op(B). C, op(A) and op(B) are m by n.

        C may be A or B itself, with op "N". With `beta` 0 this transposes, scales and copies.
        """
        sizes = given(order, m=m, n=n, lda=lda, ldb=ldb, ldc=ldc)
        if not sizes:
            order = common_order("c", c.layout, a=(a.layout, trans_a), b=(b.layout, trans_b))
            first, second = matrix("a", a.layout, order, trans_a), matrix("b", b.layout, order, trans_b)
            target = matrix("c", c.layout, order)
            trans_a, trans_b = first.trans, second.trans
            sizes = {
                "m": agreed("m", a=first.rows, b=second.rows, c=target.rows),
                "n": agreed("n", a=first.columns, b=second.columns, c=target.columns),
                "lda": first.leading,
                "ldb": second.leading,
                "ldc": target.leading,
            }
        return self._request(
            blas.Geam(
                a=a,
                b=b,
                c=c,
                alpha=scalar("alpha", alpha),
                beta=scalar("beta", beta),
                trans_a=trans_a,
                trans_b=trans_b,
                order=order or "column",
                **sizes,
            ),
            deadline_s,
        )

    def syrk(
        self,
        a: Operand,
        c: Operand,
        *,
        uplo: blas.Triangle,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans: blas.Trans = "N",
        n: Int = None,
        k: Int = None,
        lda: Int = None,
        ldc: Int = None,
        order: blas.Order | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute C ← alpha·op(A)·op(A)ᵀ + beta·C in one triangle of C, `uplo` "L" or "U"; the other is not touched.

        op(A) is n by k, C is n by n. Nothing is conjugated: "C" is refused for complex arrays.
        """
        sizes = given(order, n=n, k=k, lda=lda, ldc=ldc)
        if not sizes:
            order = common_order("c", c.layout)
            factor, target = matrix("a", a.layout, order, trans), matrix("c", c.layout, order)
            trans = trans if trans == "C" else factor.trans
            sizes = {
                "n": agreed("n", a=factor.rows, c=target.rows, columns_of_c=target.columns),
                "k": factor.columns,
                "lda": factor.leading,
                "ldc": target.leading,
            }
        return self._request(
            blas.Syrk(
                a=a,
                c=c,
                uplo=uplo,
                alpha=scalar("alpha", alpha),
                beta=scalar("beta", beta),
                trans=trans,
                order=order or "column",
                **sizes,
            ),
            deadline_s,
        )

    def trsm(
        self,
        a: Operand,
        b: Operand,
        *,
        uplo: blas.Triangle,
        side: blas.Side = "L",
        alpha: Number = 1.0,
        trans: blas.Trans = "N",
        diag: blas.Diagonal = "N",
        m: Int = None,
        n: Int = None,
        lda: Int = None,
        ldb: Int = None,
        order: blas.Order | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Solve op(A)·X = alpha·B with `side` "L", or X·op(A) = alpha·B with "R"; X overwrites B, which is m by n.

        A is triangular, m by m or n by n: only its triangle `uplo`, "L" or "U", is read, and with `diag` "U" not the
        diagonal, which is taken for ones. A zero on the diagonal gives infinities and NaNs, not an error.
        """
        sizes = given(order, m=m, n=n, lda=lda, ldb=ldb)
        if not sizes:
            order = common_order("b", b.layout, a=(a.layout, trans))
            factor, target = matrix("a", a.layout, order, trans), matrix("b", b.layout, order)
            k = target.rows if side == "L" else target.columns
            agreed("the size of a", rows=factor.rows, columns=factor.columns, b=k)
            trans = factor.trans
            uplo = _OTHER.get(uplo, uplo) if factor.flipped else uplo
            sizes = {"m": target.rows, "n": target.columns, "lda": factor.leading, "ldb": target.leading}
        return self._request(
            blas.Trsm(
                a=a,
                b=b,
                side=side,
                uplo=uplo,
                alpha=scalar("alpha", alpha),
                trans=trans,
                diag=diag,
                order=order or "column",
                **sizes,
            ),
            deadline_s,
        )

    def gemm(
        self,
        a: Operand,
        b: Operand,
        c: Operand,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans_a: blas.Trans = "N",
        trans_b: blas.Trans = "N",
        m: Int = None,
        n: Int = None,
        k: Int = None,
        lda: Int = None,
        ldb: Int = None,
        ldc: Int = None,
        order: blas.Order | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute C ← alpha·op(A)·op(B) + beta·C. op(A) is m by k, op(B) k by n, C m by n."""
        sizes = given(order, m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc)
        if not sizes:
            order, trans_a, trans_b, product = _product((a.layout, trans_a), (b.layout, trans_b), c.layout)
            sizes = dict(product)
        return self._request(
            blas.Gemm(
                a=a,
                b=b,
                c=c,
                alpha=scalar("alpha", alpha),
                beta=scalar("beta", beta),
                trans_a=trans_a,
                trans_b=trans_b,
                order=order or "column",
                **sizes,
            ),
            deadline_s,
        )

    def gemm_strided_batched(
        self,
        a: Operand,
        b: Operand,
        c: Operand,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans_a: blas.Trans = "N",
        trans_b: blas.Trans = "N",
        m: Int = None,
        n: Int = None,
        k: Int = None,
        lda: Int = None,
        ldb: Int = None,
        ldc: Int = None,
        stride_a: Int = None,
        stride_b: Int = None,
        stride_c: Int = None,
        batch_size: Int = None,
        order: blas.Order | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute C_i ← alpha·op(A_i)·op(B_i) + beta·C_i for each i along the first dimension of three.

        A or B of two dimensions is the same for every i. Each matrix is as in `gemm`; those of C must not overlap,
        but may be interleaved by rows or columns.
        """
        sizes = given(
            order,
            m=m,
            n=n,
            k=k,
            lda=lda,
            ldb=ldb,
            ldc=ldc,
            stride_a=stride_a,
            stride_b=stride_b,
            stride_c=stride_c,
            batch_size=batch_size,
        )
        if not sizes:
            check_dimensions("c", c.layout, 3)
            batches = {name: _batch(name, array.layout) for name, array in (("a", a), ("b", b), ("c", c))}
            one_a, one_b, one_c = (one for one, _, _ in batches.values())
            order, trans_a, trans_b, product = _product((one_a, trans_a), (one_b, trans_b), one_c)
            sizes = dict(product)
            lengths = {name: size for name, (_, _, size) in batches.items() if size is not None}
            sizes |= {f"stride_{name}": stride for name, (_, stride, _) in batches.items()}
            sizes["batch_size"] = agreed("batch_size", **lengths)
        return self._request(
            blas.GemmStridedBatched(
                a=a,
                b=b,
                c=c,
                alpha=scalar("alpha", alpha),
                beta=scalar("beta", beta),
                trans_a=trans_a,
                trans_b=trans_b,
                order=order or "column",
                **sizes,
            ),
            deadline_s,
        )


Reference: Final = Blas

_OTHER: Final[dict[blas.Triangle, blas.Triangle]] = {"L": "U", "U": "L"}


def _single(x: Operand) -> dict[str, int]:
    n, incx = vector("x", x.layout)
    return {"n": n, "incx": incx}


def _unordered(x: Operand) -> dict[str, int]:
    """Return the sizes of a vector where the order of its elements does not count, so a negative stride may turn."""
    n, incx = vector("x", x.layout)
    return {"n": n, "incx": abs(incx)}


def _pair(x: Operand, y: Operand) -> dict[str, int]:
    (length_x, incx), (length_y, incy) = vector("x", x.layout), vector("y", y.layout)
    return {"n": agreed("n", x=length_x, y=length_y), "incx": incx, "incy": incy}


@functools.lru_cache(KNOWN)
def _product(
    a: tuple[Layout, blas.Trans], b: tuple[Layout, blas.Trans], c: Layout
) -> tuple[blas.Order, blas.Trans, blas.Trans, Mapping[str, int]]:
    """Return order, ops and sizes of C ← op(A)·op(B)."""
    order = common_order("c", c, a=a, b=b)
    left, right, target = matrix("a", a[0], order, a[1]), matrix("b", b[0], order, b[1]), matrix("c", c, order)
    sizes = {
        "m": agreed("m", a=left.rows, c=target.rows),
        "n": agreed("n", b=right.columns, c=target.columns),
        "k": agreed("k", a=left.columns, b=right.rows),
        "lda": left.leading,
        "ldb": right.leading,
        "ldc": target.leading,
    }
    return order, left.trans, right.trans, sizes


def _batch(name: str, layout: Layout) -> tuple[Layout, int, int | None]:
    """Return one matrix of a batch, the stride to the next, and their number; None and no stride if it is for all."""
    check_dimensions(name, layout, 2, 3)
    if len(layout.shape) == 2:
        return layout, 0, None
    size, *shape = layout.shape
    stride, *strides = layout.strides
    one = layout._replace(shape=tuple(shape), strides=tuple(strides))
    return one, in_elements(name, layout, stride) if size > 1 else 0, size
