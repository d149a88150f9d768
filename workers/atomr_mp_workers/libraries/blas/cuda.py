"""BLAS on the CUDA backend, with cuBLAS on the memory itself.

cuBLAS has matrices in column order. One in row order is to it the transpose of what is meant, so requests in that
order are asked for transposed; what is conjugated but not transposed then, cuBLAS cannot express but as a product of
matrices.

Nothing here waits for the device. Sizes of 0, and factors of 0 where cuBLAS does not promise to leave unread what they
multiply, are not left to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import cupy
import numpy as np
from cupy.lib.stride_tricks import as_strided
from nvmath.bindings import cublas

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.libraries.base import Scalar, scalar
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import Later, Library, LibraryContext
from atomr_mp_workers.libraries.blas.kinds import (
    ALGORITHM,
    DEVICE,
    HOST,
    INDEX,
    KINDS,
    LEFT,
    LOWER,
    MATH,
    NON_UNIT,
    NOT_SUPPORTED,
    OPS,
    RIGHT,
    UNIT,
    UPPER,
    ElementKind,
)
from atomr_mp_workers.libraries.slots import Slots

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.device.cuda_streams import CudaStream
    from atomr_mp_workers.memory.arrays import DeviceArray

WORKSPACE_BYTES: Final = 2**25
"""What cuBLAS recommends from Hopper on, and more than enough before (cublasSetWorkspace)."""


class CudaBlas(Library):
    """Dense linear algebra on device memory.

    The handle is made by the first request. It has a workspace of its own, so that results do not depend on what else
    runs, and stays until the process ends.
    """

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._made = 0
        self._workspace: Any = None
        self._slots: Final = Slots()

    def axpy(self, request: blas.Axpy) -> None:
        """Compute y ← alpha·x + y."""
        if not request.n or not scalar(request.alpha):
            return
        kind = KINDS[request.x.dtype]
        alpha, _keep = kind.factors[request.alpha]
        x, y = _address(request.x), _address(request.y)
        if kind.routines is not None:
            kind.routines.axpy(self._handle, request.n, alpha, x, request.incx, y, request.incy)
        else:
            of, wide = kind.data, kind.scale
            cublas.axpy_ex_64(self._handle, request.n, alpha, wide, x, of, request.incx, y, of, request.incy, wide)

    def scal(self, request: blas.Scal) -> None:
        """Compute x ← alpha·x."""
        if not request.n:
            return
        if not scalar(request.alpha):
            _multiply(_vector(request.x, request.n, request.incx), 0.0)
            return
        kind = KINDS[request.x.dtype]
        alpha, _keep = kind.factors[request.alpha]
        address = _address(request.x)
        if kind.routines is not None:
            kind.routines.scal(self._handle, request.n, alpha, address, request.incx)
        else:
            of, wide = kind.data, kind.scale
            cublas.scal_ex_64(self._handle, request.n, alpha, wide, address, of, request.incx, wide)

    def nrm2(self, request: blas.Nrm2) -> float | Later:
        """Return √Σ|x_i|², without overflow on the way."""
        kind = KINDS[request.x.dtype]
        return self._reduce(kind.routines.nrm2, kind.reals.dtype, request) if request.n else 0.0

    def dot(self, request: blas.Dot) -> float | complex | Later:
        """Return Σ x_i·y_i."""
        kind = KINDS[request.x.dtype]
        if not request.n:
            return kind.factors.dtype.type(0).item()  # type: ignore[no-any-return]
        routine = kind.routines.dotc if request.conjugate else kind.routines.dot
        return self._reduce(routine, kind.factors.dtype, request, _address(request.y), request.incy)

    def asum(self, request: blas.Asum) -> float | Later:
        """Return Σ|x_i|."""
        kind = KINDS[request.x.dtype]
        return self._reduce(kind.routines.asum, kind.reals.dtype, request) if request.n else 0.0

    def iamax(self, request: blas.Iamax) -> int | Later:
        """Return the smallest 1-based index of the largest |x_i|."""
        kind = KINDS[request.x.dtype]
        return self._reduce(kind.routines.iamax, INDEX, request) if request.n else 0

    def iamin(self, request: blas.Iamin) -> int | Later:
        """Return the smallest 1-based index of the smallest |x_i|."""
        kind = KINDS[request.x.dtype]
        return self._reduce(kind.routines.iamin, INDEX, request) if request.n else 0

    def copy(self, request: blas.Copy) -> None:
        """Compute y ← x."""
        if request.n:
            copy = KINDS[request.x.dtype].routines.copy
            copy(self._handle, request.n, *_pair(request))

    def swap(self, request: blas.Swap) -> None:
        """Exchange x and y."""
        if request.n:
            swap = KINDS[request.x.dtype].routines.swap
            swap(self._handle, request.n, *_pair(request))

    def rot(self, request: blas.Rot) -> None:
        """Compute (x_i, y_i) ← (c·x_i + s·y_i, c·y_i - conj(s)·x_i)."""
        if request.n:
            kind = KINDS[request.x.dtype]
            c, _keep_c = kind.reals[request.c]
            s, _keep_s = kind.factors[request.s]
            kind.routines.rot(self._handle, request.n, *_pair(request), c, s)

    def gemv(self, request: blas.Gemv) -> None:
        """Compute y ← alpha·op(A)·x + beta·y."""
        rows, columns = blas.stored(request.trans, request.m, request.n)
        if not rows:
            return
        if not columns or not scalar(request.alpha):
            _scale(_vector(request.y, rows, request.incy), request.beta)
            return
        kind = KINDS[request.a.dtype]
        if request.order == "row" and request.trans == "C" and kind.is_complex:
            self._gemv_conjugated(request, kind)
            return
        if request.order == "column":
            trans, m, n = OPS[request.trans], request.m, request.n
        else:
            trans, m, n = OPS["T" if request.trans == "N" else "N"], request.n, request.m
        alpha, _keep_alpha = kind.factors[request.alpha]
        beta, _keep_beta = kind.factors[request.beta]
        a, x, y = _address(request.a), _address(request.x), _address(request.y)
        kind.routines.gemv(
            self._handle, trans, m, n, alpha, a, request.lda, x, request.incx, beta, y, request.incy
        )  # fmt: skip

    def ger(self, request: blas.Ger) -> None:
        """Compute A ← alpha·x·yᵀ + A."""
        if not request.m or not request.n or not scalar(request.alpha):
            return
        kind = KINDS[request.a.dtype]
        if request.order == "row" and request.conjugate and kind.is_complex:
            self._ger_conjugated(request, kind)
            return
        alpha, _keep = kind.factors[request.alpha]
        a = _address(request.a)
        x = _address(request.x), request.incx
        y = _address(request.y), request.incy
        if request.order == "column":
            ger = kind.routines.gerc if request.conjugate else kind.routines.ger
            ger(self._handle, request.m, request.n, alpha, *x, *y, a, request.lda)
        else:  # Aᵀ ← alpha·y·xᵀ + Aᵀ
            kind.routines.ger(self._handle, request.n, request.m, alpha, *y, *x, a, request.lda)

    def geam(self, request: blas.Geam) -> None:
        """Compute C ← alpha·op(A) + beta·op(B)."""
        if not request.m or not request.n:
            return
        kind = KINDS[request.c.dtype]
        m, n = (request.m, request.n) if request.order == "column" else (request.n, request.m)
        alpha, _keep_alpha = kind.factors[request.alpha]
        beta, _keep_beta = kind.factors[request.beta]
        kind.routines.geam(
            self._handle,
            OPS[request.trans_a],  # op(A)ᵀ is op(Aᵀ), for each op
            OPS[request.trans_b],
            m,
            n,
            alpha,
            _address(request.a),
            request.lda,
            beta,
            _address(request.b),
            request.ldb,
            _address(request.c),
            request.ldc,
        )

    def syrk(self, request: blas.Syrk) -> None:
        """Compute C ← alpha·op(A)·op(A)ᵀ + beta·C in the named triangle."""
        n, k = request.n, request.k
        if not n:
            return
        if not k or not scalar(request.alpha):
            c = _matrix(request.c, n, n, request.ldc, request.order)
            scaled = c.copy()
            _scale(scaled, request.beta)
            lower = cupy.tri(n, dtype=bool)
            cupy.copyto(c, scaled, where=lower if request.uplo == "L" else lower.T)
            return
        kind = KINDS[request.a.dtype]
        trans, lower_half = request.trans != "N", request.uplo == "L"
        if request.order == "row":
            trans, lower_half = not trans, not lower_half
        alpha, _keep_alpha = kind.factors[request.alpha]
        beta, _keep_beta = kind.factors[request.beta]
        kind.routines.syrk(
            self._handle,
            LOWER if lower_half else UPPER,
            OPS["T" if trans else "N"],
            n,
            k,
            alpha,
            _address(request.a),
            request.lda,
            beta,
            _address(request.c),
            request.ldc,
        )

    def trsm(self, request: blas.Trsm) -> None:
        """Solve op(A)·X = alpha·B, or X·op(A) = alpha·B; X overwrites B."""
        m, n = request.m, request.n
        if not m or not n:
            return
        if not scalar(request.alpha):
            _scale(_matrix(request.b, m, n, request.ldb, request.order), 0.0)
            return
        kind = KINDS[request.a.dtype]
        left, lower = request.side == "L", request.uplo == "L"
        if request.order == "row":  # Xᵀ·op(A)ᵀ = alpha·Bᵀ, and op(A)ᵀ is op(Aᵀ)
            m, n, left, lower = n, m, not left, not lower
        alpha, _keep = kind.factors[request.alpha]
        kind.routines.trsm(
            self._handle,
            LEFT if left else RIGHT,
            LOWER if lower else UPPER,
            OPS[request.trans],
            UNIT if request.diag == "U" else NON_UNIT,
            m,
            n,
            alpha,
            _address(request.a),
            request.lda,
            _address(request.b),
            request.ldb,
        )

    def gemm(self, request: blas.Gemm) -> None:
        """Compute C ← alpha·op(A)·op(B) + beta·C."""
        m, n, k, alpha = request.m, request.n, request.k, request.alpha
        if not m or not n:
            return
        if not k or not scalar(alpha):
            _scale(_matrix(request.c, m, n, request.ldc, request.order), request.beta)
            return
        kind = KINDS[request.c.dtype]
        of = kind.data
        factor, _keep_alpha = kind.factors[alpha]
        beta, _keep_beta = kind.factors[request.beta]
        op_a, a, lda = OPS[request.trans_a], _address(request.a), request.lda
        op_b, b, ldb = OPS[request.trans_b], _address(request.b), request.ldb
        c, ldc = _address(request.c), request.ldc
        if request.order == "row":  # Cᵀ ← alpha·op(B)ᵀ·op(A)ᵀ + beta·Cᵀ, and op(A)ᵀ is op(Aᵀ)
            m, n, op_a, a, lda, op_b, b, ldb = n, m, op_b, b, ldb, op_a, a, lda
        cublas.gemm_ex_64(
            self._made or self._handle, op_a, op_b, m, n, k, factor, a, of, lda, b, of, ldb, beta, c, of, ldc,
            kind.compute, ALGORITHM,
        )  # fmt: skip

    def gemm_strided_batched(self, request: blas.GemmStridedBatched) -> None:
        """Compute C_i ← alpha·op(A_i)·op(B_i) + beta·C_i."""
        m, n, k, batch = request.m, request.n, request.k, request.batch_size
        if not m or not n or not batch:
            return
        if not k or not scalar(request.alpha):
            _scale(_matrix(request.c, m, n, request.ldc, request.order, (batch,), request.stride_c), request.beta)
            return
        kind = KINDS[request.c.dtype]
        of = kind.data
        alpha, _keep_alpha = kind.factors[request.alpha]
        beta, _keep_beta = kind.factors[request.beta]
        op_a, op_b = OPS[request.trans_a], OPS[request.trans_b]
        a = _address(request.a), of, request.lda, request.stride_a
        b = _address(request.b), of, request.ldb, request.stride_b
        c = _address(request.c), of, request.ldc, request.stride_c
        if request.order == "row":  # as for gemm
            m, n, op_a, a, op_b, b = n, m, op_b, b, op_a, a
        try:
            cublas.gemm_strided_batched_ex_64(
                self._handle, op_a, op_b, m, n, k, alpha, *a, *b, beta, *c, batch, kind.compute, ALGORITHM
            )
        except cublas.cuBLASError as error:
            # Seen with cuBLAS 13.1 where each product has one element, and operands overlap from one to the next.
            if error.status != NOT_SUPPORTED:
                raise
            item_bytes = dtypes.ITEM_BYTES[request.c.dtype]
            for number in range(batch):
                at = [(start + number * stride * item_bytes, of, ld) for start, _, ld, stride in (a, b, c)]
                cublas.gemm_ex_64(
                    self._handle, op_a, op_b, m, n, k, alpha, *at[0], *at[1], beta, *at[2], kind.compute, ALGORITHM
                )

    # --- conjugated, but not transposed -------------------------------------------------------------------------------

    def _gemv_conjugated(self, request: blas.Gemv, kind: ElementKind) -> None:
        """Compute yᵀ ← alpha·xᵀ·Bᴴ + beta·yᵀ, where B, n by m, is what A in row order is to cuBLAS.

        A vector is a matrix of one row: its increment is the leading dimension.
        """
        x = _row(request.x, request.m, request.incx)
        y = _row(request.y, request.n, request.incy)
        a = _address(request.a), request.lda
        self._product(kind, ("N", "C"), (1, request.n, request.m), request.alpha, x[:2], a, request.beta, y[:2])
        if y.copy is not None:
            _vector(request.y, request.n, request.incy)[...] = y.copy

    def _ger_conjugated(self, request: blas.Ger, kind: ElementKind) -> None:
        """Compute B ← alpha·conj(y)·xᵀ + B, where B, n by m, is what A in row order is to cuBLAS."""
        x = _row(request.x, request.m, request.incx)
        y = _row(request.y, request.n, request.incy)
        a = _address(request.a), request.lda
        self._product(kind, ("C", "N"), (request.n, request.m, 1), request.alpha, y[:2], x[:2], 1.0, a)

    def _product(
        self,
        kind: ElementKind,
        ops: tuple[str, str],
        sizes: tuple[int, int, int],
        alpha: Scalar,
        a: tuple[int, int],
        b: tuple[int, int],
        beta: Scalar,
        c: tuple[int, int],
    ) -> None:
        """Multiply matrices in column order, given by their addresses and leading dimensions."""
        factor, _keep_alpha = kind.factors[alpha]
        other, _keep_beta = kind.factors[beta]
        of = kind.data
        (a_at, lda), (b_at, ldb), (c_at, ldc) = a, b, c
        cublas.gemm_ex_64(
            self._handle, OPS[ops[0]], OPS[ops[1]], *sizes, factor, a_at, of, lda, b_at, of, ldb,
            other, c_at, of, ldc, kind.compute, ALGORITHM,
        )  # fmt: skip

    # --- the handle ---------------------------------------------------------------------------------------------------

    @property
    def _handle(self) -> int:
        return self._made or self._make()

    def _make(self) -> int:
        workspace = cupy.cuda.alloc(WORKSPACE_BYTES)
        handle: int = cublas.create()
        cublas.set_stream(handle, cast("CudaStream", self.stream).stream.ptr)
        cublas.set_workspace(handle, workspace.ptr, WORKSPACE_BYTES)  # after the stream, which resets it
        cublas.set_math_mode(handle, MATH)
        self._workspace, self._made = workspace, handle
        return handle

    def _reduce(self, routine: Callable[..., None], dtype: np.dtype[Any], request: Any, *more: int) -> Later:
        """Have a number written to where the host can read it when the device has done so."""
        handle = self._handle
        slot = self._slots.take()
        cublas.set_pointer_mode(handle, DEVICE)
        try:
            routine(handle, request.n, _address(request.x), request.incx, *more, slot.address)
        except BaseException:
            self._slots.give(slot)
            raise
        finally:
            cublas.set_pointer_mode(handle, HOST)
        return Later(functools.partial(self._slots.read, slot, dtype))


class _Row(NamedTuple):
    """A vector as a matrix of one row."""

    address: int
    leading: int
    copy: Any
    """What is at the address if it is not the operand."""


def _row(operand: Operand, n: int, increment: int) -> _Row:
    """Return a vector as a matrix of one row; a leading dimension is positive, so what runs backwards is copied."""
    if increment > 0:
        return _Row(_address(operand), increment, None)
    copy = _vector(operand, n, increment).copy()
    return _Row(copy.data.ptr, 1, copy)


def _pair(request: blas.Copy | blas.Swap | blas.Rot) -> tuple[int, int, int, int]:
    return _address(request.x), request.incx, _address(request.y), request.incy


def _address(operand: Any) -> int:
    """Return where an operand's memory begins: its lowest element; here it is an array of this device, no ref."""
    layout = operand.layout
    offset: int = layout.offset
    for stride in layout.strides:
        if stride < 0:
            offset, _ = layout.span
    address: int = operand.block.memory.address
    return address + offset


def _vector(operand: Operand, n: int, increment: int) -> Any:
    """Return a vector as a CuPy array; with a negative increment it begins at the far end of its elements."""
    return cast("DeviceArray", operand).elements[: 1 + (n - 1) * abs(increment)][::increment]


def _matrix(
    operand: Operand,
    rows: int,
    columns: int,
    leading: int,
    order: blas.Order,
    batch: tuple[int, ...] = (),
    stride: int = 0,
) -> Any:
    """Return a matrix as a CuPy array; for a `batch` of matrices `stride` apart, all of them."""
    elements = cast("DeviceArray", operand).elements
    steps = (*(stride for _ in batch), *((1, leading) if order == "column" else (leading, 1)))
    return as_strided(elements, (*batch, rows, columns), [elements.itemsize * step for step in steps])


def _scale(array: Any, factor: Scalar) -> None:
    """Multiply in place; by 0 without reading, so that a NaN is gone."""
    value = scalar(factor)
    if not value:
        array.fill(0)
    elif value != 1:
        _multiply(array, value)


def _multiply(array: Any, value: complex) -> None:
    """Multiply in place, half precision in float32."""
    wide = array.astype(cupy.float32) if array.itemsize == 2 else array
    array[...] = (wide * value).astype(array.dtype, copy=False)


Implementation: Final = CudaBlas
