"""BLAS on the host backend, with NumPy and SciPy.

NumPy's own `matmul` calls BLAS in place for every matrix here, whatever its order and leading dimension; SciPy's
wrappers copy what is not in column order and without gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided
from scipy.linalg import blas as scipy_blas

from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.libraries.base import scalar
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import Library

if TYPE_CHECKING:
    from atomr_mp_workers.memory.arrays import DeviceArray

Array = npt.NDArray[Any]


class HostBlas(Library):
    """Dense linear algebra on NumPy's arrays."""

    def axpy(self, request: blas.Axpy) -> None:
        """Compute y ← alpha·x + y."""
        if alpha := scalar(request.alpha):
            x, y = _pair(request)
            y[...] = alpha * _wide(x) + y

    def scal(self, request: blas.Scal) -> None:
        """Compute x ← alpha·x."""
        x = _vector(request.x, request.n, request.incx)
        x[...] = scalar(request.alpha) * _wide(x)

    def nrm2(self, request: blas.Nrm2) -> float:
        """Return √Σ|x_i|², without overflow on the way."""
        x = _vector(request.x, request.n, request.incx)
        return float(_routine("nrm2", x)(x)) if x.size else 0.0

    def dot(self, request: blas.Dot) -> float | complex:
        """Return Σ x_i·y_i."""
        x, y = _pair(request)
        product: float | complex = (np.vdot if request.conjugate else np.dot)(x, y).item()
        return product

    def asum(self, request: blas.Asum) -> float:
        """Return Σ|x_i|."""
        return float(_magnitudes(request).sum())

    def iamax(self, request: blas.Iamax) -> int:
        """Return the smallest 1-based index of the largest |x_i|."""
        return int(_magnitudes(request).argmax()) + 1 if request.n else 0

    def iamin(self, request: blas.Iamin) -> int:
        """Return the smallest 1-based index of the smallest |x_i|."""
        return int(_magnitudes(request).argmin()) + 1 if request.n else 0

    def copy(self, request: blas.Copy) -> None:
        """Compute y ← x."""
        x, y = _pair(request)
        y[...] = x

    def swap(self, request: blas.Swap) -> None:
        """Exchange x and y."""
        x, y = _pair(request)
        x[...], y[...] = y.copy(), x.copy()

    def rot(self, request: blas.Rot) -> None:
        """Compute (x_i, y_i) ← (c·x_i + s·y_i, c·y_i - conj(s)·x_i)."""
        x, y = _pair(request)
        c, s = request.c, scalar(request.s)
        x[...], y[...] = c * x + s * y, c * y - s.conjugate() * x

    def gemv(self, request: blas.Gemv) -> None:
        """Compute y ← alpha·op(A)·x + beta·y."""
        rows, columns = blas.stored(request.trans, request.m, request.n)
        a = _matrix(request.a, rows, columns, request.lda, request.order, request.trans)
        x = _vector(request.x, columns, request.incx)
        y = _vector(request.y, rows, request.incy)
        y[...] = _sum(request, a, x, y)

    def ger(self, request: blas.Ger) -> None:
        """Compute A ← alpha·x·yᵀ + A."""
        if alpha := scalar(request.alpha):
            x = _vector(request.x, request.m, request.incx)
            y = _vector(request.y, request.n, request.incy)
            a = _matrix(request.a, request.m, request.n, request.lda, request.order)
            a += np.outer(alpha * x, y.conj() if request.conjugate else y)

    def geam(self, request: blas.Geam) -> None:
        """Compute C ← alpha·op(A) + beta·op(B)."""
        m, n, order = request.m, request.n, request.order
        a = _matrix(request.a, m, n, request.lda, order, request.trans_a)
        b = _matrix(request.b, m, n, request.ldb, order, request.trans_b)
        c = _matrix(request.c, m, n, request.ldc, order)
        c[...] = _times(scalar(request.alpha), a) + _times(scalar(request.beta), b)

    def syrk(self, request: blas.Syrk) -> None:
        """Compute C ← alpha·op(A)·op(A)ᵀ + beta·C in the named triangle."""
        n = request.n
        a = _matrix(request.a, n, request.k, request.lda, request.order, request.trans)
        c = _matrix(request.c, n, n, request.ldc, request.order)
        lower = np.tri(n, dtype=bool)
        np.copyto(c, _sum(request, a, a.T, c), where=lower if request.uplo == "L" else lower.T)

    def trsm(self, request: blas.Trsm) -> None:
        """Solve op(A)·X = alpha·B, or X·op(A) = alpha·B; X overwrites B."""
        if not request.m or not request.n:
            return  # SciPy refuses what is empty
        a = _matrix(request.a, request.k, request.k, request.lda, request.order)
        b = _matrix(request.b, request.m, request.n, request.ldb, request.order)
        b[...] = _routine("trsm", b)(
            scalar(request.alpha),
            a,
            b,
            side=request.side == "R",
            lower=request.uplo == "L",
            trans_a="NTC".index(request.trans),
            diag=request.diag == "U",
        )

    def gemm(self, request: blas.Gemm) -> None:
        """Compute C ← alpha·op(A)·op(B) + beta·C."""
        _gemm(request)

    def gemm_strided_batched(self, request: blas.GemmStridedBatched) -> None:
        """Compute C_i ← alpha·op(A_i)·op(B_i) + beta·C_i."""
        _gemm(request, (request.batch_size,), request.stride_a, request.stride_b, request.stride_c)


def _gemm(
    request: blas.Gemm | blas.GemmStridedBatched,
    batch: tuple[int, ...] = (),
    stride_a: int = 0,
    stride_b: int = 0,
    stride_c: int = 0,
) -> None:
    m, n, k, order = request.m, request.n, request.k, request.order
    a = _matrix(request.a, m, k, request.lda, order, request.trans_a, batch, stride_a)
    b = _matrix(request.b, k, n, request.ldb, order, request.trans_b, batch, stride_b)
    c = _matrix(request.c, m, n, request.ldc, order, "N", batch, stride_c)
    if scalar(request.alpha) == 1 and scalar(request.beta) == 0 and _wide(c) is c:
        np.matmul(a, b, out=c)
    else:
        c[...] = _sum(request, a, b, c)


def _sum(request: blas.Gemv | blas.Syrk | blas.Gemm | blas.GemmStridedBatched, a: Array, b: Array, c: Array) -> Any:
    """Return alpha·a·b + beta·c, for half precision in float32."""
    alpha, beta = scalar(request.alpha), scalar(request.beta)
    product = alpha * np.matmul(_wide(a), _wide(b)) if alpha else 0.0
    return product + _times(beta, c)


def _times(factor: complex, array: Array) -> Any:
    return factor * _wide(array) if factor else 0.0


def _wide(array: Array) -> Array:
    """Return an array in the type that is computed with: float32 for half precision, else its own."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


def _magnitudes(request: blas.Asum | blas.Iamax | blas.Iamin) -> Array:
    """Return |x_i|, of complex numbers |re x_i| + |im x_i|."""
    x = _vector(request.x, request.n, request.incx)
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


def _pair(request: blas.Axpy | blas.Dot | blas.Copy | blas.Swap | blas.Rot) -> tuple[Array, Array]:
    return _vector(request.x, request.n, request.incx), _vector(request.y, request.n, request.incy)


def _vector(operand: Operand, n: int, increment: int) -> Array:
    """Return a vector; with a negative increment it begins at the far end of its elements."""
    extent = 1 + (n - 1) * abs(increment) if n else 0
    return _elements(operand)[:extent][::increment]


def _matrix(
    operand: Operand,
    rows: int,
    columns: int,
    leading: int,
    order: blas.Order,
    trans: blas.Trans = "N",
    batch: tuple[int, ...] = (),
    stride: int = 0,
) -> Array:
    """Return op(A) of `rows` and `columns`; for a `batch` of matrices `stride` apart, all of them."""
    elements = _elements(operand)
    steps = (1, leading) if order == "column" else (leading, 1)
    shape = (*batch, *blas.stored(trans, rows, columns))
    matrix = as_strided(elements, shape, [elements.itemsize * step for step in (*(stride for _ in batch), *steps)])
    if trans == "N":
        return matrix
    return matrix.mT if trans == "T" else matrix.mT.conj()


def _elements(operand: Operand) -> Array:
    """Return what is in an operand's memory; here it is an array of this device, no ref."""
    elements: Array = cast("DeviceArray", operand).elements
    return elements


def _routine(name: str, array: Array) -> Any:
    """Return SciPy's routine for an array's type."""
    return scipy_blas.get_blas_funcs(name, dtype=array.dtype)


Implementation: Final = HostBlas
