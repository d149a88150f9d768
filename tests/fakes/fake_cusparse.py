"""Stand-ins for cuSPARSE and CuPy on the host's memory: what the CUDA actor asks for is proved without a GPU.

A routine does what cuSPARSE's documentation says of it, and where that is silent what was seen of the library: an
analysis keeps the values that it has seen, a missing block of blocked ELL is multiplied as one in the first column, and
SpSM wants zeros. It checks what the actor has to give: nothing empty, descriptors that exist, memory that was prepared.
"""

from __future__ import annotations

import ctypes
import itertools
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest import mock

import numpy as np
import numpy.typing as npt
import scipy.sparse
from nvmath.bindings import cusparse as binding

from atomr_mp.protocol import dtypes
from tests.fakes.fake_arrays import FakeArray
from tests.fakes.fake_cublas import DTYPES, STREAM, CudaDataType, FakeCublas, _module, _Pinned, device_memory, factor_at

Array = npt.NDArray[Any]

N, T, C = (int(binding.Operation[name]) for name in ("NON_TRANSPOSE", "TRANSPOSE", "CONJUGATE_TRANSPOSE"))
INDICES: Final = {int(binding.IndexType.INDEX_32I): "int32", int(binding.IndexType.INDEX_64I): "int64"}
ORDERS: Final = {int(binding.Order.ROW): "C", int(binding.Order.COL): "F"}
BUFFER_BYTES: Final = 48


class GpuArray(np.ndarray[Any, Any]):
    """An array with an address, as CuPy has it."""

    @property
    def data(self) -> Any:
        """Where it lies."""
        device_memory[self.ctypes.data] = self
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, out: Array | None = None, *, blocking: bool = True) -> Array:  # noqa: ARG002 - CuPy's
        """Copy it to the host."""
        made = np.array(self)
        if out is not None:
            out[...] = made
        return made


def on_gpu(values: Any) -> Any:
    """Return arrays as this CuPy's."""
    return values.view(GpuArray) if isinstance(values, np.ndarray) else values


class FakeCupy(ModuleType):
    """NumPy under CuPy's name."""

    cuda = SimpleNamespace(
        alloc_pinned_memory=_Pinned,
        get_current_stream=lambda: SimpleNamespace(ptr=STREAM, synchronize=lambda: None),
    )
    ndarray = GpuArray

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *arguments, **named: on_gpu(np.asarray(found(*arguments, **named)))


class OnGpu(FakeArray):
    """An operand with an address; may name a structure."""

    attached: Any = None

    @property
    def address(self) -> int:
        """Where the element of index zero lies."""
        address = int(self.slab.ctypes.data) + self.layout.offset
        device_memory[address] = self.slab
        return address

    @property
    def array(self) -> Array:
        """The array itself, zero-copy."""
        made: Array = on_gpu(super().array)
        return made


class FakeCusparse(ModuleType):
    """The binding, with one handle."""

    def __init__(self) -> None:
        super().__init__("nvmath.bindings.cusparse")
        self.short: set[int] = set()
        """Algorithms of products of sparse matrices for which there is too little memory."""
        self.refused = False
        """Whether it says of all products that it has no routine."""
        self.made: dict[int, Any] = {}
        """What exists, by number."""
        self._numbers = itertools.count(100)

    def __getattr__(self, name: str) -> Any:
        found = getattr(binding, name)
        if isinstance(found, type):  # an enum
            return found
        raise AttributeError(name)

    def create(self) -> int:
        """Make the handle."""
        return self._add(handle=True, mode=int(binding.PointerMode.HOST))

    def set_pointer_mode(self, handle: int, mode: int) -> None:
        """Set where factors are read."""
        self.made[handle].mode = mode

    def _factor(self, handle: int, address: int, compute: int) -> Any:
        on_device = self.made[handle].mode == binding.PointerMode.DEVICE
        return factor_at(address, DTYPES[CudaDataType(compute)], on_device=on_device)

    def set_stream(self, _handle: int, stream: int) -> None:
        """Set the stream."""
        assert stream == STREAM

    def _add(self, **what: Any) -> int:
        number = next(self._numbers)
        self.made[number] = SimpleNamespace(**what)
        return number

    def _destroy(self, number: int) -> None:
        del self.made[number]

    destroy_sp_mat = destroy_dn_vec = destroy_dn_mat = _destroy
    sp_sv_destroy_descr = sp_sm_destroy_descr = sp_gemm_destroy_descr = _destroy

    # --- descriptors --------------------------------------------------------------------------------------------------

    def create_csr(self, *told: Any) -> int:
        """Describe a matrix."""
        rows, columns, count, indptr, indices, values, of_indptr, of_indices, base, dtype = told
        assert rows > 0 < columns and base == 0 and of_indptr == of_indices  # noqa: PT018
        if not count:  # of a product, which is not there yet
            return self._add(kind="product", shape=(rows, columns), indptr=indptr, dtype=dtype)
        found = _at(indptr, (rows + 1,), INDICES[of_indptr]), _at(indices, (count,), INDICES[of_indices])
        return self._add(kind="csr", shape=(rows, columns), values=values, count=(count,), dtype=dtype, indices=found)

    def create_coo(self, *told: Any) -> int:
        """Describe a matrix."""
        rows, columns, count, row, column, values, index, base, dtype = told
        assert rows > 0 < columns and count > 0 == base  # noqa: PT018
        found = tuple(_at(each, (count,), INDICES[index]) for each in (row, column))
        return self._add(kind="coo", shape=(rows, columns), values=values, count=(count,), dtype=dtype, indices=found)

    def create_bsr(self, *told: Any) -> int:
        """Describe a matrix."""
        rows, columns, count, r, c, indptr, indices, values, of_indptr, of_indices, base, dtype, order = told
        if r != c:
            raise binding.cuSPARSEError(int(binding.Status.INVALID_VALUE))
        assert rows > 0 < columns and count > 0 == base and ORDERS[order] == "C"  # noqa: PT018
        found = _at(indptr, (rows + 1,), INDICES[of_indptr]), _at(indices, (count,), INDICES[of_indices])
        shape = rows * r, columns * c
        return self._add(kind="bsr", shape=shape, values=values, count=(count, r, c), dtype=dtype, indices=found)

    def create_blocked_ell(self, *told: Any) -> int:
        """Describe a matrix."""
        rows, columns, size, width, indices, values, index, base, dtype = told
        assert not any(length % size for length in (rows, columns, width))
        assert base == 0
        assert INDICES[index] == "int32"
        found = _at(indices, (rows // size, width // size), "int32")
        return self._add(
            kind="ell", shape=(rows, columns), values=values, count=(rows, width), dtype=dtype, indices=found
        )

    def create_dn_vec(self, size: int, values: int, dtype: int) -> int:
        """Describe a vector."""
        assert size > 0
        return self._add(kind="vector", shape=(size,), values=values, dtype=dtype)

    def create_dn_mat(self, rows: int, columns: int, lead: int, values: int, dtype: int, order: int) -> int:
        """Describe a matrix."""
        assert rows > 0 < columns
        assert lead >= (columns if ORDERS[order] == "C" else rows)
        return self._add(
            kind="dense", shape=(rows, columns), lead=lead, values=values, dtype=dtype, order=ORDERS[order]
        )

    def sp_mat_set_values(self, number: int, values: int) -> None:
        """Set where values are."""
        self.made[number].values = values

    dn_vec_set_values = sp_mat_set_values

    def sp_mat_set_attribute(self, number: int, attribute: int, address: int, nbytes: int) -> None:
        """Say which triangle is meant."""
        assert nbytes == 4
        name = "fill" if attribute == int(binding.SpMatAttribute.FILL_MODE) else "diag"
        setattr(self.made[number], name, int(_at(address, (), "int32")))

    # --- products -----------------------------------------------------------------------------------------------------

    def sp_mv_buffer_size(self, *told: Any) -> int:
        """Return what it needs."""
        return self._needs(told[3], told[1], told[7])

    def sp_mv_preprocess(self, *told: Any) -> None:
        """Prepare memory."""
        self._prepare(told[3], told[1], told[7], told[-1])

    def sp_mv(self, *told: Any) -> None:
        """Compute y ← alpha·op(a)·x + beta·y."""
        handle, op, alpha, a, x, beta, y, compute, _alg, buffer = told
        if self.made[a].kind == "csr" and op == N:
            self._is_prepared(a, op, compute, buffer)
        self._multiply(handle, op, alpha, a, self._dense(x), beta, y, compute)

    def sp_mm_buffer_size(self, *told: Any) -> int:
        """Return what it needs; refuse factors on the device for blocked ELL."""
        if self.made[told[4]].kind == "ell" and self.made[told[0]].mode == binding.PointerMode.DEVICE:
            raise binding.cuSPARSEError(int(binding.Status.NOT_SUPPORTED))
        return self._needs(told[4], told[1], told[8])

    def sp_mm_preprocess(self, *told: Any) -> None:
        """Prepare memory."""
        self._prepare(told[4], told[1], told[8], told[-1])

    def sp_mm(self, *told: Any) -> None:
        """Compute c ← alpha·op(a)·op(b) + beta·c."""
        handle, op_a, op_b, alpha, a, b, beta, c, compute, _alg, buffer = told
        matrix, dense = self.made[a], self.made[b]
        assert dense.order == self.made[c].order
        halves = {"float16", "bfloat16"}
        assert matrix.kind == "ell" or DTYPES[self.made[c].dtype] not in halves  # parts of a row are added up in it
        assert matrix.kind != "ell" or DTYPES[matrix.dtype] != "float32"  # computed in TF32
        if matrix.kind in {"bsr", "ell"} or DTYPES[matrix.dtype] in {"float16", "bfloat16"}:
            assert op_a == N
        if matrix.kind == "csr" and op_a == N:
            self._is_prepared(a, op_a, compute, buffer)
        self._multiply(handle, op_a, alpha, a, _op(op_b, self._dense(b)), beta, c, compute)

    def sddmm_buffer_size(self, *told: Any) -> None:
        """Write what it needs to an address."""
        _at(told[-1], (), "uint64")[...] = BUFFER_BYTES

    def sddmm(self, *told: Any) -> None:
        """Compute c ← alpha·(a·b) + beta·c where c has elements."""
        handle, op_a, op_b, alpha, a, b, beta, c, compute, _alg, _buffer = told
        matrix = self.made[c]
        assert matrix.kind == "csr"
        product = _op(op_a, self._dense(a)) @ _op(op_b, self._dense(b))
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indices[0]))
        values = _at(matrix.values, matrix.count, DTYPES[matrix.dtype])
        factor, other = (self._factor(handle, each, compute) for each in (alpha, beta))
        values[...] = factor * product[rows, matrix.indices[1]] + other * _wide(values)

    def _multiply(self, handle: int, op: int, alpha: int, a: int, b: Array, beta: int, out: int, compute: int) -> None:
        """Multiply; what a beta of 0 multiplies is known to be left unread where beta is in host memory."""
        target = self._dense(out, wide=False)
        factor, other = (self._factor(handle, each, compute) for each in (alpha, beta))
        total = factor * (_op(op, self._sparse(a)) @ b)
        reads = other or self.made[handle].mode == binding.PointerMode.DEVICE
        target[...] = total + other * _wide(target) if reads else total

    def _needs(self, a: int, op: int, compute: int) -> int:
        if self.refused:
            raise binding.cuSPARSEError(int(binding.Status.NOT_SUPPORTED))
        assert compute == (CudaDataType.CUDA_R_32F if self.made[a].dtype in {2, 14} else self.made[a].dtype)
        assert op in {N, T, C}
        return BUFFER_BYTES

    def _prepare(self, a: int, op: int, compute: int, buffer: int) -> None:
        assert buffer
        self.made[a].prepared = op, compute, buffer

    def _is_prepared(self, a: int, op: int, compute: int, buffer: int) -> None:
        assert self.made[a].prepared == (op, compute, buffer)

    # --- triangular systems -------------------------------------------------------------------------------------------

    def sp_sv_create_descr(self) -> int:
        """Make what an analysis fills."""
        return self._add(kind="solving")

    sp_sm_create_descr = sp_sv_create_descr

    def sp_sv_buffer_size(self, *told: Any) -> int:
        """Return what it needs."""
        return self._needs(told[3], told[1], told[6])

    def sp_sm_buffer_size(self, *told: Any) -> int:
        """Return what it needs."""
        return self._needs(told[4], told[1], told[7])

    def sp_sv_analysis(self, *told: Any) -> None:
        """Keep the values as they are."""
        self._analyze(told[-2], told[3], told[1])

    def sp_sm_analysis(self, *told: Any) -> None:
        """Keep the values as they are."""
        self._analyze(told[-2], told[4], told[1])

    def sp_sv_update_matrix(self, _handle: int, descr: int, values: int, part: int) -> None:
        """Keep other values."""
        solving = self.made[descr]
        matrix = self.made[solving.matrix]
        assert (matrix.values, part) == (values, 0)
        self._analyze(descr, solving.matrix, solving.op)

    sp_sm_update_matrix = sp_sv_update_matrix

    def sp_sv_solve(self, *told: Any) -> None:
        """Solve for a vector."""
        handle, op, alpha, a, x, y, compute, _alg, descr = told
        right = self._factor(handle, alpha, compute) * self._dense(x)
        self._dense(y, wide=False)[...] = self._solved(descr, a, op, right)

    def sp_sm_solve(self, *told: Any) -> None:
        """Solve for columns."""
        handle, op, op_b, alpha, a, b, c, compute, _alg, descr = told
        target = self._dense(c, wide=False)
        assert (op_b, self.made[b].order, self.made[c].order) == (N, "F", "F")
        assert not target.any()
        target[...] = self._solved(descr, a, op, self._factor(handle, alpha, compute) * self._dense(b))

    # --- products of sparse matrices ----------------------------------------------------------------------------------

    def sp_gemm_create_descr(self) -> int:
        """Make what keeps a product between its parts."""
        return self._add(kind="multiplying", estimated=False, divided=False)

    def called(self, name: str) -> Any:
        """Return one of the functions that are called without the bindings."""
        return {"workEstimation": self._estimate, "estimateMemory": self._divide}[name]

    def _estimate(self, *told: Any) -> int:
        """Ask for a first buffer, or use it: not one of the binding's, which does not pass on its size."""
        *_, algorithm, descr, size, buffer = told
        if algorithm in self.short:
            return int(binding.Status.INSUFFICIENT_RESOURCES)
        if buffer:
            assert _at(size, (), "uint64") == BUFFER_BYTES
            self.made[descr].estimated = True
        else:
            _at(size, (), "uint64")[...] = BUFFER_BYTES
        return 0

    def _divide(self, *told: Any) -> int:
        """Ask for a third buffer, or use it and tell the size of the second."""
        *_, algorithm, descr, part, size, buffer, of_second = told
        assert self.made[descr].estimated
        assert algorithm == binding.SpGEMMAlg.ALG3
        assert 0 < part <= 1
        if buffer:
            assert _at(size, (), "uint64") == BUFFER_BYTES
            self.made[descr].divided = True
            _at(of_second, (), "uint64")[...] = 2 * BUFFER_BYTES
        else:
            _at(size, (), "uint64")[...] = BUFFER_BYTES
        return 0

    def sp_gemm_compute(self, *told: Any) -> None:
        """Ask for a second buffer, or multiply; without `_divide`, ALG2 and ALG3 would give zeros (cuSPARSE 12.7)."""
        handle, op_a, op_b, alpha, a, b, _beta, c, compute, algorithm, descr, size, buffer = told
        assert (op_a, op_b, self.made[descr].estimated) == (N, N, True)
        assert self.made[descr].divided == (algorithm in {binding.SpGEMMAlg.ALG2, binding.SpGEMMAlg.ALG3})
        if not buffer:
            _at(size, (), "uint64")[...] = 2 * BUFFER_BYTES
            return
        assert _at(size, (), "uint64") == 2 * BUFFER_BYTES
        first, second = (scipy.sparse.csr_matrix(self._sparse(each)) for each in (a, b))
        for made, each in ((first, a), (second, b)):  # zeros that are stored make elements too
            indptr, indices = self.made[each].indices
            made.data, made.indices, made.indptr = _wide(_at(self.made[each].values, self.made[each].count,
                DTYPES[self.made[each].dtype])), indices, indptr  # fmt: skip
        self.made[c].result = self._factor(handle, alpha, compute) * (first @ second)

    def sp_mat_get_size(self, number: int) -> tuple[int, int, int]:
        """Return how large a product is."""
        it = self.made[number]
        return *it.shape, it.result.nnz

    def csr_set_pointers(self, number: int, indptr: int, indices: int, data: int) -> None:
        """Note where a product goes."""
        it = self.made[number]
        assert indptr == it.indptr
        it.pointers = indices, data

    def sp_gemm_copy(self, *told: Any) -> None:
        """Write a product."""
        it = self.made[told[7]]
        indices, data = it.pointers
        _at(it.indptr, (it.shape[0] + 1,), "int32")[...] = it.result.indptr
        _at(indices, (it.result.nnz,), "int32")[...] = it.result.indices
        _at(data, (it.result.nnz,), DTYPES[it.dtype])[...] = it.result.data

    # --- what is solved -----------------------------------------------------------------------------------------------

    def _analyze(self, descr: int, a: int, op: int) -> None:
        self.made[descr] = SimpleNamespace(kind="solving", matrix=a, op=op, dense=self._sparse(a))

    def _solved(self, descr: int, a: int, op: int, right: Array) -> Array:
        solving, matrix = self.made[descr], self.made[a]
        assert (solving.matrix, solving.op) == (a, op)
        half = (np.tril if matrix.fill == 0 else np.triu)(solving.dense)
        if matrix.diag == 1:
            np.fill_diagonal(half, 1)
        with np.errstate(all="ignore"):
            if not np.diagonal(half).all():
                return np.full_like(right, np.nan)
            made: Array = np.linalg.solve(_op(op, half), right)
        return made

    # --- memory -------------------------------------------------------------------------------------------------------

    def _dense(self, number: int, *, wide: bool = True) -> Array:
        it = self.made[number]
        dtype = DTYPES[it.dtype]
        if it.kind == "vector":
            found = _at(it.values, it.shape, dtype)
        elif it.order == "C":
            found = _at(it.values, (it.shape[0] - 1, it.lead), dtype, more=it.shape[1])[:, : it.shape[1]]
        else:
            found = _at(it.values, (it.shape[1] - 1, it.lead), dtype, more=it.shape[0])[:, : it.shape[0]].T
        return _wide(found) if wide else found

    def _sparse(self, number: int) -> Array:
        it = self.made[number]
        values = _wide(_at(it.values, it.count, DTYPES[it.dtype]))
        if it.kind == "ell":
            size, made = it.count[0] // it.indices.shape[0], np.zeros(it.shape, values.dtype)
            for (row, place), column in np.ndenumerate(it.indices):
                at = max(column, 0) * size
                made[row * size : (row + 1) * size, at : at + size] += values[
                    row * size : (row + 1) * size, place * size : (place + 1) * size
                ]
            return made
        indptr, indices = it.indices
        if it.kind == "coo":
            assert (np.diff(indptr) >= 0).all()
            return np.asarray(scipy.sparse.coo_array((values, (indptr, indices)), it.shape).toarray())
        kind = scipy.sparse.bsr_array if it.kind == "bsr" else scipy.sparse.csr_array
        return np.asarray(kind((values, indices, indptr), it.shape).toarray())


def installed(cusparse: FakeCusparse) -> AbstractContextManager[Any]:
    """Return a context in which the stand-ins are imported; what is imported on top of them is forgotten after it."""
    cublas = FakeCublas()
    modules = {
        "cupy": FakeCupy("cupy"),
        "cuda": _module("cuda", pathfinder=SimpleNamespace()),
        "cupyx": _module("cupyx"),
        "cupyx.scipy": _module("cupyx.scipy", sparse=SimpleNamespace(csr_matrix=_CupyRows)),
        "nvmath": _module("nvmath", CudaDataType=CudaDataType),
        "nvmath.bindings": _module("nvmath.bindings", cublas=cublas, cusparse=cusparse),
        "nvmath.bindings.cublas": cublas,
        "nvmath.bindings.cusparse": cusparse,
    }
    return mock.patch.dict("sys.modules", modules)


class _CupyRows:
    """A matrix of CuPy's, which is only transposed."""

    def __init__(self, told: tuple[Array, Array, Array], shape: tuple[int, int]) -> None:
        made = scipy.sparse.csr_matrix(told, shape=shape).T.tocsr()
        parts = {name: on_gpu(getattr(made, name)) for name in ("data", "indices", "indptr")}
        self.T = SimpleNamespace(tocsr=lambda: SimpleNamespace(**parts))


def _at(address: int, shape: tuple[int, ...], dtype: str, more: int = 0) -> Array:
    """Return memory as an array; `more` elements are in a last row that is not whole."""
    kind = dtypes.to_numpy(dtype)
    count = shape[0] * shape[1] + more if more else int(np.prod(shape))
    memory: Any = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    flat = np.frombuffer(memory, kind)
    if not more:
        return flat.reshape(shape)
    strides = shape[1] * kind.itemsize, kind.itemsize
    return np.lib.stride_tricks.as_strided(flat, (shape[0] + 1, shape[1]), strides)


def _wide(values: Array) -> Array:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _op(op: int, values: Array) -> Array:
    return values if op == N else values.T if op == T else values.T.conj()
