"""Stand-ins for cuSOLVER, cuBLAS' batches and CuPy on the host's memory: the CUDA actor is proved without a GPU.

A routine's arguments are named as those of `nvmath.bindings` are, and it does what NVIDIA's documentation says of it,
for matrices in column order. Workspaces are filled with rubbish, so that memory in use is never taken for one.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest import mock

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.linalg import lapack

from tests.fakes.fake_cublas import (
    DTYPES,
    HANDLE,
    REAL_OF,
    STREAM,
    CudaDataType,
    FakeCublas,
    _ArrayWithAddress,
    _matrix,
    _memory,
    _Pinned,
    _transposed,
    _triangle,
    _vector,
)

Array = npt.NDArray[Any]

PARAMS: Final = 78
JACOBI: Final = 79
WORK: Final = 96
"""Bytes that every routine wants to work in, on the device and on the host."""

REAL: Final = {
    name: importlib.import_module(f"nvmath.bindings.{name}") for name in ("cublas", "cudss", "cusolver", "cusolverDn")
}
"""The bindings, which can be imported without a GPU."""

CUDA_R_32I: Final = 10
TO_HOST: Final = 2

ALIGNED: Final = 256
"""Where allocations begin."""

PREFIXES: Final = {"s": "float32", "d": "float64", "c": "complex64", "z": "complex128"}


class FakeCusolver(ModuleType):
    """The binding."""

    def __init__(self) -> None:
        super().__init__("nvmath.bindings.cusolverDn")
        self.settings: list[str] = []
        """Objects made and settings, in order."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return routine("cusolverDn", name, CUSOLVER)

    def create(self) -> int:
        """Make a handle."""
        self.settings.append("create")
        return HANDLE

    def create_params(self) -> int:
        """Make parameters."""
        self.settings.append("create_params")
        return PARAMS

    def create_gesvdj_info(self) -> int:
        """Make parameters of Jacobi's method."""
        return JACOBI

    def set_stream(self, handle: int, stream_id: int) -> None:
        """Set the stream."""
        assert (handle, stream_id) == (HANDLE, STREAM)
        self.settings.append("set_stream")


class FakeCublasBatches(FakeCublas):
    """The binding, with the routines that take pointers to matrices."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return routine("cublas", name, CUBLAS) if name[1:] in CUBLAS else super().__getattr__(name)


def installed(cusolver: FakeCusolver, cublas: FakeCublas) -> AbstractContextManager[Any]:
    """Return a context in which the stand-ins are imported; what is imported on top of them is forgotten after it."""
    nvmath, bindings = ModuleType("nvmath"), ModuleType("nvmath.bindings")
    nvmath.__dict__.update(CudaDataType=CudaDataType, bindings=bindings)
    pathfinding = ModuleType("cuda")
    pathfinding.pathfinder = SimpleNamespace(load_nvidia_dynamic_lib=str, DynamicLibNotFoundError=RuntimeError)  # type: ignore[attr-defined]
    cudss = FakeCudss()
    bindings.__dict__.update(cudss=cudss, cublas=cublas, cusolver=REAL["cusolver"], cusolverDn=cusolver)
    modules = {
        "cuda": pathfinding,
        "cuda.pathfinder": pathfinding.pathfinder,
        "cupy": FakeCupy(),
        "nvmath": nvmath,
        "nvmath.bindings": bindings,
        "nvmath.bindings.cublas": cublas,
        "nvmath.bindings.cudss": cudss,
        "nvmath.bindings.cusolver": REAL["cusolver"],
        "nvmath.bindings.cusolverDn": cusolver,
    }
    return mock.patch.dict("sys.modules", modules)


EVENT: Final = object()
"""What a stream records."""


def _is_event(event: object) -> None:
    assert event is EVENT


class FakeCupy(ModuleType):
    """NumPy, whose arrays tell their addresses and come to the host as CuPy's do."""

    def __init__(self) -> None:
        super().__init__("cupy")
        stream = SimpleNamespace(ptr=STREAM, synchronize=lambda: None, record=lambda: EVENT, wait_event=_is_event)
        self.cuda = SimpleNamespace(
            alloc=_Allocated,
            alloc_pinned_memory=_Pinned,
            Stream=lambda non_blocking: stream if non_blocking else None,
            get_current_stream=lambda: stream,
            runtime=SimpleNamespace(memcpyAsync=_copy_to_host, memcpyDeviceToHost=TO_HOST),
        )
        self.ElementwiseKernel = _residual

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return found if isinstance(found, type) else functools.partial(_as_on_device, found)


class FakeCudss(ModuleType):
    """cuDSS: factors are dense here, and a singular matrix gives NaNs."""

    def __init__(self) -> None:
        super().__init__("nvmath.bindings.cudss")
        self._matrices: dict[int, SimpleNamespace] = {}
        self._numbers = itertools.count(1)  # none comes again: matrices are forgotten whenever garbage is collected
        self._analysed: set[tuple[int, ...]] = set()
        for name in ("MatrixType", "MatrixViewType", "IndexBase", "Layout", "Phase"):
            setattr(self, name, getattr(REAL["cudss"], name))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        parameters = list(inspect.signature(getattr(REAL["cudss"], name)).parameters)
        if name.startswith("matrix_create"):
            return functools.partial(self._create, parameters)
        return lambda *given: HANDLE if len(given) == len(parameters) and "create" in name else None

    def _create(self, parameters: list[str], *given: int) -> int:
        number = next(self._numbers)
        self._matrices[number] = SimpleNamespace(**dict(zip(parameters, given, strict=True)))
        return number

    def matrix_set_values(self, matrix: int, values: int) -> None:
        """Let a matrix have other values."""
        self._matrices[matrix].values = values

    def matrix_destroy(self, matrix: int) -> None:
        """Forget a matrix."""
        del self._matrices[matrix]

    def execute(self, handle: int, phase: int, config: int, data: int, *matrices: int) -> None:
        """Do a phase."""
        assert (handle, config, data) == (HANDLE, HANDLE, HANDLE)
        if phase == REAL["cudss"].Phase.ANALYSIS:
            self._analysed.add(matrices)
        assert matrices in self._analysed
        if phase != REAL["cudss"].Phase.SOLVE:
            return
        a, x, b = (self._matrices[each] for each in matrices)
        dtype = DTYPES[CudaDataType(a.value_type)]
        assert a.offset_type == a.index_type == CUDA_R_32I
        indptr = _memory(a.row_start, a.nrows + 1, "int32")
        dense = np.zeros((a.nrows, a.ncols), dtype)
        rows = np.repeat(np.arange(a.nrows), np.diff(indptr))
        if a.nnz:
            dense[rows, _memory(a.col_indices, a.nnz, "int32")] = _memory(a.values, a.nnz, dtype)
        right = _matrix(b.values, b.nrows, b.ncols, b.ld, dtype)
        try:
            if a.mtype in {REAL["cudss"].MatrixType.SPD, REAL["cudss"].MatrixType.HPD}:
                np.linalg.cholesky(dense)
            found = np.linalg.solve(dense, right)
        except np.linalg.LinAlgError:
            found = np.full_like(right, np.nan)
        _matrix(x.values, x.nrows, x.ncols, x.ld, dtype)[...] = found


def _residual(*_source: str) -> Callable[..., Any]:
    """Return what stands for the kernel that judges solutions of sparse systems."""

    def judge(data: Array, indices: Array, indptr: Array, x: Array, b: Array, most: Array, n: int, limit: float) -> Any:
        a = scipy.sparse.csr_array((np.asarray(data), np.asarray(indices), np.asarray(indptr)), shape=(n, n))
        scale = np.abs(b) + (abs(a) @ np.abs(x).T).T
        with np.errstate(all="ignore"):
            error = np.where(b == (a @ x.T).T, 0, np.abs(b - (a @ x.T).T) / scale)
            return np.where(scale <= limit * np.asarray(most)[:, None], error, 1).view(DeviceValues)

    return judge


class DeviceValues(_ArrayWithAddress):
    """An array on the device."""


def _copy_to_host(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
    assert (kind, stream) == (TO_HOST, STREAM)
    _memory(target, nbytes, "uint8")[...] = _memory(source, nbytes, "uint8")


class _Allocated:
    """Memory on the device."""

    def __init__(self, nbytes: int) -> None:
        self._memory = np.zeros(nbytes + ALIGNED, np.uint8)
        self.ptr = -(-int(self._memory.ctypes.data) // ALIGNED) * ALIGNED


def _as_on_device(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    made = function(*arguments, **named)
    return made.view(DeviceValues) if isinstance(made, np.ndarray) else made


def routine(binding: str, name: str, known: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a routine by the binding's name."""
    real = getattr(REAL[binding], name, None)
    base = name if name in known or name.removesuffix("_buffer_size") in known else name[1:]
    sized = base.removesuffix("_buffer_size")
    if real is None or sized not in known:
        raise AttributeError(name)
    parameters = list(inspect.signature(real).parameters)
    return functools.partial(_call, parameters, PREFIXES.get(name[0]), known[sized], sized=base != sized)


def _call(parameters: list[str], dtype: str | None, done: Callable[..., Any], *arguments: int, sized: bool) -> Any:
    assert all(type(argument) is int for argument in arguments)
    of = SimpleNamespace(**dict(zip(parameters, arguments, strict=True)))
    assert of.handle == HANDLE
    assert getattr(of, "params", PARAMS) in {PARAMS, JACOBI}
    if hasattr(of, "data_type_a"):
        dtype = DTYPES[CudaDataType(of.data_type_a)]
        assert getattr(of, "compute_type", of.data_type_a) == of.data_type_a
    assert dtype is not None
    if sized:
        return (WORK, WORK) if hasattr(of, "compute_type") else WORK // np.dtype(dtype).itemsize
    _scribble(of, dtype)
    return done(of, dtype)


def _scribble(of: Any, dtype: str) -> None:
    """Write to the workspace."""
    if hasattr(of, "buffer_on_device"):
        assert of.workspace_in_bytes_on_device == of.workspace_in_bytes_on_host == WORK
        for address in (of.buffer_on_device, of.buffer_on_host):
            _memory(address, WORK, "uint8")[...] = 0xAB
    if hasattr(of, "lwork"):
        assert of.lwork == WORK // np.dtype(dtype).itemsize
        _memory(getattr(of, "work", None) or of.workspace, WORK, "uint8")[...] = 0xAB


def _inform(address: int, info: int) -> None:
    _memory(address, 1, "int32")[0] = info


def _lapack(name: str, dtype: str) -> Callable[..., Any]:
    found: Callable[..., Any] = lapack.get_lapack_funcs((name,), dtype=np.dtype(dtype))[0]
    return found


# --- cuSOLVER ---------------------------------------------------------------------------------------------------------


def _xgetrf(of: Any, dtype: str) -> None:
    a = _matrix(of.a, of.m, of.n, of.lda, dtype)
    factors, pivots, info = _lapack("getrf", dtype)(a)
    a[...] = factors
    _memory(of.ipiv, len(pivots), "int64")[...] = pivots + 1
    _inform(of.info, info)


def _xgetrs(of: Any, dtype: str) -> None:
    assert of.data_type_b == of.data_type_a
    a, b = _matrix(of.a, of.n, of.n, of.lda, dtype), _matrix(of.b, of.n, of.nrhs, of.ldb, dtype)
    pivots = _memory(of.ipiv, of.n, "int64") - 1
    assert ((pivots >= 0) & (pivots < of.n)).all()
    b[...], info = _lapack("getrs", dtype)(a, pivots.astype(np.int32), b, trans=of.trans)
    _inform(of.info, info)


def _xpotrf(of: Any, dtype: str) -> None:
    a = _matrix(of.a, of.n, of.n, of.lda, dtype)
    factor, info = _lapack("potrf", dtype)(a, lower=of.uplo == 0, clean=0)
    np.copyto(a, factor, where=_triangle(of.uplo, of.n))
    _inform(of.info, info)


def _potrf_batched(of: Any, dtype: str) -> None:
    for number, address in enumerate(_pointers(of.aarray, of.batch_size)):
        info = of.info_array + 4 * number
        _xpotrf(SimpleNamespace(uplo=of.uplo, n=of.n, a=address, lda=of.lda, info=info), dtype)
        a = _matrix(address, of.n, of.n, of.lda, dtype)  # as an H100's writes into the other triangle
        a[np.triu_indices(of.n, 1) if of.uplo == 0 else np.tril_indices(of.n, -1)] = 7.0


def _xgeqrf(of: Any, dtype: str) -> None:
    a = _matrix(of.a, of.m, of.n, of.lda, dtype)
    a[...], tau, _, info = _lapack("geqrf", dtype)(a)
    _memory(of.tau, len(tau), dtype)[...] = tau
    _inform(of.info, info)


def _orgqr(of: Any, dtype: str) -> None:
    assert of.m >= of.n >= of.k > 0
    a, tau = _matrix(of.a, of.m, of.n, of.lda, dtype), _memory(of.tau, of.k, dtype)
    a[...], _, info = _lapack("orgqr" if dtype.startswith("float") else "ungqr", dtype)(a, tau)
    _inform(of.info, info)


def _ormqr(of: Any, dtype: str) -> None:
    a = _matrix(of.a, of.m if of.side == 0 else of.n, of.k, of.lda, dtype)
    tau, c = _memory(of.tau, of.k, dtype), _matrix(of.c, of.m, of.n, of.ldc, dtype)
    call = _lapack("ormqr" if dtype.startswith("float") else "unmqr", dtype)
    side, trans = "LR"[of.side], "NTC"[of.trans]
    c[...], _, info = call(side, trans, a, tau, c, 64 * max(c.shape))
    _inform(of.dev_info, info)


def _xgesvd(of: Any, dtype: str) -> None:
    assert of.m >= of.n
    assert of.jobu == of.jobvt
    job, a = chr(of.jobu), _matrix(of.a, of.m, of.n, of.lda, dtype)
    u, s, vh, info = _lapack("gesvd", dtype)(a, compute_uv=job != "N", full_matrices=job == "A")
    a[...] = np.nan
    _memory(of.s, of.n, DTYPES[CudaDataType(of.data_type_s)])[...] = s
    if job != "N":
        _matrix(of.u, len(u), len(u.T), of.ldu, dtype)[...] = u
        _matrix(of.vt, len(vh), len(vh.T), of.ldvt, dtype)[...] = vh
    _inform(of.info, info)


def _gesvdj_batched(of: Any, dtype: str) -> None:
    assert max(of.m, of.n) <= 32
    assert of.jobz == 1
    item, real = np.dtype(dtype).itemsize, REAL_OF.get(dtype, dtype)
    k = min(of.m, of.n)
    for number in range(of.batch_size):
        a = _matrix(of.a + number * of.lda * of.n * item, of.m, of.n, of.lda, dtype)
        u, s, vh, info = _lapack("gesvd", dtype)(a)
        a[...] = np.nan
        _memory(of.s + number * k * np.dtype(real).itemsize, k, real)[...] = s
        _matrix(of.u + number * of.ldu * of.m * item, of.m, of.m, of.ldu, dtype)[...] = u
        _matrix(of.v + number * of.ldv * of.n * item, of.n, of.n, of.ldv, dtype)[...] = vh.conj().T
        _inform(of.info + 4 * number, info)


def _xsyevd(of: Any, dtype: str) -> None:
    a = _matrix(of.a, of.n, of.n, of.lda, dtype)
    name = "syevd" if dtype.startswith("float") else "heevd"
    w, v, info = _lapack(name, dtype)(a, compute_v=of.jobz, lower=of.uplo == 0)
    a[...] = v if of.jobz else np.nan
    _memory(of.w, of.n, DTYPES[CudaDataType(of.data_type_w)])[...] = w
    _inform(of.info, info)


def _sygvd(of: Any, dtype: str) -> None:
    a, b = _matrix(of.a, of.n, of.n, of.lda, dtype), _matrix(of.b, of.n, of.n, of.ldb, dtype)
    factor, info = _lapack("potrf", dtype)(b, lower=of.uplo == 0, clean=0)
    if info:
        _inform(of.info, of.n + info)
        return
    name = "sygvd" if dtype.startswith("float") else "hegvd"
    w, v, info = _lapack(name, dtype)(a, b, itype=of.itype, jobz="NV"[of.jobz], uplo="LU"[of.uplo])
    np.copyto(b, factor, where=_triangle(of.uplo, of.n))
    a[...] = v if of.jobz else np.nan
    _memory(of.w, of.n, REAL_OF.get(dtype, dtype))[...] = w
    _inform(of.info, info)


CUSOLVER: Final[dict[str, Callable[[Any, str], Any]]] = {
    "xgetrf": _xgetrf,
    "xgetrs": _xgetrs,
    "xpotrf": _xpotrf,
    "potrf_batched": _potrf_batched,
    "xgeqrf": _xgeqrf,
    "orgqr": _orgqr,
    "ungqr": _orgqr,
    "ormqr": _ormqr,
    "unmqr": _ormqr,
    "xgesvd": _xgesvd,
    "gesvdj_batched": _gesvdj_batched,
    "xsyevd": _xsyevd,
    "sygvd": _sygvd,
    "hegvd": _sygvd,
}


# --- cuBLAS' batches --------------------------------------------------------------------------------------------------


def _pointers(address: int, count: int) -> Iterator[int]:
    return (int(each) for each in _memory(address, count, "int64"))


def _getrf_batched(of: Any, dtype: str) -> None:
    for number, address in enumerate(_pointers(of.a, of.batch_size)):
        a = _matrix(address, of.n, of.n, of.lda, dtype)
        factors, pivots, info = _lapack("getrf", dtype)(a)
        a[...] = factors
        _memory(of.p + 4 * of.n * number, of.n, "int32")[...] = pivots + 1
        _inform(of.info + 4 * number, info)


def _getrs_batched(of: Any, dtype: str) -> None:
    pairs = zip(_pointers(of.aarray, of.batch_size), _pointers(of.barray, of.batch_size), strict=True)
    for number, (left, right) in enumerate(pairs):
        a, b = _matrix(left, of.n, of.n, of.lda, dtype), _matrix(right, of.n, of.nrhs, of.ldb, dtype)
        pivots = _memory(of.dev_ipiv + 4 * of.n * number, of.n, "int32") - 1
        assert ((pivots >= 0) & (pivots < of.n)).all()
        b[...] = _lapack("getrs", dtype)(a, pivots, b, trans=of.trans)[0]
    _inform(of.info, 0)


def _trsm_batched(of: Any, dtype: str) -> None:
    assert _vector(of.alpha, 1, 1, dtype)[0] == 1
    k = of.m if of.side == 0 else of.n
    pairs = zip(_pointers(of.a, of.batch_count), _pointers(of.b, of.batch_count), strict=True)
    for left, right in pairs:
        half = np.where(_triangle(of.uplo, k), _matrix(left, k, k, of.lda, dtype), 0)
        a, b = _transposed(of.trans, half), _matrix(right, of.m, of.n, of.ldb, dtype)
        b[...] = np.linalg.solve(a, b) if of.side == 0 else np.linalg.solve(a.T, b.T).T


CUBLAS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "getrf_batched": _getrf_batched,
    "getrs_batched": _getrs_batched,
    "trsm_batched_64": _trsm_batched,
}
