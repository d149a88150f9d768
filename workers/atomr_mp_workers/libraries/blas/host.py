"""BLAS on the host backend, with NumPy and SciPy.

NumPy's own `matmul` calls BLAS in place for every matrix here, whatever its order and leading dimension; for `trsm` a
matrix that is not in column order without gaps is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.libraries import unlocked
from atomr_mp_workers.libraries.base import Library, array, number
from atomr_mp_workers.libraries.blas.trials import products
from atomr_mp_workers.libraries.scaling import times, weighted_sum, widened
from atomr_mp_workers.memory.blocks import Holder

Array = npt.NDArray[Any]


class HostBlas(Library):
    """Dense linear algebra on NumPy's arrays."""

    xp: ClassVar = np

    def trials(self, holder: Holder) -> Iterable[LibraryRequest]:
        """Return some products."""
        return products(self.context, holder)

    def axpy(self, request: blas.Axpy) -> None:
        """Compute y ← alpha·x + y."""
        if alpha := number(request.alpha):
            y, x = array(request.y), widened(array(request.x))
            product = times(alpha, x)
            y[...] = np.add(product, y, out=None if product is x else product)

    def scal(self, request: blas.Scal) -> None:
        """Compute x ← alpha·x."""
        x = array(request.x)
        x[...] = times(number(request.alpha), widened(x))

    def nrm2(self, request: blas.Nrm2) -> float:
        """Return √Σ|x_i|²."""
        return unlocked.nrm2(array(request.x))

    def dot(self, request: blas.Dot) -> float | complex:
        """Return Σ x_i·y_i."""
        product: float | complex = (np.vdot if request.conjugate else np.dot)(array(request.x), array(request.y)).item()
        return product

    def inner(self, request: blas.Inner) -> None:
        """Compute out ← Σ x_i·y_i."""
        x, y = array(request.x), array(request.y)
        array(request.out)[...] = (np.vdot if request.conjugate else np.dot)(x, y)

    def asum(self, request: blas.Asum) -> float:
        """Return Σ|x_i|."""
        return float(_magnitudes(array(request.x)).sum())

    def iamax(self, request: blas.Iamax) -> int:
        """Return the smallest index of the largest |x_i|."""
        return int(_magnitudes(array(request.x)).argmax())

    def iamin(self, request: blas.Iamin) -> int:
        """Return the smallest index of the smallest |x_i|."""
        return int(_magnitudes(array(request.x)).argmin())

    def copy(self, request: blas.VectorCopy) -> None:
        """Compute y ← x."""
        array(request.y)[...] = array(request.x)

    def swap(self, request: blas.Swap) -> None:
        """Exchange x and y."""
        x, y = array(request.x), array(request.y)
        x[...], y[...] = y.copy(), x.copy()

    def rot(self, request: blas.Rot) -> None:
        """Compute (x_i, y_i) ← (c·x_i + s·y_i, c·y_i - conj(s)·x_i)."""
        x, y, c, s = array(request.x), array(request.y), number(request.c), number(request.s)
        x[...], y[...] = c * x + s * y, c * y - s.conjugate() * x

    def gemv(self, request: blas.Gemv) -> None:
        """Compute y ← alpha·a·x + beta·y."""
        y = array(request.y)
        y[...] = _sum(request, _conjugated(array(request.a), wanted=request.conj_a), array(request.x), y)

    def ger(self, request: blas.Ger) -> None:
        """Compute a ← alpha·x·yᵀ + a."""
        if alpha := number(request.alpha):
            a = array(request.a)
            a += np.outer(times(alpha, array(request.x)), _conjugated(array(request.y), wanted=request.conjugate))

    def geam(self, request: blas.Geam) -> None:
        """Compute c ← alpha·a + beta·b."""
        a = _conjugated(array(request.a), wanted=request.conj_a)
        b = _conjugated(array(request.b), wanted=request.conj_b)
        terms = (number(request.alpha), lambda: widened(a)), (number(request.beta), lambda: widened(b))
        array(request.c)[...] = weighted_sum(*terms)

    def syrk(self, request: blas.Syrk) -> None:
        """Compute c ← alpha·a·aᵀ + beta·c in the named triangle."""
        a, c = array(request.a), array(request.c)
        lower = np.tri(len(c), dtype=bool)
        np.copyto(c, _sum(request, a, a.T, c), where=lower if request.uplo == "L" else lower.T)

    def trsm(self, request: blas.Trsm) -> None:
        """Solve a·x = alpha·b, or x·a = alpha·b; x overwrites b."""
        a, b = array(request.a), array(request.b)
        a, alpha = _conjugated(a, wanted=request.conj_a), number(request.alpha)
        b[...] = unlocked.trsm(alpha, a, b, side=request.side, lower=request.uplo == "L", diag=request.diag)

    def gemm(self, request: blas.Gemm | blas.GemmStridedBatched) -> None:
        """Compute c ← alpha·a·b + beta·c."""
        a = _conjugated(array(request.a), wanted=request.conj_a)
        b = _conjugated(array(request.b), wanted=request.conj_b)
        c = array(request.c)
        if request.alpha == 1 and request.beta == 0 and c.dtype.itemsize > 2:
            np.matmul(a, b, out=c)
        else:
            c[...] = _sum(request, a, b, c)

    gemm_strided_batched = gemm


def _conjugated(matrix: Array, *, wanted: bool) -> Array:
    return matrix.conj() if wanted else matrix


def _sum(request: blas.Gemv | blas.Syrk | blas.Gemm | blas.GemmStridedBatched, a: Array, b: Array, c: Array) -> Any:
    """Return alpha·a·b + beta·c, for half precision in float32."""
    product = number(request.alpha), lambda: np.matmul(widened(a), widened(b))
    return weighted_sum(product, (number(request.beta), lambda: widened(c)))


def _magnitudes(x: Array) -> Array:
    """Return |x_i|; for complex numbers |re x_i| + |im x_i|."""
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


Implementation: Final = HostBlas
