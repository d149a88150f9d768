"""LU and Cholesky factors on CUDA, and systems solved with them.

The transpose of a Hermitian matrix is its conjugate, so the Cholesky factor of a matrix in row order is the transposed
factor of the other triangle: nothing is copied. The LU factors of the transpose differ.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cusolverDn

from atomr_mp.protocol.declaration.strides import batch_stride, leading
from atomr_mp.protocol.libraries import blas, solver
from atomr_mp.protocol.libraries.base import to_scalar
from atomr_mp_workers.libraries.base import address, array, given
from atomr_mp_workers.libraries.blas.kinds import KINDS as FACTORS
from atomr_mp_workers.libraries.blas.kinds import LEFT, LOWER, NON_UNIT, OPS, RIGHT, UPPER
from atomr_mp_workers.libraries.matrices import orders, told
from atomr_mp_workers.libraries.solver import verdicts
from atomr_mp_workers.libraries.solver.columns import (
    Columns,
    columns,
    duplicate,
    empty,
    in_columns,
    leading_of,
    pointers,
    triangle,
)
from atomr_mp_workers.libraries.solver.handle import WorkSizes
from atomr_mp_workers.libraries.solver.kinds import KINDS, SolverKind
from atomr_mp_workers.libraries.solver.routines import INFO, SolverRoutines, kept
from atomr_mp_workers.requests.request import Later


class FactorSolvers(SolverRoutines):
    """Requests that use LU or Cholesky factors."""

    # --- LU -----------------------------------------------------------------------------------------------------------

    def prepare_getrf(self, request: solver.Getrf) -> WorkSizes:
        """Return the workspace sizes of getrf."""
        m, n = request.a.shape
        return self._getrf_workspace(request.a.dtype, m, n, leading_of(request.a.layout, m))

    def getrf(self, request: solver.Getrf, plan: WorkSizes) -> Later:
        """Factor a = p·l·u in place."""
        (m, n), data, made = request.a.shape, KINDS[request.a.dtype].data, self._handle
        a, room = columns(request.a), self._room(plan)
        judged = self._told(
            lambda info: cusolverDn.xgetrf(
                made.handle, made.params, m, n, data, a.address, a.leading, address(request.pivots), data, *room.both,
                info,
            ),
            verdicts.singular,
            room.host,
        )  # fmt: skip
        pivots = array(request.pivots)
        pivots -= 1  # LAPACK counts from 1
        a.back(request.a)
        return judged

    def getrf_batched(self, request: solver.GetrfBatched) -> Later:
        """Factor each matrix of a batch in place."""
        *batch, n, _ = request.a.shape
        a = columns(request.a)
        pivots, info = self._getrf_batched(KINDS[request.a.dtype], n, a, tuple(batch))
        array(request.pivots)[...] = pivots - 1
        a.back(request.a)
        return self._judged(info, lambda number, code: verdicts.singular(code, number if batch else -1))

    def getrs(self, request: solver.Getrs) -> Later | None:
        """Solve by the factors of getrf; x overwrites b."""
        n = request.b.shape[-2]
        pivots, judged = self._rows(request.pivots, n)
        if request.b.size:
            a, b = columns(request.a), columns(request.b)
            trans = "T" if request.trans == "C" and not request.a.dtype.startswith("complex") else request.trans
            self._getrs(KINDS[request.a.dtype], OPS[trans], a, pivots, b)
            b.back(request.b)
        return judged

    getrs_batched = getrs

    def _rows(self, operand: Any, n: int) -> tuple[Any, Later | None]:
        """Return pivots in LAPACK's counting, invalid ones replaced, and a `Later` that raises if there were some."""
        pivots = array(operand)
        if not pivots.size:
            return pivots, None
        wrong = (pivots < 0) | (pivots >= n)
        batched = pivots.ndim > 1
        judged = self._judged(wrong, lambda number, _: verdicts.outside(number % n, number // n if batched else -1))
        return cupy.where(wrong, 1, pivots + 1), judged

    def _getrf_workspace(self, dtype: str, m: int, n: int, lda: int) -> WorkSizes:
        data, asked = KINDS[dtype].data, self._asked
        return self._sized(
            *cusolverDn.xgetrf_buffer_size(asked.handle, asked.params, m, n, data, asked.anywhere, lda, data)
        )

    def _getrf_batched(self, kind: SolverKind, n: int, a: Columns, batch: tuple[int, ...]) -> tuple[Any, Any]:
        """Factor each matrix of a batch; return pivots, which count from 1, and infos."""
        at, pivots = pointers(a.address, a.stride_bytes, batch), cupy.empty((*batch, n), INFO)
        info = cupy.empty(at.shape, INFO)
        kind.cublas.getrf_batched(self._blas.handle, n, at.data.ptr, a.leading, pivots.data.ptr, info.data.ptr, at.size)
        return pivots, info

    def _getrs(self, kind: SolverKind, op: int, a: Columns, pivots: Any, b: Columns) -> None:
        """Solve by LU factors; pivots count from 1."""
        *batch, n, nrhs = b.matrix.shape
        count, made = math.prod(batch), self._handle
        if count == 1:
            pivots, info = pivots.astype(np.int64, copy=False), cupy.empty(1, INFO)
            cusolverDn.xgetrs(
                made.handle, made.params, op, n, nrhs, kind.data, a.address, a.leading, pivots.data.ptr, kind.data,
                b.address, b.leading, info.data.ptr,
            )  # fmt: skip
            return
        pivots, checked = pivots.astype(INFO, copy=False), np.zeros(1, INFO)
        left, right = (pointers(each.address, each.stride_bytes, tuple(batch)) for each in (a, b))
        kind.cublas.getrs_batched(
            self._blas.handle, op, n, nrhs, left.data.ptr, a.leading, pivots.data.ptr, right.data.ptr, b.leading,
            checked.ctypes.data, count,
        )  # fmt: skip

    # --- Cholesky -----------------------------------------------------------------------------------------------------

    def prepare_potrf(self, request: solver.Potrf) -> WorkSizes:
        """Return the workspace sizes of potrf."""
        order = orders(request.a.layout)[0]
        return self._potrf_workspace(request.a.dtype, request.a.shape[0], leading(request.a.layout, order))

    def potrf(self, request: solver.Potrf, plan: WorkSizes) -> Later:
        """Factor a = l·lᴴ or uᴴ·u in place."""
        n, order = request.a.shape[0], orders(request.a.layout)[0]
        lower = (request.uplo == "L") == (order == "column")
        return self._potrf(request.a.dtype, n, address(request.a), leading(request.a.layout, order), plan, lower=lower)

    def potrf_batched(self, request: solver.PotrfBatched) -> Later:
        """Factor each matrix of a batch in place."""
        *batch, n, _ = request.a.shape
        layout = request.a.layout
        order = orders(layout)[0]
        lower = (request.uplo == "L") == (order == "column")
        at = pointers(address(request.a), batch_stride(layout) or 0, tuple(batch))
        lda = leading(layout, order)
        a = array(request.a)
        before = a.copy()  # cuSOLVER writes into the other triangle too
        judged = self._potrf_batched(request.a.dtype, n, at, lda, lower=lower, batched=bool(batch))
        touched = cupy.tri(n, dtype=bool)
        a[...] = cupy.where(touched if request.uplo == "L" else touched.T, a, before)
        return judged

    def _potrf_workspace(self, dtype: str, n: int, lda: int) -> WorkSizes:
        data, asked = KINDS[dtype].data, self._asked
        return self._sized(
            *cusolverDn.xpotrf_buffer_size(asked.handle, asked.params, LOWER, n, data, asked.anywhere, lda, data)
        )

    def _potrf(self, dtype: str, n: int, at: int, lda: int, plan: WorkSizes, *, lower: bool) -> Later:
        data, made, room = KINDS[dtype].data, self._handle, self._room(plan)
        uplo = LOWER if lower else UPPER
        return self._told(
            lambda info: cusolverDn.xpotrf(made.handle, made.params, uplo, n, data, at, lda, data, *room.both, info),
            verdicts.indefinite,
            room.host,
        )

    def _potrf_batched(self, dtype: str, n: int, at: Any, lda: int, *, lower: bool, batched: bool = True) -> Later:
        info = cupy.empty(at.shape, INFO)
        KINDS[dtype].cusolver.potrf_batched(
            self._handle.handle, LOWER if lower else UPPER, n, at.data.ptr, lda, info.data.ptr, at.size
        )
        return self._judged(info, lambda number, code: verdicts.indefinite(code, number if batched else -1))

    def potrs(self, request: solver.Potrs) -> None:
        """Solve by the factor of potrf; x overwrites b."""
        a: Any = request.a
        if request.uplo == "L":
            self._blas.trsm(blas.Trsm(a, request.b, "L"))
            self._blas.trsm(blas.Trsm(a.transpose(), request.b, "U", conj_a=True))
        else:
            self._blas.trsm(blas.Trsm(a.transpose(), request.b, "L", conj_a=True))
            self._blas.trsm(blas.Trsm(a, request.b, "U"))

    def potrs_batched(self, request: solver.PotrsBatched) -> None:
        """Solve by the factors of potrf_batched; x overwrites b."""
        lower = request.uplo == "L"
        self._trsm_batched(request, lower=True, adjoint=not lower)
        self._trsm_batched(request, lower=False, adjoint=lower)

    def _trsm_batched(self, request: solver.PotrsBatched, *, lower: bool, adjoint: bool) -> None:
        """Solve with a batch's triangles, or with their conjugate transposes; `lower` says which triangle those are."""
        *batch, n, nrhs = request.b.shape
        layout, target, dtype = request.a.layout, given(request.b).layout, request.a.dtype
        if adjoint:
            *outer, last, first = range(len(layout.shape))
            layout = layout.transposed((*outer, first, last))
        order = orders(target)[0]
        a = told(layout, order, conjugated=adjoint and dtype.startswith("complex"))
        turned = a.copied
        if turned:  # a·conj(x) = conj(b)
            a = told(layout, order)
            _conjugate(request.b)
        left = pointers(address(request.a), batch_stride(layout) or 0, tuple(batch))
        right = pointers(address(request.b), batch_stride(target) or 0, tuple(batch))
        one, _keep = FACTORS[dtype].factors[to_scalar(1.0)]
        KINDS[dtype].cublas.trsm_batched_64(
            self._blas.handle,
            LEFT if order == "column" else RIGHT,
            LOWER if lower == ((a.op == "N") == (order == "column")) else UPPER,
            OPS[a.op],
            NON_UNIT,
            *((n, nrhs) if order == "column" else (nrhs, n)),
            one,
            left.data.ptr,
            a.leading,
            right.data.ptr,
            leading(target, order),
            left.size,
        )
        if turned:
            _conjugate(request.b)

    # --- with SciPy's names -------------------------------------------------------------------------------------------

    def prepare_solve(self, request: solver.Solve | solver.Inv | solver.Det) -> WorkSizes:
        """Return the workspace sizes of a single matrix's factorisation."""
        *batch, n, _ = request.a.shape
        return self._getrf_workspace(request.a.dtype, n, n, n) if math.prod(batch) == 1 else WorkSizes(0)

    prepare_inv = prepare_det = prepare_solve

    def solve(self, request: solver.Solve, plan: WorkSizes) -> Later:
        """Solve a·x = b."""
        b, x = array(request.b), array(request.x)
        if b.ndim == 1:
            b, x = b[:, None], x[:, None]
        return self._solved(request.a, duplicate(b), x, plan)

    def inv(self, request: solver.Inv, plan: WorkSizes) -> Later:
        """Invert each matrix."""
        out = array(request.out)
        unit = empty(out.shape, out.dtype)
        unit[...] = cupy.eye(out.shape[-1], dtype=out.dtype)
        return self._solved(request.a, unit, out, plan)

    def det(self, request: solver.Det, plan: WorkSizes) -> Later | None:
        """Compute determinants."""
        out = array(request.out)
        factors, pivots, info, host = self._lu(request.a, plan)
        n = request.a.shape[-1]
        swaps = (pivots != cupy.arange(1, n + 1)).sum(-1)
        product = cupy.diagonal(factors.matrix, axis1=-2, axis2=-1).prod(-1)
        signed = cupy.where(swaps % 2 == 1, -product, product)
        out[...] = cupy.where(info.reshape(out.shape) > 0, 0, signed)  # whatever was left of a singular one
        return kept(host)

    def prepare_cholesky(self, request: solver.Cholesky) -> WorkSizes:
        """Return the workspace sizes of a single matrix's factorisation."""
        *batch, n, _ = request.a.shape
        return self._potrf_workspace(request.a.dtype, n, n) if math.prod(batch) == 1 else WorkSizes(0)

    def cholesky(self, request: solver.Cholesky, plan: WorkSizes) -> Later:
        """Factor a = uᴴ·u or l·lᴴ."""
        *batch, n, _ = request.a.shape
        a, lower = in_columns(duplicate(array(request.a))), request.lower
        if math.prod(batch) == 1:
            judged = self._potrf(request.a.dtype, n, a.address, a.leading, plan, lower=lower)
        else:
            at = pointers(a.address, a.stride_bytes, tuple(batch))
            judged = self._potrf_batched(request.a.dtype, n, at, a.leading, lower=lower)
        array(request.out)[...] = cupy.where(triangle(n, lower=lower), a.matrix, 0)
        return judged

    def _lu(self, operand: Any, plan: WorkSizes) -> tuple[Columns, Any, Any, Any]:
        """Return LU factors, pivots counted from 1, infos, and host memory to keep."""
        *batch, n, _ = operand.shape
        a, kind = in_columns(duplicate(array(operand))), KINDS[operand.dtype]
        made, room = self._handle, self._room(plan)
        if math.prod(batch) != 1:
            return a, *self._getrf_batched(kind, n, a, tuple(batch)), room.host
        pivots, info = cupy.empty((*batch, n), np.int64), cupy.empty(1, INFO)
        cusolverDn.xgetrf(
            made.handle, made.params, n, n, kind.data, a.address, a.leading, pivots.data.ptr, kind.data, *room.both,
            info.data.ptr,
        )  # fmt: skip
        return a, pivots, info, room.host

    def _solved(self, operand: Any, x: Any, out: Any, plan: WorkSizes) -> Later:
        """Solve a·x = b, where x holds b in column order, and copy x to its output."""
        factors, pivots, info, host = self._lu(operand, plan)
        self._getrs(KINDS[operand.dtype], OPS["N"], factors, pivots, in_columns(x))
        out[...] = x
        batched = operand.ndim > 2
        return self._judged(info, lambda number, code: verdicts.singular(code, number if batched else -1), host)


def _conjugate(operand: Any) -> None:
    """Conjugate in place."""
    values = array(operand)
    values[...] = values.conj()
