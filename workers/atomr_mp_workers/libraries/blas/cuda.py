"""BLAS on the CUDA backend, with cuBLAS on the memory itself.

cuBLAS has matrices in column order. `matrices` decides how a matrix in row order is passed. A matrix that is conjugated
without a transpose is copied, or its vectors are conjugated instead.

Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast

import cupy
import numpy as np
from nvmath.bindings import cublas

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.checks import is_zero
from atomr_mp.protocol.declaration.factors import Factor
from atomr_mp.protocol.declaration.strides import Order, batch_stride, leading
from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.libraries.base import LibraryRequest, scalar
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import Library, LibraryContext, address, array, given
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
)
from atomr_mp_workers.libraries.blas.trials import products
from atomr_mp_workers.libraries.matrices import BlasView, orders, told
from atomr_mp_workers.libraries.pointers import FactorPointers, is_array, on_device
from atomr_mp_workers.libraries.scaling import multiply
from atomr_mp_workers.libraries.slots import Slots
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.requests.request import Later

if TYPE_CHECKING:
    from atomr_mp.protocol.declaration.factors import Scalar
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.device.cuda_streams import CudaStream


class CudaBlas(Library):
    """Dense linear algebra on device memory.

    The handle is made before the first request. It uses the stream's workspace, so that results do not depend on other
    work, and stays until the process ends.
    """

    xp: ClassVar = cupy

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._made = 0
        self._slots: Final = Slots()
        self._pointers: Final = FactorPointers(self._read_on_device).of

    def open(self) -> None:
        """Make the handle, and the stream's fixed workspace."""
        if not self._made:
            self._make()

    def trials(self, holder: Holder) -> Iterable[LibraryRequest]:
        """Return some products; the first makes the handle, its workspace and a page of slots."""
        return products(self.context, holder)

    # --- vectors ------------------------------------------------------------------------------------------------------

    def axpy(self, request: blas.Axpy) -> None:
        """Compute y ← alpha·x + y."""
        x, y = _vector(request.x), _vector(request.y)
        kind = KINDS[request.x.dtype]
        of, wide = kind.data, kind.scale
        with self._pointers((kind.factors, request.alpha)) as (alpha,):
            if kind.routines is not None:
                kind.routines.axpy(self._handle, x.n, alpha, x.address, x.increment, y.address, y.increment)
            else:
                cublas.axpy_ex_64(
                    self._handle, x.n, alpha, wide, x.address, of, x.increment, y.address, of, y.increment, wide
                )

    def scal(self, request: blas.Scal) -> None:
        """Compute x ← alpha·x."""
        x = _vector(request.x)
        if not x.n:
            return
        if is_zero(request.alpha):
            multiply(array(request.x), 0.0)
            return
        kind = KINDS[request.x.dtype]
        of, wide = kind.data, kind.scale
        with self._pointers((kind.factors, request.alpha)) as (alpha,):
            if kind.routines is not None:
                kind.routines.scal(self._handle, x.n, alpha, x.address, abs(x.increment))
            else:
                cublas.scal_ex_64(self._handle, x.n, alpha, wide, x.address, of, abs(x.increment), wide)

    def nrm2(self, request: blas.Nrm2) -> Later:
        """Return √Σ|x_i|², without overflow on the way."""
        kind = KINDS[request.x.dtype]
        return self._reduce(kind.routines.nrm2, kind.reals.dtype, request.x)

    def dot(self, request: blas.Dot) -> Later:
        """Return Σ x_i·y_i."""
        kind = KINDS[request.x.dtype]
        routine = kind.routines.dotc if request.conjugate else kind.routines.dot
        return self._reduce(routine, kind.factors.dtype, request.x, request.y)

    def inner(self, request: blas.Inner) -> None:
        """Compute out ← Σ x_i·y_i."""
        kind = KINDS[request.x.dtype]
        routine = kind.routines.dotc if request.conjugate else kind.routines.dot
        self._answer(routine, *_pair(request.x, request.y), address(request.out))

    def asum(self, request: blas.Asum) -> Later:
        """Return Σ|x_i|."""
        kind = KINDS[request.x.dtype]
        return self._reduce(kind.routines.asum, kind.reals.dtype, request.x)

    def iamax(self, request: blas.Iamax) -> Later:
        """Return the smallest index of the largest |x_i|."""
        return self._find(KINDS[request.x.dtype].routines.iamax, request.x)

    def iamin(self, request: blas.Iamin) -> Later:
        """Return the smallest index of the smallest |x_i|."""
        return self._find(KINDS[request.x.dtype].routines.iamin, request.x)

    def copy(self, request: blas.VectorCopy) -> None:
        """Compute y ← x."""
        KINDS[request.x.dtype].routines.copy(self._handle, *_pair(request.x, request.y))

    def swap(self, request: blas.Swap) -> None:
        """Exchange x and y."""
        KINDS[request.x.dtype].routines.swap(self._handle, *_pair(request.x, request.y))

    def rot(self, request: blas.Rot) -> None:
        """Compute (x_i, y_i) ← (c·x_i + s·y_i, c·y_i - conj(s)·x_i)."""
        kind = KINDS[request.x.dtype]
        with self._pointers((kind.reals, request.c), (kind.factors, request.s)) as (c, s):
            kind.routines.rot(self._handle, *_pair(request.x, request.y), c, s)

    # --- a matrix and vectors -----------------------------------------------------------------------------------------

    def gemv(self, request: blas.Gemv) -> None:
        """Compute y ← alpha·a·x + beta·y."""
        rows, columns = request.a.shape
        alpha, beta = request.alpha, request.beta
        kind, x, y = KINDS[request.a.dtype], _vector(request.x), _vector(request.y)
        conjugated = request.conj_a and kind.is_complex
        a = told(request.a.layout, "column", conjugated=conjugated)
        # The conjugate of a matrix in column order: conj(y) ← conj(alpha)·a·conj(x) + conj(beta)·conj(y).
        turned = array(request.x).conj() if a.copied else None
        if turned is not None:
            x = _Vector(x.n, turned.data.ptr, 1)
            alpha, beta = _conjugated(alpha), _conjugated(beta)
            a = told(request.a.layout, "column")
            if not is_zero(request.beta):
                _conjugate(request.y)
        if a.op != "N":
            rows, columns = columns, rows
        with self._pointers((kind.factors, alpha), (kind.factors, beta)) as (factor, other):
            kind.routines.gemv(
                self._handle, OPS[a.op], rows, columns, factor, address(request.a), a.leading, x.address, x.increment,
                other, y.address, y.increment,
            )  # fmt: skip
        if turned is not None:
            _conjugate(request.y)

    def ger(self, request: blas.Ger) -> None:
        """Compute a ← alpha·x·yᵀ + a."""
        m, n = request.a.shape
        kind, x, y = KINDS[request.a.dtype], _vector(request.x), _vector(request.y)
        conjugate = request.conjugate and kind.is_complex
        with self._pointers((kind.factors, request.alpha)) as (alpha,):
            if column := leading(request.a.layout, "column"):
                ger = kind.routines.gerc if conjugate else kind.routines.ger
                ger(self._handle, m, n, alpha, *x[1:], *y[1:], address(request.a), column)
                return
            turned = array(request.y).conj() if conjugate else None
            if turned is not None:
                y = _Vector(n, turned.data.ptr, 1)
            row = leading(request.a.layout, "row")  # aᵀ ← alpha·y·xᵀ + aᵀ
            kind.routines.ger(self._handle, n, m, alpha, *y[1:], *x[1:], address(request.a), row)

    # --- matrices -----------------------------------------------------------------------------------------------------

    def prepare_geam(self, request: blas.Geam) -> _Sum:
        """Return how the matrices are passed to cuBLAS."""
        of, is_complex = given(request.c), KINDS[request.a.dtype].is_complex
        order = orders(of.layout)[0]
        a = told(request.a.layout, order, conjugated=request.conj_a and is_complex, in_place=True)
        b = told(request.b.layout, order, conjugated=request.conj_b and is_complex, in_place=True)
        return _Sum(order, *_as_seen(of.shape, order), a, b, leading(of.layout, order))

    def geam(self, request: blas.Geam, plan: _Sum) -> None:
        """Compute c ← alpha·a + beta·b."""
        if not plan.m or not plan.n:
            return
        kind = KINDS[request.a.dtype]
        a, _keep_a = _memory(request.a, plan.a, plan.order)
        b, _keep_b = _memory(request.b, plan.b, plan.order)
        with self._pointers((kind.factors, request.alpha), (kind.factors, request.beta)) as (alpha, beta):
            kind.routines.geam(
                self._handle, OPS[plan.a.op], OPS[plan.b.op], plan.m, plan.n, alpha, a, plan.a.leading, beta, b,
                plan.b.leading, address(request.c), plan.leading,
            )  # fmt: skip

    def syrk(self, request: blas.Syrk) -> None:
        """Compute c ← alpha·a·aᵀ + beta·c in the named triangle."""
        n, k = request.a.shape
        kind, a = KINDS[request.a.dtype], told(request.a.layout, "column")
        order = orders(given(request.c).layout)[0]
        fill = LOWER if (request.uplo == "L") == (order == "column") else UPPER
        with self._pointers((kind.factors, request.alpha), (kind.factors, request.beta)) as (alpha, beta):
            kind.routines.syrk(
                self._handle, fill, OPS[a.op], n, k, alpha, address(request.a), a.leading, beta, address(request.c),
                leading(given(request.c).layout, order),
            )  # fmt: skip

    def trsm(self, request: blas.Trsm) -> None:
        """Solve a·x = alpha·b, or x·a = alpha·b; x overwrites b."""
        (m, n), alpha = request.b.shape, request.alpha
        kind = KINDS[request.a.dtype]
        order = orders(request.b.layout)[0]
        a = told(request.a.layout, order, conjugated=request.conj_a and kind.is_complex)
        turned = a.copied
        if turned:  # a·conj(x) = conj(alpha)·conj(b)
            a, alpha = told(request.a.layout, order), _conjugated(alpha)
            _conjugate(request.b)
        lies_in_columns = (a.op == "N") == (order == "column")
        left, lower = request.side == "L", request.uplo == "L"
        with self._pointers((kind.factors, alpha)) as (factor,):
            kind.routines.trsm(
                self._handle,
                LEFT if left == (order == "column") else RIGHT,
                LOWER if lower == lies_in_columns else UPPER,
                OPS[a.op],
                UNIT if request.diag == "U" else NON_UNIT,
                *_as_seen((m, n), order),
                factor,
                address(request.a),
                a.leading,
                address(request.b),
                leading(request.b.layout, order),
            )
        if turned:
            _conjugate(request.b)

    def prepare_gemm(self, request: blas.Gemm | blas.GemmStridedBatched) -> _Product:
        """Return how the matrices are passed to cuBLAS, without copies if possible."""
        found = [_product(request, order) for order in orders(given(request.c).layout)]
        return min(found, key=lambda product: product.first.copied + product.second.copied)

    prepare_gemm_strided_batched = prepare_gemm

    def gemm(self, request: blas.Gemm, plan: _Product) -> None:
        """Compute c ← alpha·a·b + beta·c."""
        kind = KINDS[request.a.dtype]
        of = kind.data
        pair = (request.b, request.a) if plan.order == "row" else (request.a, request.b)
        first, _keep_first = _memory(pair[0], plan.first, plan.order)
        second, _keep_second = _memory(pair[1], plan.second, plan.order)
        with self._pointers((kind.factors, request.alpha), (kind.factors, request.beta)) as (alpha, beta):
            cublas.gemm_ex_64(
                self._made or self._handle, OPS[plan.first.op], OPS[plan.second.op], plan.m, plan.n, plan.k, alpha,
                first, of, plan.first.leading, second, of, plan.second.leading, beta, address(request.c), of,
                plan.leading, kind.compute, ALGORITHM,
            )  # fmt: skip

    def gemm_strided_batched(self, request: blas.GemmStridedBatched, plan: _Product) -> None:
        """Compute c_i ← alpha·a_i·b_i + beta·c_i."""
        kind = KINDS[request.a.dtype]
        of = kind.data
        op_a, op_b, sizes = OPS[plan.first.op], OPS[plan.second.op], (plan.m, plan.n, plan.k)
        pair = (request.b, request.a) if plan.order == "row" else (request.a, request.b)
        first, _keep_first = _memory(pair[0], plan.first, plan.order)
        second, _keep_second = _memory(pair[1], plan.second, plan.order)
        a = first, of, plan.first.leading, plan.first.stride
        b = second, of, plan.second.leading, plan.second.stride
        c = address(request.c), of, plan.leading, plan.stride
        with self._pointers((kind.factors, request.alpha), (kind.factors, request.beta)) as (alpha, beta):
            try:
                cublas.gemm_strided_batched_ex_64(
                    self._handle, op_a, op_b, *sizes, alpha, *a, *b, beta, *c, plan.batch, kind.compute, ALGORITHM
                )
            except cublas.cuBLASError as error:
                # Seen with cuBLAS 13.1 where each product has one element, and operands overlap from one to the next.
                if error.status != NOT_SUPPORTED:
                    raise
                item_bytes = dtypes.ITEM_BYTES[request.a.dtype]
                for number in range(plan.batch):
                    at = [(start + number * stride * item_bytes, of, ld) for start, _, ld, stride in (a, b, c)]
                    cublas.gemm_ex_64(
                        self._handle, op_a, op_b, *sizes, alpha, *at[0], *at[1], beta, *at[2], kind.compute, ALGORITHM
                    )

    # --- the handle ---------------------------------------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """The handle, also for a library on the same stream that needs one; made at its first use."""
        return self._handle

    @property
    def _handle(self) -> int:
        return self._made or self._make()

    def _make(self) -> int:
        workspace = self.fixed_workspace()
        handle: int = cublas.create()
        cublas.set_stream(handle, cast("CudaStream", self.stream).stream.ptr)
        cublas.set_workspace(handle, workspace.address, workspace.nbytes)  # after the stream, which resets it
        cublas.set_math_mode(handle, MATH)
        self._made = handle
        return handle

    def _read_on_device(self, wanted: bool) -> None:  # noqa: FBT001 - a switch
        """Have calls read numbers, and write them, on the device; or on the host, as all others rely on."""
        cublas.set_pointer_mode(self._handle, DEVICE if wanted else HOST)

    def _answer(self, routine: Callable[..., None], *arguments: int) -> None:
        """Have a routine write its number to an address, which is the last argument."""
        self._read_on_device(True)
        try:
            routine(self._handle, *arguments)
        finally:
            self._read_on_device(False)

    def _reduce(
        self, routine: Callable[..., None], dtype: np.dtype[Any], x: Operand, y: Operand | None = None
    ) -> Later:
        """Have a number written where the host can read it once the device has done so."""
        slot = self._slots.take()
        try:
            if y is None:
                one = _vector(x)
                self._answer(routine, one.n, one.address, abs(one.increment), slot.address)
            else:
                self._answer(routine, *_pair(x, y), slot.address)
        except BaseException:
            self._slots.give(slot)
            raise
        return Later(lambda: self._slots.read(slot, dtype))

    def _find(self, routine: Callable[..., None], x: Operand) -> Later:
        """Have an index found; BLAS counts from 1."""
        found = self._reduce(routine, INDEX, x)
        return Later(lambda: found.read() - 1)


class _Vector(NamedTuple):
    """A vector in the form of BLAS."""

    n: int
    address: int
    """Address of the lowest element, at which a vector with a negative increment ends."""
    increment: int


class _Sum(NamedTuple):
    """A sum of matrices in the form of cuBLAS."""

    order: Order
    m: int
    n: int
    a: BlasView
    b: BlasView
    leading: int


class _Product(NamedTuple):
    """A product of matrices in the form of cuBLAS: of the transposes if the result lies in row order."""

    order: Order
    m: int
    n: int
    k: int
    first: BlasView
    second: BlasView
    leading: int
    stride: int
    batch: int


def _product(request: blas.Gemm | blas.GemmStridedBatched, order: Order) -> _Product:
    layout, is_complex = given(request.c).layout, KINDS[request.a.dtype].is_complex
    a = told(request.a.layout, order, conjugated=request.conj_a and is_complex)
    b = told(request.b.layout, order, conjugated=request.conj_b and is_complex)
    first, second = (b, a) if order == "row" else (a, b)
    m, n = _as_seen(layout.shape[-2:], order)
    stride = (batch_stride(layout) or 0) // layout.item_bytes
    batch = int(np.prod(layout.shape[:-2], dtype=np.int64))
    return _Product(order, m, n, request.a.shape[-1], first, second, leading(layout, order), stride, batch)


def _as_seen(shape: tuple[int, ...], order: Order) -> tuple[int, int]:
    """Return rows and columns of a matrix as cuBLAS sees it."""
    rows, columns = shape
    return (rows, columns) if order == "column" else (columns, rows)


def _memory(operand: Operand, how: BlasView, order: Order) -> tuple[int, Any]:
    """Return a matrix's address, and the object that keeps its memory: a conjugated copy if it is passed as one."""
    if not how.copied:
        return address(operand), None
    matrix = array(operand).conj()
    copy = cupy.ascontiguousarray(matrix if order == "row" else matrix.swapaxes(-1, -2))
    return copy.data.ptr, copy


def _vector(operand: Operand | None) -> _Vector:
    """Return a vector in the form of BLAS."""
    layout = given(operand).layout
    ((n,), (stride,)) = layout.shape, layout.strides
    if n < 2:
        return _Vector(n, address(operand), 1)
    below = (n - 1) * stride if stride < 0 else 0
    return _Vector(n, address(operand) + below, stride // layout.item_bytes)


def _pair(x: Operand, y: Operand | None) -> tuple[int, int, int, int, int]:
    one, other = _vector(x), _vector(y)
    return one.n, one.address, one.increment, other.address, other.increment


def _conjugated(factor: Factor) -> Factor | Any:
    """Return the conjugate of a factor, a number or an array."""
    if is_array(factor):
        return on_device(cast("Operand", factor)).conj()
    value = scalar(cast("Scalar", factor)).conjugate()
    return (value.real, value.imag) if value.imag else value.real


def _conjugate(operand: Operand | None) -> None:
    """Conjugate in place."""
    values = array(operand)
    values[...] = values.conj()


Implementation: Final = CudaBlas
