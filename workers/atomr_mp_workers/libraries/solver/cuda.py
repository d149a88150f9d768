"""Solvers on the CUDA backend, with cuSOLVER and cuBLAS on the memory itself.

Both have matrices in column order. The transpose of a Hermitian matrix is its conjugate, so the Cholesky factor of one
in row order is what is found for the other triangle, transposed: nothing is copied. LU and QR factors of the transpose
are others, so what lies in row order is copied for them.

Nothing here waits for the device. Sizes of 0 are not left to the libraries, nor are pivots that they would follow
outside of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import cupy
import numpy as np
from nvmath.bindings import cusolverDn

from atomr_mp import errors
from atomr_mp.protocol.declaration.strides import batch_stride, leading
from atomr_mp.protocol.libraries import blas, solver
from atomr_mp.protocol.libraries.base import to_scalar
from atomr_mp_workers.libraries.base import Library, LibraryContext, address, array, given
from atomr_mp_workers.libraries.blas.cuda import CudaBlas
from atomr_mp_workers.libraries.blas.kinds import KINDS as FACTORS
from atomr_mp_workers.libraries.blas.kinds import LEFT, LOWER, NON_UNIT, OPS, RIGHT, UPPER
from atomr_mp_workers.libraries.matrices import orders, told
from atomr_mp_workers.libraries.slots import Slots
from atomr_mp_workers.libraries.solver import verdicts
from atomr_mp_workers.libraries.solver.columns import columns, pointers
from atomr_mp_workers.libraries.solver.handle import Handle, Workspace, room
from atomr_mp_workers.libraries.solver.kinds import KINDS
from atomr_mp_workers.requests.request import Later

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.device.cuda_streams import CudaStream

INFO: Final = np.dtype(np.int32)
PAIR: Final = np.dtype(np.int64)


class CudaSolver(Library):
    """Solvers of device memory.

    Handles are made by the first request, and stay until the process ends. Plans are made with a handle of their own,
    for those of programs are made on another thread.
    """

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._made: Handle | None = None
        self._sizes: Handle | None = None
        self._slots: Final = Slots()
        self._blas: Final = CudaBlas(context, stream)

    # --- LU -----------------------------------------------------------------------------------------------------------

    def prepare_getrf(self, request: solver.Getrf) -> Workspace:
        """Return what getrf works in."""
        if not request.a.size:
            return Workspace(0)
        (m, n), data, asked = request.a.shape, KINDS[request.a.dtype].data, self._asked
        lda = leading(request.a.layout, "column") or m
        return Workspace(
            *cusolverDn.xgetrf_buffer_size(asked.handle, asked.params, m, n, data, asked.anywhere, lda, data)
        )

    def getrf(self, request: solver.Getrf, plan: Workspace) -> Later | None:
        """Factor a = p·l·u in place."""
        if not request.a.size:
            return None
        (m, n), data, made = request.a.shape, KINDS[request.a.dtype].data, self._handle
        a, (work, keep) = columns(request.a), room(plan)
        judged = self._told(
            lambda info: cusolverDn.xgetrf(
                made.handle, made.params, m, n, data, a.address, a.leading, address(request.pivots), data, *work, info
            ),
            verdicts.singular,
            keep,
        )
        pivots = array(request.pivots)
        pivots -= 1  # LAPACK counts from 1
        a.back(request.a)
        return judged

    def getrf_batched(self, request: solver.GetrfBatched) -> Later | None:
        """Factor each matrix of a batch in place."""
        if not request.a.size:
            return None
        *batch, n, _ = request.a.shape
        a, pivots = columns(request.a), array(request.pivots)
        at, found = pointers(a.address, a.stride_bytes, tuple(batch)), cupy.empty(pivots.shape, INFO)
        info = cupy.empty(at.shape, INFO)
        KINDS[request.a.dtype].cublas.getrf_batched(
            self._blas.handle, n, at.data.ptr, a.leading, found.data.ptr, info.data.ptr, at.size
        )
        pivots[...] = found - 1
        a.back(request.a)
        return self._judged(info, lambda number, code: verdicts.singular(code, number))

    def getrs(self, request: solver.Getrs) -> Later | None:
        """Solve by the factors of getrf; x overwrites b."""
        (n, nrhs), data, made = request.b.shape, KINDS[request.a.dtype].data, self._handle
        pivots, judged = self._rows(request.pivots, n)
        if not request.b.size:
            return judged
        a, b, info = columns(request.a), columns(request.b), cupy.empty(1, INFO)
        cusolverDn.xgetrs(
            made.handle, made.params, OPS[request.trans], n, nrhs, data, a.address, a.leading, pivots.data.ptr,
            data, b.address, b.leading, info.data.ptr,
        )  # fmt: skip
        b.back(request.b)
        return judged

    def getrs_batched(self, request: solver.GetrsBatched) -> Later | None:
        """Solve by the factors of getrf_batched; x overwrites b."""
        *batch, n, nrhs = request.b.shape
        pivots, judged = self._rows(request.pivots, n)
        if not request.b.size:
            return judged
        pivots = pivots.astype(INFO)
        a, b, info = columns(request.a), columns(request.b), np.zeros(1, INFO)
        left, right = (pointers(each.address, each.stride_bytes, tuple(batch)) for each in (a, b))
        KINDS[request.a.dtype].cublas.getrs_batched(
            self._blas.handle, OPS[request.trans], n, nrhs, left.data.ptr, a.leading, pivots.data.ptr, right.data.ptr,
            b.leading, info.ctypes.data, left.size,
        )  # fmt: skip
        b.back(request.b)
        return judged

    def _rows(self, pivots: Any, n: int) -> tuple[Any, Later | None]:
        """Return pivots as LAPACK counts them, those that are no rows replaced, and what raises if there were some."""
        given_rows = array(pivots)
        if not given_rows.size:
            return given_rows, None
        wrong = (given_rows < 0) | (given_rows >= n)
        batched = given_rows.ndim > 1
        judged = self._judged(wrong, lambda number, _: verdicts.outside(number % n, number // n if batched else -1))
        return cupy.where(wrong, 1, given_rows + 1), judged

    # --- Cholesky -----------------------------------------------------------------------------------------------------

    def prepare_potrf(self, request: solver.Potrf) -> Workspace:
        """Return what potrf works in."""
        n, data, asked = request.a.shape[0], KINDS[request.a.dtype].data, self._asked
        if not n:
            return Workspace(0)
        order = orders(request.a.layout)[0]
        return Workspace(
            *cusolverDn.xpotrf_buffer_size(
                asked.handle, asked.params, LOWER, n, data, asked.anywhere, leading(request.a.layout, order), data
            )
        )

    def potrf(self, request: solver.Potrf, plan: Workspace) -> Later | None:
        """Factor a = l·lᴴ or uᴴ·u in place."""
        n, data, made = request.a.shape[0], KINDS[request.a.dtype].data, self._handle
        if not n:
            return None
        order, (work, keep) = orders(request.a.layout)[0], room(plan)
        uplo = LOWER if (request.uplo == "L") == (order == "column") else UPPER
        lda = leading(request.a.layout, order)
        return self._told(
            lambda info: cusolverDn.xpotrf(
                made.handle, made.params, uplo, n, data, address(request.a), lda, data, *work, info
            ),
            verdicts.indefinite,
            keep,
        )

    def potrf_batched(self, request: solver.PotrfBatched) -> Later | None:
        """Factor each matrix of a batch in place."""
        if not request.a.size:
            return None
        *batch, n, _ = request.a.shape
        layout = request.a.layout
        order = orders(layout)[0]
        uplo = LOWER if (request.uplo == "L") == (order == "column") else UPPER
        at = pointers(address(request.a), batch_stride(layout) or 0, tuple(batch))
        info = cupy.empty(at.shape, INFO)
        KINDS[request.a.dtype].cusolver.potrf_batched(
            self._handle.handle, uplo, n, at.data.ptr, leading(layout, order), info.data.ptr, at.size
        )
        return self._judged(info, lambda number, code: verdicts.indefinite(code, number))

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
        if not request.b.size:
            return
        lower = request.uplo == "L"
        self._trsm_batched(request, lower=True, adjoint=not lower)
        self._trsm_batched(request, lower=False, adjoint=lower)

    def _trsm_batched(self, request: solver.PotrsBatched, *, lower: bool, adjoint: bool) -> None:
        """Solve with the triangles of a batch, or with their conjugate transposes; `lower` says which they then are."""
        *batch, n, nrhs = request.b.shape
        layout, target, dtype = request.a.layout, given(request.b).layout, request.a.dtype
        if adjoint:
            *outer, last, first = range(len(layout.shape))
            layout = layout.transposed((*outer, first, last))
        conjugated = adjoint and dtype.startswith("complex")
        order = orders(target)[0]
        a = told(layout, order, conjugated=conjugated)
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

    # --- the handle, and what the data have come to -------------------------------------------------------------------

    @property
    def _handle(self) -> Handle:
        if self._made is None:
            self._made = Handle(cast("CudaStream", self.stream).stream.ptr)
        return self._made

    @property
    def _asked(self) -> Handle:
        if self._sizes is None:
            self._sizes = Handle()
        return self._sizes

    def _told(
        self, enqueue: Callable[[int], None], failure: Callable[[int], errors.NumericalError], keep: Any
    ) -> Later:
        """Have a routine write its info where the host can read it; `keep` lives until it has ended."""
        slot = self._slots.take()
        try:
            enqueue(slot.address)
        except BaseException:
            self._slots.give(slot)
            raise

        def read(_keep: Any = keep) -> None:
            info = self._slots.read(slot, INFO)
            if info:
                raise _refused(info) if info < 0 else failure(info)

        return Later(read)

    def _judged(self, info: Any, failure: Callable[[int, int], errors.NumericalError]) -> Later:
        """Return what raises for the first element of info that is not 0, by its number and what it is."""
        flat = info.reshape(-1)
        first = (flat != 0).argmax()
        found = cupy.stack([first, flat.take(first)]).astype(PAIR)
        slot = self._slots.take()
        pair = slot.memory.view(PAIR)
        try:
            found.get(out=pair, blocking=False)
        except BaseException:
            self._slots.give(slot)
            raise

        def read() -> None:
            number, code = (int(each) for each in pair)
            self._slots.give(slot)
            if code:
                raise _refused(code) if code < 0 else failure(number, code)

        return Later(read)


def _refused(info: int) -> errors.LibraryError:
    """Return the error of a parameter that the library does not take: a mistake of ours."""
    return errors.LibraryError(f"argument {-info} is wrong", library="cusolver", status=info)


def _conjugate(operand: Any) -> None:
    """Conjugate in place."""
    values = array(operand)
    values[...] = values.conj()


Implementation: Final = CudaSolver
