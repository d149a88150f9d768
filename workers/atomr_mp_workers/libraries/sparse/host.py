"""Sparse matrices on the host backend, with SciPy. Half precision is widened, since SciPy lacks it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.sparse.linalg import spsolve_triangular

from atomr_mp.protocol.libraries import sparse
from atomr_mp.protocol.libraries.base import scalar
from atomr_mp_workers.libraries.base import array, number
from atomr_mp_workers.libraries.scaling import times, weighted_sum, widened
from atomr_mp_workers.libraries.sparse import structures
from atomr_mp_workers.libraries.sparse.base import MatrixForm, SparseLibrary, bits
from atomr_mp_workers.libraries.sparse.structures import CheckedStructure
from atomr_mp_workers.requests.request import Next

Array = npt.NDArray[Any]

TERMS: Final = 2**22
"""Most products that a sampled product has in memory at a time."""


class _Unlocked:
    """NumPy, whose `cumsum` keeps the interpreter's lock while it converts: here elements are converted before."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def cumsum(self, values: Array, dtype: Any) -> Array:
        """Return the sums of all elements up to each."""
        return np.cumsum(values.astype(dtype))


class HostSparse(SparseLibrary):
    """Sparse linear algebra on NumPy's arrays."""

    xp: ClassVar[Any] = _Unlocked()

    def _numbers(self, pair: Array) -> Callable[[], list[int]]:
        return pair.tolist

    def spmv(self, request: sparse.Spmv) -> None:
        """Compute y ← alpha·a·x + beta·y."""
        y = array(request.y)
        y[...] = self._sum(request, request.x, y)

    def spmm(self, request: sparse.Spmm) -> None:
        """Compute c ← alpha·a·b + beta·c."""
        c = array(request.c)
        c[...] = self._sum(request, request.b, c)

    def sddmm(self, request: sparse.Sddmm) -> None:
        """Compute out ← alpha·(a·b) + beta·out where c has elements."""
        rows, columns, _ = structures.entries(np, self.found(request.c))
        if request.c.transposed:
            rows, columns = columns, rows
        a, b, out = widened(array(request.a)), widened(array(request.b)).T, array(request.out)
        alpha, beta = number(request.alpha), number(request.beta)
        step = max(1, TERMS // max(1, a.shape[1]))
        for begin in range(0, out.size, step):
            part = slice(begin, begin + step)
            product = functools.partial(np.einsum, "ik,ik->i", a[rows[part]], b[columns[part]])
            out[part] = weighted_sum((alpha, product), (beta, functools.partial(widened, out[part])))

    def _blocked(self, form: MatrixForm, rows: Array, columns: Array, values: Array) -> Next:
        """Find the blocks that have an element, and answer with a matrix of them."""
        to, shape, blocksize, index = form
        (r, c), height = blocksize, shape[0] // blocksize[0]
        order = structures.by_rows(np, rows // r, columns // c)
        rows, columns = rows[order], columns[order]
        outer, inner = rows // r, columns // c
        begins = np.ones(rows.size, bool)
        begins[1:] = (outer[1:] != outer[:-1]) | (inner[1:] != inner[:-1])
        block = np.cumsum(begins) - 1
        outer, inner = outer[begins], inner[begins]
        place = np.arange(outer.size) - np.searchsorted(outer, outer)
        width = int(place.max(initial=-1)) + 1

        def fill() -> list[Any]:
            is_bsr = to == "bsr"
            # All memory is taken before any of it is written, which may take long.
            kept = self._room(index, (height + 1,) if is_bsr else (height, width))
            lengths = (outer.size, r, c) if is_bsr else (shape[0], width * c)
            data = self.context.store.buffers.allocate(self.context.holder(), str(values.dtype), lengths)
            target = bits(data.array)
            target[...] = 0
            if is_bsr:
                target[block, rows % r, columns % c] = bits(values)[order]
                self._write_offsets(kept, outer)
                return self._answer(CheckedStructure(to, shape, blocksize, self._kept(inner.astype(index)), kept), data)
            target[rows, place[block] * c + columns % c] = bits(values)[order]
            kept[...] = -1
            kept[outer, place] = inner
            return self._answer(CheckedStructure(to, shape, blocksize, kept, filled=kept.size - outer.size), data)

        return Next(fill)

    def _write_offsets(self, indptr: Array, outer: Array) -> None:
        """Write them in the memory of the elements, however many rows there are."""
        indptr[...] = 0
        found, counts = np.unique(outer, return_counts=True)
        indptr[found + 1] = counts
        np.cumsum(indptr, dtype=indptr.dtype, out=indptr)

    def _sum(self, request: sparse.Spmv | sparse.Spmm, b: Any, c: Array) -> Any:
        """Return alpha·a·b + beta·c; the operand of a factor of 0 is not read."""
        self.found(request.a)  # whatever alpha is: the matrix is checked

        def product() -> Any:
            a = self._matrix(request.a)
            return (a.conj() if request.conj_a else a) @ widened(array(b))

        return weighted_sum((number(request.alpha), product), (number(request.beta), lambda: widened(c)))

    def _product(self, request: sparse.Spgemm) -> Next:
        made = (self._matrix(request.a) @ self._matrix(request.b)).asformat(request.a.format)
        data = times(scalar(request.alpha), made.data).astype(request.a.data.dtype)
        return self._multiplied(request, made.indices, made.indptr, data)

    def _solved(self, checked: Callable[[], None], solve: Callable[[], None]) -> None:
        checked()
        solve()

    def _solve_vector(self, request: sparse.Spsv) -> None:
        self._solve_columns(request)

    def _solve_matrix(self, request: sparse.Spsm) -> None:
        self._solve_columns(request)

    def _solve_columns(self, request: sparse.Spsv | sparse.Spsm) -> None:
        x, b, lower, alpha = array(request.x), array(request.b), request.uplo == "L", number(request.alpha)
        triangle = (scipy.sparse.tril if lower else scipy.sparse.triu)(self._matrix(request.a), format="csr")
        if request.conj_a:
            triangle = triangle.conj()
        x[...] = spsolve_triangular(triangle, times(alpha, b), lower=lower, unit_diagonal=request.diag == "U")

    def _matrix(self, told: sparse.Matrix) -> Any:
        """Return a matrix as a SciPy matrix over its own values."""
        it, values = self.found(told), widened(array(told.data))
        made = copy.copy(it.plan("scipy", lambda: _template(it)))
        if it.stored == "blocked_ell":
            size, (height, width) = it.blocksize[0], it.indices.shape
            blocks = values.reshape(height, size, width, size).transpose(0, 2, 1, 3)
            values = blocks[it.indices >= 0]
        made.data = values
        return made.T if told.transposed else made


def _template(it: CheckedStructure) -> Any:
    """Return a SciPy matrix whose values are still to be set."""
    shape, indices, indptr = it.shape, it.indices, it.indptr
    nothing = np.broadcast_to(np.float32(0), (it.count,))
    if it.stored == "coo":
        return scipy.sparse.coo_array((nothing, (indptr, indices)), shape=shape)
    if it.stored in sparse.BLOCKED:
        there = indices >= 0
        if it.stored == "blocked_ell":
            indptr = np.concatenate([[0], np.cumsum(there.sum(1))])
            indices = indices[there]
        blocks = np.broadcast_to(np.float32(0), (indices.size, *it.blocksize))
        return scipy.sparse.bsr_array((blocks, indices, indptr), shape=shape, blocksize=it.blocksize)
    made = (scipy.sparse.csr_array if it.stored == "csr" else scipy.sparse.csc_array)(
        (nothing, indices, indptr), shape=shape
    )
    made.has_canonical_format = True
    return made


Implementation: Final = HostSparse
