"""QR factors on CUDA, and problems solved with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy
import numpy as np
from nvmath.bindings import cusolverDn

from atomr_mp.protocol.libraries import blas, solver
from atomr_mp_workers.libraries.base import address, array
from atomr_mp_workers.libraries.blas.kinds import LEFT, OPS, RIGHT
from atomr_mp_workers.libraries.solver import verdicts
from atomr_mp_workers.libraries.solver.columns import (
    Columns,
    Scratch,
    columns,
    duplicate,
    empty,
    in_columns,
    leading_of,
)
from atomr_mp_workers.libraries.solver.handle import Room, WorkSizes
from atomr_mp_workers.libraries.solver.kinds import KINDS
from atomr_mp_workers.libraries.solver.routines import INFO, SolverRoutines, kept
from atomr_mp_workers.requests.request import Later

SIDES = {"L": LEFT, "R": RIGHT}


class TwoParts(NamedTuple):
    """The plan of a request that factors a matrix and then uses the factors."""

    factors: WorkSizes
    reflectors: WorkSizes


class OrthogonalSolvers(SolverRoutines):
    """Requests that use QR factors."""

    def prepare_geqrf(self, request: solver.Geqrf) -> WorkSizes:
        """Return the workspace sizes of geqrf."""
        m, n = request.a.shape
        return self._geqrf_workspace(request.a.dtype, m, n, leading_of(request.a.layout, m))

    def geqrf(self, request: solver.Geqrf, plan: WorkSizes) -> Later | None:
        """Factor a = q·r in place."""
        a, room = columns(request.a), self._room(plan)
        self._geqrf(request.a.dtype, a, address(request.tau), room)
        a.back(request.a)
        return kept(room.host)

    def prepare_orgqr(self, request: solver.Orgqr | solver.Ungqr) -> WorkSizes:
        """Return the workspace sizes of orgqr."""
        (m, n), (k,) = request.a.shape, request.tau.shape
        return self._orgqr_workspace(request.a.dtype, m, n, k, leading_of(request.a.layout, m))

    def orgqr(self, request: solver.Orgqr | solver.Ungqr, plan: WorkSizes) -> None:
        """Overwrite reflectors with the first columns of q."""
        a = columns(request.a)
        self._orgqr(request.a.dtype, a, array(request.tau), plan)
        a.back(request.a)

    prepare_ungqr, ungqr = prepare_orgqr, orgqr

    def prepare_ormqr(self, request: solver.Ormqr | solver.Unmqr) -> WorkSizes:
        """Return the workspace sizes of ormqr."""
        (rows, _), (m, n), side, op = request.a.shape, request.c.shape, request.side, request.trans
        lda, ldc = leading_of(request.a.layout, rows), leading_of(request.c.layout, m)
        return self._ormqr_workspace(request.a.dtype, side, op, (m, n, request.tau.shape[0]), lda, ldc)

    def ormqr(self, request: solver.Ormqr | solver.Unmqr, plan: WorkSizes) -> None:
        """Multiply c by q or its adjoint."""
        a, c = columns(request.a), columns(request.c)
        self._ormqr(request.a.dtype, request.side, request.trans, a, array(request.tau), c, plan)
        c.back(request.c)

    prepare_unmqr, unmqr = prepare_ormqr, ormqr

    # --- with SciPy's names -------------------------------------------------------------------------------------------

    def prepare_qr(self, request: solver.Qr) -> TwoParts:
        """Return the workspace sizes of the factorisation, and of making q."""
        (m, n), dtype = request.a.shape, request.a.dtype
        width = m if request.mode == "full" else min(m, n)
        factors = self._geqrf_workspace(dtype, m, n, m)
        return TwoParts(factors, self._orgqr_workspace(dtype, m, width, min(m, n), m))

    def qr(self, request: solver.Qr, plan: TwoParts) -> Later | None:
        """Factor a = q·r."""
        q, r, dtype = array(request.q), array(request.r), request.a.dtype
        k = min(request.a.shape)
        a, tau, room = in_columns(duplicate(array(request.a))), cupy.empty(k, q.dtype), self._room(plan.factors)
        self._geqrf(dtype, a, tau.data.ptr, room)
        above = cupy.arange(r.shape[0])[:, None] <= cupy.arange(r.shape[1])
        r[...] = cupy.where(above, a.matrix[: r.shape[0]], 0)
        made = empty(q.shape, q.dtype)
        made[:, :k] = a.matrix[:, :k]
        made[:, k:] = 0
        self._orgqr(dtype, in_columns(made), tau, plan.reflectors)
        q[...] = made
        return kept(room.host)

    def prepare_lstsq(self, request: solver.Lstsq) -> TwoParts:
        """Return the workspace sizes of the factorisation, and of multiplying b or x by q."""
        short, long = sorted(request.a.shape)
        nrhs = 1 if request.b.ndim == 1 else request.b.shape[-1]
        op = "C" if request.a.dtype.startswith("complex") else "T"
        factors = self._geqrf_workspace(request.a.dtype, long, short, long)
        return TwoParts(factors, self._ormqr_workspace(request.a.dtype, "L", op, (long, nrhs, short), long, long))

    def lstsq(self, request: solver.Lstsq, plan: TwoParts) -> Later:
        """Find the shortest x for which a·x is nearest to b."""
        a, b, x, dtype = array(request.a), array(request.b), array(request.x), request.a.dtype
        if b.ndim == 1:
            b, x = b[:, None], x[:, None]
        (m, n), nrhs, adjoint = a.shape, b.shape[-1], "C" if dtype.startswith("complex") else "T"
        factors = in_columns(duplicate(a if m >= n else a.conj().T))
        k, tau, room = min(m, n), cupy.empty(min(m, n), a.dtype), self._room(plan.factors)
        self._geqrf(dtype, factors, tau.data.ptr, room)
        r = factors.matrix[:k]
        sides = in_columns(empty((max(m, n), nrhs), a.dtype))
        sides.matrix[:m] = b
        if m >= n:
            self._ormqr(dtype, "L", adjoint, factors, tau, sides, plan.reflectors)
            self._blas.trsm(blas.Trsm(Scratch(r), Scratch(sides.matrix[:n]), "U"))
        else:
            sides.matrix[m:] = 0
            self._blas.trsm(blas.Trsm(Scratch(r.T), Scratch(sides.matrix[:m]), "L", conj_a=True))
            self._ormqr(dtype, "L", "N", factors, tau, sides, plan.reflectors)
        x[...] = sides.matrix[:n]
        sizes = cupy.abs(cupy.diagonal(r))
        least = float(np.finfo(a.dtype).eps) * max(m, n)
        return self._judged(~(sizes > least * sizes.max()), lambda place, _: verdicts.dependent(place), room.host)

    # --- the routines -------------------------------------------------------------------------------------------------

    def _geqrf_workspace(self, dtype: str, m: int, n: int, lda: int) -> WorkSizes:
        data, asked = KINDS[dtype].data, self._asked
        return self._sized(
            *cusolverDn.xgeqrf_buffer_size(
                asked.handle, asked.params, m, n, data, asked.anywhere, lda, data, asked.anywhere, data
            )
        )

    def _geqrf(self, dtype: str, a: Columns, tau: int, room: Room) -> None:
        (m, n), data, made, info = a.matrix.shape, KINDS[dtype].data, self._handle, cupy.empty(1, INFO)
        cusolverDn.xgeqrf(
            made.handle, made.params, m, n, data, a.address, a.leading, data, tau, data, *room.both, info.data.ptr
        )

    def _orgqr_workspace(self, dtype: str, m: int, n: int, k: int, lda: int) -> WorkSizes:
        asked = self._asked
        lwork = KINDS[dtype].cusolver.orgqr_buffer_size(asked.handle, m, n, k, asked.anywhere, lda, asked.anywhere)
        return self._sized(lwork * np.dtype(dtype).itemsize)

    def _orgqr(self, dtype: str, a: Columns, tau: Any, plan: WorkSizes) -> None:
        (m, n), room, info = a.matrix.shape, self._room(plan), cupy.empty(1, INFO)
        KINDS[dtype].cusolver.orgqr(
            self._handle.handle, m, n, tau.size, a.address, a.leading, tau.data.ptr, *room.device(tau.itemsize),
            info.data.ptr,
        )  # fmt: skip

    def _ormqr_workspace(
        self, dtype: str, side: str, op: str, sizes: tuple[int, int, int], lda: int, ldc: int
    ) -> WorkSizes:
        (m, n, k), asked = sizes, self._asked
        lwork = KINDS[dtype].cusolver.ormqr_buffer_size(
            asked.handle, SIDES[side], OPS[op], m, n, k, asked.anywhere, lda, asked.anywhere, asked.anywhere, ldc
        )
        return self._sized(lwork * np.dtype(dtype).itemsize)

    def _ormqr(self, dtype: str, side: str, op: str, a: Columns, tau: Any, c: Columns, plan: WorkSizes) -> None:
        (m, n), room, info = c.matrix.shape, self._room(plan), cupy.empty(1, INFO)
        KINDS[dtype].cusolver.ormqr(
            self._handle.handle, SIDES[side], OPS[op], m, n, tau.size, a.address, a.leading, tau.data.ptr, c.address,
            c.leading, *room.device(tau.itemsize), info.data.ptr,
        )  # fmt: skip
