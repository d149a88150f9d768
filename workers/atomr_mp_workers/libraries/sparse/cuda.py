"""Sparse matrices on the CUDA backend, with cuSPARSE on the memory itself.

A matrix in CSC is passed to cuSPARSE as the transpose of one in CSR. Descriptors and memory that cuSPARSE has prepared
are kept with the structure, for each actor. Empty matrices and factors of 0 are not left to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast

import cupy
import msgspec
import numpy as np
from cupyx.scipy import sparse as cupyx_sparse
from nvmath.bindings import cusparse

from atomr_mp import errors
from atomr_mp.protocol.declaration.checks import is_zero
from atomr_mp.protocol.declaration.factors import Factor
from atomr_mp.protocol.declaration.strides import Order, leading
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import sparse
from atomr_mp.protocol.libraries.base import HALF, scalar
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import LibraryContext, address, array, given
from atomr_mp_workers.libraries.blas.kinds import KINDS, ElementKind
from atomr_mp_workers.libraries.holding import hold
from atomr_mp_workers.libraries.matrices import orders, told
from atomr_mp_workers.libraries.pointers import FactorPointers, Pointers, is_array, on_device
from atomr_mp_workers.libraries.scaling import widened
from atomr_mp_workers.libraries.slots import Slots
from atomr_mp_workers.libraries.sparse import products
from atomr_mp_workers.libraries.sparse.base import SparseLibrary, bits
from atomr_mp_workers.libraries.sparse.structures import CheckedStructure
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.request import Elsewhere, Later

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.device.cuda_streams import CudaStream

HALF_BYTES: Final = 2
LEAST_BYTES: Final = 16
"""Memory that is given where cuSPARSE may want none, since it must not get a null address."""

PAIR: Final = np.dtype(np.int64)
OPS: Final = {
    "N": int(cusparse.Operation.NON_TRANSPOSE),
    "T": int(cusparse.Operation.TRANSPOSE),
    "C": int(cusparse.Operation.CONJUGATE_TRANSPOSE),
}
ORDERS: Final = {"row": int(cusparse.Order.ROW), "column": int(cusparse.Order.COL)}
INDEX: Final = {"int32": int(cusparse.IndexType.INDEX_32I), "int64": int(cusparse.IndexType.INDEX_64I)}
FILL: Final = {"L": int(cusparse.FillMode.LOWER), "U": int(cusparse.FillMode.UPPER)}
DIAG: Final = {"N": int(cusparse.DiagType.NON_UNIT), "U": int(cusparse.DiagType.UNIT)}
FILL_MODE, DIAG_TYPE = int(cusparse.SpMatAttribute.FILL_MODE), int(cusparse.SpMatAttribute.DIAG_TYPE)
ZERO_BASED: Final = int(cusparse.IndexBase.ZERO)
SPMV: Final = int(cusparse.SpMVAlg.DEFAULT)
SPMM: Final = int(cusparse.SpMMAlg.DEFAULT)
SPSV: Final = int(cusparse.SpSVAlg.DEFAULT)
SPSM: Final = int(cusparse.SpSMAlg.DEFAULT)
SDDMM: Final = int(cusparse.SDDMMAlg.DEFAULT)
SPSV_GENERAL: Final = int(cusparse.SpSVUpdate.GENERAL)
SPSM_GENERAL: Final = int(cusparse.SpSMUpdate.UPDATE_GENERAL)
NOT_SUPPORTED: Final = int(cusparse.Status.NOT_SUPPORTED)
HOST, DEVICE = int(cusparse.PointerMode.HOST), int(cusparse.PointerMode.DEVICE)


class CudaSparse(SparseLibrary):
    """Sparse linear algebra on device memory. The handle is made before the first request, and stays."""

    xp: ClassVar[Any] = cupy

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._made = 0
        self._slots: Final = Slots()
        self._pointers: Final = FactorPointers(self._read_on_device)

    def open(self) -> None:
        """Make the handle."""
        if not self._made:
            self._made = cusparse.create()
            cusparse.set_stream(self._made, cast("CudaStream", self.stream).stream.ptr)

    def _read_on_device(self, wanted: bool) -> None:  # noqa: FBT001 - a switch
        cusparse.set_pointer_mode(self._handle, DEVICE if wanted else HOST)

    def _factors(self, kind: ElementKind, out: Any, request: Any) -> Pointers:
        """Return where alpha and beta are.

        Where numbers are read on the device, nothing says that cuSPARSE leaves unread what a beta of 0 multiplies.
        """
        found = self._pointers.of((kind.factors, request.alpha), (kind.factors, request.beta))
        if found.on_device and is_zero(request.beta):
            out[...] = 0
        return found

    @property
    def _handle(self) -> int:
        if not self._made:
            self.open()
        return self._made

    def _numbers(self, pair: Any) -> Callable[[], list[int]]:
        slot = self._slots.take()
        numbers = slot.memory.view(PAIR)
        pair.get(out=numbers, blocking=False)

        def read() -> list[int]:
            found: list[int] = numbers.tolist()
            self._slots.give(slot)
            return found

        return read

    # --- products -----------------------------------------------------------------------------------------------------

    def rest(self, request: Any) -> None:
        """Multiply by beta; what cuSPARSE cannot multiply is refused whatever the factors are."""
        if request.name != sparse.Sddmm.name:
            _refuse(request.a)
        super().rest(request)

    def spmv(self, request: sparse.Spmv) -> None:
        """Compute y ← alpha·a·x + beta·y."""
        _refuse(request.a)
        it, y = self.found(request.a), array(request.y)
        x = cupy.ascontiguousarray(array(request.x))
        if it.stored == "bsr":
            made, row = _summed(y, request.beta, "row"), ORDERS["row"]
            vectors = _Dense(x.size, 1, 1, x.data.ptr, row), _Dense(y.size, 1, 1, made.data.ptr, row)
            self._multiply(request, it, *vectors, made)
        else:
            made = y if y.flags.c_contiguous else cupy.array(y)
            self._multiply_vector(request, it, x, made)
        if made is not y:
            y[...] = made.astype(y.dtype, copy=False)

    def spmm(self, request: sparse.Spmm) -> None:
        """Compute c ← alpha·a·b + beta·c."""
        _refuse(request.a)
        it, c = self.found(request.a), array(request.c)
        order = orders(given(request.c).layout)[0]
        if it.stored == "blocked_ell" and (is_array(request.alpha) or is_array(request.beta)):
            self._multiply_then_scale(request, it, c, order)
        elif it.stored == "blocked_ell" or c.dtype.itemsize > HALF_BYTES:
            self._multiply(request, it, _beside(request.b, order), _beside(request.c, order), c)
        else:
            made = _summed(c, request.beta, order)
            self._multiply(request, it, _beside(request.b, order), _packed(made, order), made)
            c[...] = made.astype(c.dtype)

    def _multiply_then_scale(self, request: sparse.Spmm, it: CheckedStructure, c: Any, order: Order) -> None:
        """Compute c ← alpha·a·b + beta·c in two steps, since cuSPARSE reads factors of blocked ELL on the host only."""
        made = cupy.empty(c.shape, c.dtype, order="C" if order == "row" else "F")
        hold(made)
        product = msgspec.structs.replace(request, alpha=1.0, beta=0.0)
        self._multiply(product, it, _beside(request.b, order), _packed(made, order), made)
        total = _value(request.alpha) * widened(made)
        c[...] = total if is_zero(request.beta) else total + _value(request.beta) * widened(c)

    def _multiply_vector(self, request: sparse.Spmv, it: CheckedStructure, x: Any, y: Any) -> None:
        kind, op = KINDS[request.x.dtype], self._op(request.a, conjugated=request.conj_a)
        values = self._values(request.a, it, conjugated=request.conj_a and op == OPS["N"])
        factors = self._factors(kind, y, request)

        def make() -> _Plan:
            plan = _Plan(it, kind, values.data.ptr)
            plan.x = cusparse.create_dn_vec(x.size, x.data.ptr, kind.data)
            plan.y = cusparse.create_dn_vec(y.size, y.data.ptr, kind.data)
            asked = (self._handle, op, alpha, plan.matrix, plan.x, beta, plan.y, kind.scale, SPMV)
            plan.work = self._own(cusparse.sp_mv_buffer_size(*asked))
            if _is_prepared(it, op):
                cusparse.sp_mv_preprocess(*asked, address(plan.work))
            return plan

        with factors as (alpha, beta):
            plan = _planned(it, (id(self), "spmv", op, kind.data, factors.on_device), make)
            cusparse.sp_mat_set_values(plan.matrix, values.data.ptr)
            cusparse.dn_vec_set_values(plan.x, x.data.ptr)
            cusparse.dn_vec_set_values(plan.y, y.data.ptr)
            cusparse.sp_mv(
                self._handle, op, alpha, plan.matrix, plan.x, beta, plan.y, kind.scale, SPMV, address(plan.work)
            )  # fmt: skip

    def _multiply(self, request: Any, it: CheckedStructure, b: _Dense, c: _Dense, out: Any) -> None:
        """Compute c ← alpha·a·b + beta·c for dense matrices that are passed in the order of c, whose array is `out`.

        If a is half precision and not blocked ELL, c is float32: cuSPARSE adds up parts of a row in the type of c.
        """
        kind, op = KINDS[request.a.data.dtype], self._op(request.a, conjugated=request.conj_a)
        values = self._values(request.a, it, conjugated=request.conj_a and op == OPS["N"])
        factors = self._factors(kind, out, request)
        halved = request.a.data.dtype in HALF and it.stored != "blocked_ell"
        dense_b, dense_c = b.describe(kind), c.describe(KINDS["float32"] if halved else kind)

        def make() -> _Plan:
            plan = _Plan(it, kind, values.data.ptr)
            asked = (self._handle, op, OPS[b.op], alpha, plan.matrix, dense_b, beta, dense_c, kind.scale, SPMM)
            plan.work = self._own(cusparse.sp_mm_buffer_size(*asked))
            if _is_prepared(it, op):
                cusparse.sp_mm_preprocess(*asked, address(plan.work))
            return plan

        key = (id(self), "spmm", op, kind.data, *b[:3], b.op, c.order, c.leading, factors.on_device)
        try:
            with factors as (alpha, beta):
                plan = _planned(it, key, make)
                cusparse.sp_mat_set_values(plan.matrix, values.data.ptr)
                cusparse.sp_mm(
                    self._handle, op, OPS[b.op], alpha, plan.matrix, dense_b, beta, dense_c, kind.scale, SPMM,
                    address(plan.work),
                )  # fmt: skip
        finally:
            cusparse.destroy_dn_mat(dense_b)
            cusparse.destroy_dn_mat(dense_c)

    def _product(self, request: sparse.Spgemm) -> Elsewhere:
        """Multiply elsewhere than on the loop, since cuSPARSE waits for the device."""
        a, b = self.found(request.a), self.found(request.b)
        alike, turned = request.a.format == request.b.format, request.a.format == "csc"

        def work() -> products.CsrRows:
            first, second = _as_rows(a, request.a), _as_rows(b, request.b)
            if not alike:
                second = _transposed(second)
            pair = (second, first) if turned else (first, second)
            return products.multiply(*pair, KINDS[request.a.data.dtype], request.alpha)

        return Elsewhere(work, lambda made: self._multiplied(request, made.indices, made.indptr, made.data))

    def sddmm(self, request: sparse.Sddmm) -> None:
        """Compute out ← alpha·(a·b) + beta·out where c has elements; csc is the transpose of bᵀ·aᵀ in csr."""
        it, out = self.found(request.c), array(request.out)
        if is_zero(request.beta):
            out[...] = 0
        kind = KINDS[request.a.dtype]
        a, b = request.a.layout, request.b.layout
        first, second = _dense(a, address(request.a)), _dense(b, address(request.b))
        if request.c.format == "csc":
            first, second = _dense(b.transposed(), second.address), _dense(a.transposed(), first.address)
        dense_a, dense_b, plan = first.describe(kind), second.describe(kind), _Plan(it, kind, out.data.ptr)
        n, size = OPS["N"], np.zeros(1, np.uint64)
        try:
            with self._pointers.of((kind.factors, request.alpha), (kind.factors, request.beta)) as (alpha, beta):
                asked = (self._handle, n, n, alpha, dense_a, dense_b, beta, plan.matrix, kind.scale, SDDMM)
                with _served(it):
                    cusparse.sddmm_buffer_size(*asked, size.ctypes.data)
                cusparse.sddmm(*asked, self.workspace(max(int(size[0]), LEAST_BYTES)).address)
        finally:
            cusparse.destroy_dn_mat(dense_a)
            cusparse.destroy_dn_mat(dense_b)

    # --- triangular systems -------------------------------------------------------------------------------------------

    def _solved(self, checked: Callable[[], None], solve: Callable[[], None]) -> Later:
        solve()
        return Later(checked)

    def _solve_vector(self, request: sparse.Spsv) -> None:
        it, x, b = self.found(request.a), array(request.x), array(request.b)
        if not it.count:
            x[...] = _value(request.alpha) * b
            return
        b, made = cupy.ascontiguousarray(b), x if x.flags.c_contiguous else cupy.empty(x.shape, x.dtype)
        kind, op, values, triangle = self._triangle(request, it)
        factors = self._pointers.of((kind.factors, request.alpha))

        def make() -> _Plan:
            plan = _Plan(it, kind, values.data.ptr, triangle)
            plan.x = cusparse.create_dn_vec(b.size, b.data.ptr, kind.data)
            plan.y = cusparse.create_dn_vec(made.size, made.data.ptr, kind.data)
            plan.solving = cusparse.sp_sv_create_descr(), cusparse.sp_sv_destroy_descr
            asked = (self._handle, op, alpha, plan.matrix, plan.x, plan.y, kind.scale, SPSV, plan.solving[0])
            plan.work = self._own(cusparse.sp_sv_buffer_size(*asked))
            cusparse.sp_sv_analysis(*asked, address(plan.work))
            return plan

        with factors as (alpha,):
            plan = _planned(it, (id(self), "spsv", op, kind.data, triangle, factors.on_device), make)
            if plan.used:
                cusparse.sp_mat_set_values(plan.matrix, values.data.ptr)
                cusparse.sp_sv_update_matrix(self._handle, plan.solving[0], values.data.ptr, SPSV_GENERAL)
            plan.used = True
            cusparse.dn_vec_set_values(plan.x, b.data.ptr)
            cusparse.dn_vec_set_values(plan.y, made.data.ptr)
            cusparse.sp_sv_solve(
                self._handle, op, alpha, plan.matrix, plan.x, plan.y, kind.scale, SPSV, plan.solving[0]
            )  # fmt: skip
        if made is not x:
            x[...] = made

    def _solve_matrix(self, request: sparse.Spsm) -> None:
        """Solve for columns in column order, in memory of their own: cuSPARSE wants zeros in the result."""
        it, x, b = self.found(request.a), array(request.x), array(request.b)
        if not it.count:
            x[...] = _value(request.alpha) * b
            return
        b, made = cupy.array(b, order="F"), cupy.zeros(x.shape, x.dtype, order="F")
        kind, op, values, triangle = self._triangle(request, it)
        factors = self._pointers.of((kind.factors, request.alpha))
        (n, m), column = x.shape, ORDERS["column"]
        dense_b = cusparse.create_dn_mat(n, m, n, b.data.ptr, kind.data, column)
        dense_x = cusparse.create_dn_mat(n, m, n, made.data.ptr, kind.data, column)

        def make() -> _Plan:
            plan = _Plan(it, kind, values.data.ptr, triangle)
            plan.solving = cusparse.sp_sm_create_descr(), cusparse.sp_sm_destroy_descr
            descr = plan.solving[0]
            asked = (self._handle, op, OPS["N"], alpha, plan.matrix, dense_b, dense_x, kind.scale, SPSM, descr)
            plan.work = self._own(cusparse.sp_sm_buffer_size(*asked))
            cusparse.sp_sm_analysis(*asked, address(plan.work))
            return plan

        try:
            with factors as (alpha,):
                plan = _planned(it, (id(self), "spsm", op, kind.data, triangle, m, factors.on_device), make)
                if plan.used:
                    cusparse.sp_mat_set_values(plan.matrix, values.data.ptr)
                    cusparse.sp_sm_update_matrix(self._handle, plan.solving[0], values.data.ptr, SPSM_GENERAL)
                plan.used = True
                cusparse.sp_sm_solve(
                    self._handle, op, OPS["N"], alpha, plan.matrix, dense_b, dense_x, kind.scale, SPSM, plan.solving[0]
                )  # fmt: skip
        finally:
            cusparse.destroy_dn_mat(dense_b)
            cusparse.destroy_dn_mat(dense_x)
        x[...] = made

    def _triangle(
        self, request: sparse.Spsv | sparse.Spsm, it: CheckedStructure
    ) -> tuple[ElementKind, int, Any, tuple[int, int]]:
        """Return the kind, the op, the values, the triangle, and its kind of diagonal."""
        op = self._op(request.a, conjugated=request.conj_a)
        values = self._values(request.a, it, conjugated=request.conj_a and op == OPS["N"])
        as_told = request.uplo if op == OPS["N"] else {"L": "U", "U": "L"}[request.uplo]
        return KINDS[request.a.data.dtype], op, values, (FILL[as_told], DIAG[request.diag])

    # --- how a matrix is passed --------------------------------------------------------------------------------------

    @staticmethod
    def _op(told_of: sparse.Matrix, *, conjugated: bool) -> int:
        """Return the op that makes the passed matrix the meant one."""
        turned = told_of.transposed if told_of.stored == "coo" else told_of.format == "csc"
        if not turned:
            return OPS["N"]
        return OPS["C" if conjugated and told_of.data.dtype.startswith("complex") else "T"]

    def _values(self, matrix: sparse.Matrix, it: CheckedStructure, *, conjugated: bool) -> Any:
        """Return the values; a copy if no op conjugates them, or if missing blocks may hold arbitrary values."""
        values = array(matrix.data)
        if it.filled:
            size, (height, width) = it.blocksize[0], it.indices.shape
            there = (it.indices >= 0)[:, None, :, None]
            blocks = bits(values).reshape(height, size, width, size)
            return cupy.where(there, blocks, blocks.dtype.type(0))
        return cupy.conj(values) if conjugated and values.dtype.kind == "c" else values

    def _own(self, nbytes: int) -> DeviceArray:
        """Return memory that no client has mapped."""
        return self.context.store.buffers.allocate(self._holder, "uint8", (max(nbytes, LEAST_BYTES),))


class _Plan:
    """The plan of a structure for requests of a kind: descriptors, and memory that cuSPARSE has prepared.

    Args:
        it: The structure.
        kind: The element type.
        values: Present address of its values.
        triangle: The triangle that is meant, and its kind of diagonal; None for the whole matrix.
    """

    def __init__(
        self, it: CheckedStructure, kind: ElementKind, values: int, triangle: tuple[int, int] | None = None
    ) -> None:
        self.matrix: Final = _described(it, kind, values)
        self.x = self.y = 0
        self.solving: tuple[int, Callable[[int], object] | None] = 0, None
        self.work: Any = None
        self.used = False
        if triangle is not None:
            for attribute, value in zip((FILL_MODE, DIAG_TYPE), triangle, strict=True):
                told_so = np.array(value, np.int32)
                cusparse.sp_mat_set_attribute(self.matrix, attribute, told_so.ctypes.data, told_so.nbytes)

    def __del__(self) -> None:
        if not hasattr(self, "used"):
            return
        cusparse.destroy_sp_mat(self.matrix)
        for vector in (self.x, self.y):
            if vector:
                cusparse.destroy_dn_vec(vector)
        descr, destroy = self.solving
        if destroy is not None:
            destroy(descr)


def _is_prepared(it: CheckedStructure, op: int) -> bool:
    """Return whether cuSPARSE is faster with prepared memory."""
    return it.stored in {"csr", "csc"} and op == OPS["N"]


def _planned(it: CheckedStructure, key: object, make: Callable[[], _Plan]) -> _Plan:
    """Return a plan of a structure; a graph that is recorded keeps it."""
    with _served(it):
        plan: _Plan = it.plan(key, make)
    hold(plan)
    return plan


@contextlib.contextmanager
def _served(it: CheckedStructure) -> Iterator[None]:
    """Add the remedy if this cuSPARSE lacks a routine; it says so before anything runs."""
    try:
        yield
    except cusparse.cuSPARSEError as error:
        if error.status != NOT_SUPPORTED:
            raise
        raise errors.Unsupported(
            f"this cuSPARSE cannot do it with {it.stored}, blocks of {it.blocksize} and {it.indices.dtype} indices: "
            "convert the matrix to csr"
        ) from error


def _described(it: CheckedStructure, kind: ElementKind, values: int) -> int:
    """Return a descriptor of a structure with values; for csc, of the transpose in csr."""
    (rows, columns), (r, c), count = it.shape, it.blocksize, it.count
    index, indices = INDEX[it.indices.dtype.name], it.indices.data.ptr
    if it.stored == "blocked_ell":
        return cusparse.create_blocked_ell(  # type: ignore[no-any-return]
            rows, columns, r, it.indices.shape[1] * r, indices, values, index, ZERO_BASED, kind.data
        )
    indptr = it.indptr.data.ptr
    if it.stored == "coo":
        return cusparse.create_coo(  # type: ignore[no-any-return]
            rows, columns, count, indptr, indices, values, index, ZERO_BASED, kind.data
        )
    if it.stored == "bsr":
        return cusparse.create_bsr(  # type: ignore[no-any-return]
            rows // r, columns // c, count, r, c, indptr, indices, values, index, index, ZERO_BASED, kind.data,
            ORDERS["row"],
        )  # fmt: skip
    shape = (columns, rows) if it.stored == "csc" else (rows, columns)
    return cusparse.create_csr(  # type: ignore[no-any-return]
        *shape, count, indptr, indices, values, index, index, ZERO_BASED, kind.data
    )


class _Dense(NamedTuple):
    """A dense matrix in the form of cuSPARSE."""

    rows: int
    columns: int
    leading: int
    address: int
    order: int
    op: str = "N"

    def describe(self, kind: ElementKind) -> int:
        """Return a descriptor, which the caller has to destroy."""
        return cusparse.create_dn_mat(  # type: ignore[no-any-return]
            self.rows, self.columns, self.leading, self.address, kind.data, self.order
        )


def _dense(layout: Layout, at: int) -> _Dense:
    """Return a dense matrix in its own order."""
    order, (rows, columns) = orders(layout)[0], layout.shape
    return _Dense(rows, columns, leading(layout, order), at, ORDERS[order])


def _beside(operand: Operand | None, order: Order) -> _Dense:
    """Return a dense matrix in the order of another: transposed, if it lies in the other order."""
    layout = given(operand).layout
    op, lead, *_ = told(layout, order)
    rows, columns = layout.shape if op == "N" else layout.shape[::-1]
    return _Dense(rows, columns, lead, address(operand), ORDERS[order], op)


def _packed(made: Any, order: Order) -> _Dense:
    """Return a matrix without gaps, whose array lies in this order."""
    rows, columns = made.shape
    return _Dense(rows, columns, columns if order == "row" else rows, made.data.ptr, ORDERS[order])


def _as_rows(it: CheckedStructure, matrix: sparse.Matrix) -> products.CsrRows:
    """Return a matrix in csr; for csc, the transpose."""
    rows, columns = matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
    indices, indptr = (each.astype(np.int32, copy=False) for each in (it.indices, it.indptr))
    return products.CsrRows((rows, columns), array(matrix.data), indices, indptr)


def _transposed(it: products.CsrRows) -> products.CsrRows:
    """Return the transpose, in csr too."""
    made = cupyx_sparse.csr_matrix((it.data, it.indices, it.indptr), shape=it.shape).T.tocsr()
    return products.CsrRows(it.shape[::-1], made.data, made.indices, made.indptr)


def _refuse(a: sparse.Matrix) -> None:
    """Refuse requests that cuSPARSE cannot do, or not in the precision of their type.

    Raises:
        Unsupported: The blocks of bsr are not square, or float32 values in blocked_ell would be rounded to TF32.
    """
    if a.stored == "bsr" and a.blocksize[0] != a.blocksize[1]:
        raise errors.Unsupported(f"cuSPARSE takes bsr in square blocks only, not in {a.blocksize}: convert it to csr")
    if a.stored == "blocked_ell" and a.data.dtype == "float32":
        raise errors.Unsupported(
            "cuSPARSE multiplies float32 in blocked_ell with the precision of TF32: convert it to bsr or csr"
        )


def _value(factor: Factor) -> Any:
    """Return a factor to compute with: a number, or an array on the device."""
    return on_device(factor) if isinstance(factor, Operand) else scalar(factor)


def _summed(out: Any, factor: Factor, order: Order) -> Any:
    """Return the array to add a product to: `out` if possible, else an array without gaps, float32 for halves.

    It has the values of `out` unless the factor is 0.
    """
    if out.dtype.itemsize > HALF_BYTES:
        return out if out.flags.c_contiguous else cupy.array(out)
    made = cupy.empty(out.shape, np.float32, order="C" if order == "row" else "F")
    hold(made)
    if not is_zero(factor):
        made[...] = out.astype(np.float32)
    return made


Implementation: Final = CudaSparse
