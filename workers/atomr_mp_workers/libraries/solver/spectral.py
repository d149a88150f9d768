"""Singular values and eigenvalues on CUDA.

cuSOLVER's iterations never get NaNs and infinities: a matrix with one is zeroed first, and its request fails. cuSOLVER
waits for the device between its steps, and the worker's loop with it.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cusolverDn

from atomr_mp.protocol.libraries import solver
from atomr_mp.protocol.libraries.solver_shapes import real_dtype
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.blas.kinds import LOWER, UPPER
from atomr_mp_workers.libraries.solver import verdicts
from atomr_mp_workers.libraries.solver.columns import (
    Columns,
    Scratch,
    columns,
    duplicate,
    empty,
    in_columns,
    leading_of,
    triangle,
)
from atomr_mp_workers.libraries.solver.handle import WorkSizes
from atomr_mp_workers.libraries.solver.kinds import KINDS, VALUES_ONLY, VECTORS
from atomr_mp_workers.libraries.solver.routines import INFO, SolverRoutines
from atomr_mp_workers.requests.request import Later


class SpectralSolvers(SolverRoutines):
    """Requests for singular values and eigenvalues."""

    def prepare_gesvd(self, request: solver.Gesvd) -> WorkSizes:
        """Return the workspace sizes of gesvd."""
        return self._gesvd_workspace(request.a, request.job, request.a.dtype)

    def gesvd(self, request: solver.Gesvd, plan: WorkSizes) -> Later:
        """Decompose a = u·diag(s)·vh."""
        return self._gesvd(request.a, request.u, request.s, request.vh, request.job, plan)

    def prepare_svd(self, request: solver.Svd) -> WorkSizes:
        """Return the workspace sizes of the decomposition."""
        return self._gesvd_workspace(request.a, "A" if request.full_matrices else "S", request.a.dtype, packed=True)

    def svd(self, request: solver.Svd, plan: WorkSizes) -> Later:
        """Decompose a = u·diag(s)·vh."""
        a, job = _copy(request.a), "A" if request.full_matrices else "S"
        return self._gesvd(a, request.u, request.s, request.vh, job, plan)

    def prepare_svdvals(self, request: solver.Svdvals) -> WorkSizes:
        """Return the workspace sizes of the decomposition."""
        return self._gesvd_workspace(request.a, "N", request.a.dtype, packed=True)

    def svdvals(self, request: solver.Svdvals, plan: WorkSizes) -> Later:
        """Compute singular values."""
        return self._gesvd(_copy(request.a), None, request.s, None, "N", plan)

    def prepare_gesvdj_batched(self, request: solver.GesvdjBatched) -> WorkSizes:
        """Return the workspace sizes of the decompositions."""
        *batch, m, n = request.a.shape
        kind, asked, dtype = KINDS[request.a.dtype].cusolver, self._asked, request.a.dtype
        at = asked.anywhere
        lwork = kind.gesvdj_batched_buffer_size(
            asked.handle, VECTORS, m, n, at, m, at, at, m, at, n, asked.jacobi, math.prod(batch)
        )
        return self._sized(lwork * np.dtype(dtype).itemsize)

    def gesvdj_batched(self, request: solver.GesvdjBatched, plan: WorkSizes) -> Later:
        """Decompose each matrix of a batch, a = u·diag(s)·vᴴ."""
        *batch, m, n = request.a.shape
        u, s, v = (array(each) for each in (request.u, request.s, request.v))
        kind, made, count = KINDS[request.a.dtype].cusolver, self._handle, math.prod(batch)
        a, left, right = (in_columns(each) for each in (duplicate(array(request.a)), _like(u), _like(v)))
        whole = _zeroed(a.matrix)
        values, info = cupy.empty(s.shape, s.dtype), cupy.empty(count, INFO)
        matrices = (
            a.address, a.leading, values.data.ptr, left.address, left.leading, right.address, right.leading
        )  # fmt: skip
        room = self._room(plan)
        kind.gesvdj_batched(
            made.handle, VECTORS, m, n, *matrices, *room.device(u.itemsize), info.data.ptr, made.jacobi, count
        )
        u[...], s[...], v[...] = left.matrix, values, right.matrix
        found = cupy.where(whole.reshape(-1), info, verdicts.NOT_FINITE)
        return self._judged(found, lambda number, code: verdicts.without_values(code, number if batch else -1))

    def prepare_syevd(self, request: solver.Syevd | solver.Heevd) -> WorkSizes:
        """Return the workspace sizes of syevd."""
        n = request.a.shape[0]
        return self._syevd_workspace(request, leading_of(request.a.layout, n), vectors=request.jobz == "V")

    def syevd(self, request: solver.Syevd | solver.Heevd, plan: WorkSizes) -> Later:
        """Decompose a = v·diag(w)·vᴴ; v overwrites a."""
        a, vectors = columns(request.a), request.jobz == "V"
        judged = self._syevd(request, a, plan, lower=request.uplo == "L", vectors=vectors)
        if vectors:
            a.back(request.a)
        return judged

    prepare_heevd, heevd = prepare_syevd, syevd

    def prepare_eigh(self, request: solver.Eigh | solver.Eigvalsh) -> WorkSizes:
        """Return the workspace sizes of the decomposition."""
        return self._syevd_workspace(request, request.a.shape[0], vectors=request.name == "eigh")

    def eigh(self, request: solver.Eigh, plan: WorkSizes) -> Later:
        """Decompose a = v·diag(w)·vᴴ."""
        a = in_columns(duplicate(array(request.a)))
        judged = self._syevd(request, a, plan, lower=request.lower, vectors=True)
        array(request.v)[...] = a.matrix
        return judged

    prepare_eigvalsh = prepare_eigh

    def eigvalsh(self, request: solver.Eigvalsh, plan: WorkSizes) -> Later:
        """Compute eigenvalues."""
        a = in_columns(duplicate(array(request.a)))
        return self._syevd(request, a, plan, lower=request.lower, vectors=False)

    def prepare_sygvd(self, request: solver.Sygvd | solver.Hegvd) -> WorkSizes:
        """Return the workspace sizes of sygvd."""
        (n, _), asked, kind = request.a.shape, self._asked, KINDS[request.a.dtype].cusolver
        lda, ldb = leading_of(request.a.layout, n), leading_of(request.b.layout, n)
        lwork = kind.sygvd_buffer_size(
            asked.handle, request.itype, VECTORS if request.jobz == "V" else VALUES_ONLY,
            LOWER if request.uplo == "L" else UPPER, n, asked.anywhere, lda, asked.anywhere, ldb, asked.anywhere,
        )  # fmt: skip
        return self._sized(lwork * np.dtype(request.a.dtype).itemsize)

    def sygvd(self, request: solver.Sygvd | solver.Hegvd, plan: WorkSizes) -> Later:
        """Solve a·v = w·b·v, or the problem that itype names; v overwrites a, and b's factor its triangle."""
        n = request.a.shape[0]
        a, b, room, info = columns(request.a), columns(request.b), self._room(plan), cupy.empty(1, INFO)
        lower = request.uplo == "L"
        whole = _zeroed(a.matrix, triangle(n, lower=lower)) & _zeroed(b.matrix, triangle(n, lower=lower))
        w = array(request.w)
        KINDS[request.a.dtype].cusolver.sygvd(
            self._handle.handle, request.itype, VECTORS if request.jobz == "V" else VALUES_ONLY,
            LOWER if lower else UPPER, n, a.address, a.leading, b.address, b.leading, w.data.ptr,
            *room.device(a.matrix.itemsize), info.data.ptr,
        )  # fmt: skip
        if request.jobz == "V":
            a.back(request.a)
        b.back(request.b)
        found = cupy.where(whole, info, verdicts.NOT_FINITE)
        return self._judged(found, lambda _, code: verdicts.without_pairs(code, n))

    prepare_hegvd, hegvd = prepare_sygvd, sygvd

    # --- the routines -------------------------------------------------------------------------------------------------

    def _gesvd_workspace(self, a: Any, job: str, dtype: str, *, packed: bool = False) -> WorkSizes:
        (m, n), kind, asked = a.shape, KINDS[dtype], self._asked
        rows, short = max(m, n), min(m, n)
        lda = rows if packed else leading_of(a.layout if m >= n else a.layout.transposed(), rows)
        data, anywhere = kind.data, asked.anywhere
        return self._sized(
            *cusolverDn.xgesvd_buffer_size(
                asked.handle, asked.params, ord(job), ord(job), rows, short, data, anywhere, lda, kind.real, anywhere,
                data, anywhere, rows, data, anywhere, short, data,
            )
        )  # fmt: skip

    def _gesvd(self, a: Any, u: Any, s: Any, vh: Any, job: str, plan: WorkSizes) -> Later:
        """Decompose a, or its transpose if it is wide: a = (vhᵀ·diag(s)·uᵀ)ᵀ. gesvd takes no wide matrices."""
        m, n = a.shape
        if m < n:
            a, u, vh = (None if each is None else each.transpose() for each in (a, vh, u))
        kind, made, room, info = KINDS[a.dtype], self._handle, self._room(plan), cupy.empty(1, INFO)
        (rows, short), matrix = a.shape, columns(a)
        whole = _zeroed(matrix.matrix)
        values = cupy.empty(short, array(s).dtype)
        left, right = (None if job == "N" else columns(each, filled=False) for each in (u, vh))
        cusolverDn.xgesvd(
            made.handle, made.params, ord(job), ord(job), rows, short, kind.data, matrix.address, matrix.leading,
            kind.real, values.data.ptr, kind.data, *_place(left, made.anywhere, rows), kind.data,
            *_place(right, made.anywhere, short), kind.data, *room.both, info.data.ptr,
        )  # fmt: skip
        array(s)[...] = values
        for each, operand in ((left, u), (right, vh)):
            if each is not None:
                each.back(operand)
        found = cupy.where(whole, info, verdicts.NOT_FINITE)
        return self._judged(found, lambda _, code: verdicts.without_values(code), room.host)

    def _syevd_workspace(self, request: Any, lda: int, *, vectors: bool) -> WorkSizes:
        n, kind, asked = request.a.shape[0], KINDS[request.a.dtype], self._asked
        return self._sized(
            *cusolverDn.xsyevd_buffer_size(
                asked.handle, asked.params, VECTORS if vectors else VALUES_ONLY, LOWER, n, kind.data, asked.anywhere,
                lda, kind.real, asked.anywhere, kind.data,
            )
        )  # fmt: skip

    def _syevd(self, request: Any, a: Columns, plan: WorkSizes, *, lower: bool, vectors: bool) -> Later:
        n, kind, made, room = request.a.shape[0], KINDS[request.a.dtype], self._handle, self._room(plan)
        whole = _zeroed(a.matrix, triangle(n, lower=lower))
        w, info = cupy.empty(n, real_dtype(request)), cupy.empty(1, INFO)
        cusolverDn.xsyevd(
            made.handle, made.params, VECTORS if vectors else VALUES_ONLY, LOWER if lower else UPPER, n, kind.data,
            a.address, a.leading, kind.real, w.data.ptr, kind.data, *room.both, info.data.ptr,
        )  # fmt: skip
        array(request.w)[...] = w
        found = cupy.where(whole, info, verdicts.NOT_FINITE)
        return self._judged(found, lambda _, code: verdicts.without_values(code), room.host)


def _copy(operand: Any) -> Scratch:
    """Return a copy in the layout of gesvd, transposed if it is wide."""
    values = array(operand)
    m, n = values.shape
    return Scratch(duplicate(values) if m >= n else duplicate(values.T).T)


def _like(values: Any) -> Any:
    return empty(values.shape, values.dtype)


def _place(vectors: Columns | None, anywhere: int, rows: int) -> tuple[int, int]:
    """Return address and leading dimension of vectors, or of a placeholder."""
    return (anywhere, rows) if vectors is None else (vectors.address, vectors.leading)


def _zeroed(matrix: Any, inside: Any = None) -> Any:
    """Zero the read part of each matrix that has a NaN or an infinity there; return which matrices have none."""
    finite, outside = cupy.isfinite(matrix), False if inside is None else ~inside
    whole = (finite | outside).all(axis=(-2, -1))
    matrix[...] = cupy.where(whole[..., None, None] | outside, matrix, 0)
    return whole
