"""Stand-ins for cuBLAS and CuPy on the host's memory: what the CUDA actor asks for is proved without a GPU.

A routine's arguments are told by their order alone, which is that of `nvmath.bindings.cublas`; it does what cuBLAS'
documentation says of it, for matrices in column order. It checks what the actor has to give: sizes that are not empty,
leading dimensions that suffice, factors and results where the pointer mode says.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn
from unittest import mock

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from atomr_mp.protocol import dtypes
from tests.fakes.fake_arrays import FakeArray

Array = npt.NDArray[Any]

HANDLE: Final = 77
STREAM: Final = 5
HOST, DEVICE = 0, 1


class CublasError(Exception):
    """As the binding raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class FakeCublas(ModuleType):
    """The binding, with one handle."""

    Operation = enum.IntEnum("Operation", {"N": 0, "T": 1, "C": 2})
    FillMode = enum.IntEnum("FillMode", {"LOWER": 0, "UPPER": 1})
    SideMode = enum.IntEnum("SideMode", {"LEFT": 0, "RIGHT": 1})
    DiagType = enum.IntEnum("DiagType", {"NON_UNIT": 0, "UNIT": 1})
    PointerMode = enum.IntEnum("PointerMode", {"HOST": HOST, "DEVICE": DEVICE})
    ComputeType = enum.IntEnum("ComputeType", {"COMPUTE_32F": 68, "COMPUTE_64F": 70, "COMPUTE_32F_FAST_TF32": 77})
    GemmAlgo = enum.IntEnum("GemmAlgo", {"DFALT": -1})
    Status = enum.IntEnum("Status", {"INVALID_VALUE": 7, "NOT_SUPPORTED": 15})
    Math = enum.IntEnum("Math", {"DEFAULT_MATH": 0, "DISALLOW_REDUCED_PRECISION_REDUCTION": 16})

    cuBLASError = CublasError  # noqa: N815 - the binding's

    def __init__(self) -> None:
        super().__init__("nvmath.bindings.cublas")
        self.refused: dict[str, int] = {}
        """Routines that are not done, and the status in place of it."""
        self.mode = HOST
        self.in_tf32 = False
        """Whether a product may have rounded its factors."""
        self.settings: list[str] = []
        """Settings of the handle, in order; all but the pointer mode."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name not in SIGNATURES:
            raise AttributeError(name)
        if name in self.refused:
            return functools.partial(_refuse, self.refused[name])
        routine, dtype = ROUTINES[name]
        return functools.partial(_call, self, name, routine, dtype)

    def factor(self, address: int, dtype: str) -> Any:
        """Return the factor at an address, in the memory that the pointer mode says."""
        return factor_at(address, dtype, on_device=self.mode == DEVICE)

    def answer(self, address: int, dtype: str, value: Any) -> None:
        """Write a result."""
        assert self.mode == DEVICE
        _memory(address, 1, dtype)[0] = value


def installed(cublas: FakeCublas) -> AbstractContextManager[Any]:
    """Return a context in which the stand-ins are imported; what is imported on top of them is forgotten after it."""
    cuda = SimpleNamespace(alloc_pinned_memory=_Pinned)
    modules = {
        "cupy": _module(
            "cupy",
            cuda=cuda,
            float32=np.float32,
            tri=np.tri,
            copyto=np.copyto,
            ascontiguousarray=_ascontiguousarray,
            full=_full,
        ),
        "nvmath": _module("nvmath", CudaDataType=CudaDataType),
        "nvmath.bindings": _module("nvmath.bindings", cublas=cublas),
        "nvmath.bindings.cublas": cublas,
    }
    return mock.patch.dict("sys.modules", modules)


device_memory: Final[dict[int, object]] = {}
"""Addresses that arrays on the device have given since a test began a request, and those arrays."""


def factor_at(address: int, dtype: str, *, on_device: bool) -> Any:
    """Return a factor, as a kernel reads it when it runs: a library that gets another memory reads anything."""
    assert (address in device_memory) == on_device
    return _memory(address, 1, dtype)[0]


class FakeStream:
    """A stream of the device, with a handle."""

    def __init__(self) -> None:
        self.stream = SimpleNamespace(ptr=STREAM)


class AddressedArray(FakeArray):
    """An array in a buffer of NumPy's with an address, as the actor meets those on a device."""

    @property
    def address(self) -> int:
        """Where the element of index zero lies."""
        address: int = self.slab.ctypes.data + self.layout.offset
        device_memory[address] = self.slab
        return address

    @property
    def array(self) -> Array:
        """The array itself, zero-copy."""
        return super().array.view(_ArrayWithAddress)


class CudaDataType(enum.IntEnum):
    """Those that are used, with CUDA's values."""

    CUDA_R_32F = 0
    CUDA_R_64F = 1
    CUDA_R_16F = 2
    CUDA_C_32F = 4
    CUDA_C_64F = 5
    CUDA_R_32I = 10
    CUDA_R_16BF = 14


DTYPES: Final = dict(
    zip(CudaDataType, ("float32", "float64", "float16", "complex64", "complex128", "int32", "bfloat16"), strict=True)
)
REAL_OF: Final = {"complex64": "float32", "complex128": "float64"}


# --- the routines -----------------------------------------------------------------------------------------------------


def _create(cublas: FakeCublas, _dtype: str, _of: Any) -> int:
    cublas.settings.append("create")
    return HANDLE


def _set_stream(cublas: FakeCublas, _dtype: str, of: Any) -> None:
    assert of.stream_id == STREAM
    cublas.settings.append("set_stream")


def _set_workspace(cublas: FakeCublas, _dtype: str, of: Any) -> None:
    assert of.workspace % 256 == 0
    assert of.workspace_size_in_bytes == 2**25
    cublas.settings.append("set_workspace")


def _set_math_mode(cublas: FakeCublas, _dtype: str, of: Any) -> None:
    assert of.mode == cublas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION
    cublas.settings.append("set_math_mode")


def _set_pointer_mode(cublas: FakeCublas, _dtype: str, of: Any) -> None:
    cublas.mode = of.mode


def _axpy(cublas: FakeCublas, dtype: str, of: Any) -> None:
    y = _vector(of.y, of.n, of.incy, dtype)
    y += cublas.factor(of.alpha, dtype) * _vector(of.x, of.n, of.incx, dtype)


def _axpy_ex(cublas: FakeCublas, _dtype: str, of: Any) -> None:
    assert of.x_type == of.y_type
    assert of.alpha_type == of.executiontype == CudaDataType.CUDA_R_32F
    x, y = (_vector(at, of.n, inc, DTYPES[of.x_type]) for at, inc in ((of.x, of.incx), (of.y, of.incy)))
    y[...] = cublas.factor(of.alpha, "float32") * _wide(x) + _wide(y)


def _scal(cublas: FakeCublas, dtype: str, of: Any) -> None:
    x = _vector(of.x, of.n, of.incx, dtype)
    x *= cublas.factor(of.alpha, dtype)


def _scal_ex(cublas: FakeCublas, _dtype: str, of: Any) -> None:
    assert of.alpha_type == of.execution_type == CudaDataType.CUDA_R_32F
    x = _vector(of.x, of.n, of.incx, DTYPES[of.x_type])
    x[...] = cublas.factor(of.alpha, "float32") * _wide(x)


def _copy(_cublas: FakeCublas, dtype: str, of: Any) -> None:
    _vector(of.y, of.n, of.incy, dtype)[...] = _vector(of.x, of.n, of.incx, dtype)


def _swap(_cublas: FakeCublas, dtype: str, of: Any) -> None:
    x, y = _vector(of.x, of.n, of.incx, dtype), _vector(of.y, of.n, of.incy, dtype)
    x[...], y[...] = y.copy(), x.copy()


def _rot(cublas: FakeCublas, dtype: str, of: Any) -> None:
    x, y = _vector(of.x, of.n, of.incx, dtype), _vector(of.y, of.n, of.incy, dtype)
    c, s = cublas.factor(of.c, REAL_OF.get(dtype, dtype)), cublas.factor(of.s, dtype)
    x[...], y[...] = c * x + s * y, c * y - s.conj() * x


def _nrm2(cublas: FakeCublas, dtype: str, of: Any) -> None:
    norm = np.linalg.norm(_vector(of.x, of.n, of.incx, dtype))
    cublas.answer(of.result, REAL_OF.get(dtype, dtype), norm)


def _asum(cublas: FakeCublas, dtype: str, of: Any) -> None:
    cublas.answer(of.result, REAL_OF.get(dtype, dtype), _magnitudes(dtype, of).sum())


def _iamax(cublas: FakeCublas, dtype: str, of: Any) -> None:
    cublas.answer(of.result, "int64", _magnitudes(dtype, of).argmax() + 1)


def _iamin(cublas: FakeCublas, dtype: str, of: Any) -> None:
    cublas.answer(of.result, "int64", _magnitudes(dtype, of).argmin() + 1)


def _dot(cublas: FakeCublas, dtype: str, of: Any) -> None:
    x, y = _vector(of.x, of.n, of.incx, dtype), _vector(of.y, of.n, of.incy, dtype)
    cublas.answer(of.result, dtype, np.sum(x * y))


def _dotc(cublas: FakeCublas, dtype: str, of: Any) -> None:
    x, y = _vector(of.x, of.n, of.incx, dtype), _vector(of.y, of.n, of.incy, dtype)
    cublas.answer(of.result, dtype, np.sum(x.conj() * y))


def _gemv(cublas: FakeCublas, dtype: str, of: Any) -> None:
    rows, columns = (of.m, of.n) if of.trans == 0 else (of.n, of.m)
    x, y = _vector(of.x, columns, of.incx, dtype), _vector(of.y, rows, of.incy, dtype)
    product = _op(of.trans, of.a, rows, columns, of.lda, dtype) @ x
    y[...] = _sum(cublas.factor(of.alpha, dtype), product, cublas.factor(of.beta, dtype), y)


def _ger(cublas: FakeCublas, dtype: str, of: Any) -> None:
    _add_outer(cublas, dtype, of, _vector(of.y, of.n, of.incy, dtype))


def _gerc(cublas: FakeCublas, dtype: str, of: Any) -> None:
    _add_outer(cublas, dtype, of, _vector(of.y, of.n, of.incy, dtype).conj())


def _add_outer(cublas: FakeCublas, dtype: str, of: Any, row: Array) -> None:
    a = _matrix(of.a, of.m, of.n, of.lda, dtype)
    a += cublas.factor(of.alpha, dtype) * np.outer(_vector(of.x, of.m, of.incx, dtype), row)


def _geam(cublas: FakeCublas, dtype: str, of: Any) -> None:
    alpha, beta = cublas.factor(of.alpha, dtype), cublas.factor(of.beta, dtype)
    a, b = _op(of.transa, of.a, of.m, of.n, of.lda, dtype), _op(of.transb, of.b, of.m, of.n, of.ldb, dtype)
    _matrix(of.c, of.m, of.n, of.ldc, dtype)[...] = _sum(1, alpha * a if alpha else np.zeros_like(a), beta, b)


def _syrk(cublas: FakeCublas, dtype: str, of: Any) -> None:
    assert of.trans in {0, 1}
    a, c = _op(of.trans, of.a, of.n, of.k, of.lda, dtype), _matrix(of.c, of.n, of.n, of.ldc, dtype)
    total = _sum(cublas.factor(of.alpha, dtype), a @ a.T, cublas.factor(of.beta, dtype), c)
    np.copyto(c, total, where=_triangle(of.uplo, of.n))


def _trsm(cublas: FakeCublas, dtype: str, of: Any) -> None:
    k = of.m if of.side == 0 else of.n
    half = np.where(_triangle(of.uplo, k), _matrix(of.a, k, k, of.lda, dtype), 0)
    if of.diag == 1:
        np.fill_diagonal(half, 1)
    a, b = _transposed(of.trans, half), _matrix(of.b, of.m, of.n, of.ldb, dtype)
    right = cublas.factor(of.alpha, dtype) * b
    b[...] = _solution(a, right) if of.side == 0 else _solution(a.T, right.T).T


def _solution(a: Array, b: Array) -> Array:
    """Solve; a zero on the diagonal of a triangle is no error."""
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        return np.full_like(b, np.nan)


def _gemm_ex(cublas: FakeCublas, dtype: str, of: Any) -> None:
    _gemm_strided_batched_ex(
        cublas, dtype, SimpleNamespace(**vars(of), stride_a=0, stride_b=0, stride_c=0, batch_count=1)
    )


def _gemm_strided_batched_ex(cublas: FakeCublas, _dtype: str, of: Any) -> None:
    assert of.atype == of.btype == of.ctype
    dtype = DTYPES[of.ctype]
    in_tf32 = of.compute_type == cublas.ComputeType.COMPUTE_32F_FAST_TF32
    assert (of.compute_type, of.algo) == (70 if dtype in {"float64", "complex128"} else 77 if in_tf32 else 68, -1)
    cublas.in_tf32 |= in_tf32
    item = dtypes.item_bytes(dtype)
    scale = "float32" if item == 2 else dtype
    alpha, beta = cublas.factor(of.alpha, scale), cublas.factor(of.beta, scale)
    for i in range(of.batch_count):
        a = _op(of.transa, of.a + i * of.stride_a * item, of.m, of.k, of.lda, dtype)
        b = _op(of.transb, of.b + i * of.stride_b * item, of.k, of.n, of.ldb, dtype)
        c = _matrix(of.c + i * of.stride_c * item, of.m, of.n, of.ldc, dtype)
        c[...] = _sum(alpha, _wide(a) @ _wide(b), beta, _wide(c))


# --- their names ------------------------------------------------------------------------------------------------------

Routine = Callable[[FakeCublas, str, Any], object]

_X: Final = "handle n x incx"
_XY: Final = f"{_X} y incy"
_OF_ALL_TYPES: Final[dict[str, tuple[Routine, str]]] = {
    "axpy": (_axpy, "handle n alpha x incx y incy"),
    "scal": (_scal, "handle n alpha x incx"),
    "copy": (_copy, _XY),
    "swap": (_swap, _XY),
    "rot": (_rot, f"{_XY} c s"),
    "gemv": (_gemv, "handle trans m n alpha a lda x incx beta y incy"),
    "geam": (_geam, "handle transa transb m n alpha a lda beta b ldb c ldc"),
    "syrk": (_syrk, "handle uplo trans n k alpha a lda beta c ldc"),
    "trsm": (_trsm, "handle side uplo trans diag m n alpha a lda b ldb"),
}
_GER: Final = "handle m n alpha x incx y incy a lda"
_OF_REALS: Final[dict[str, tuple[Routine, str]]] = {"dot": (_dot, f"{_XY} result"), "ger": (_ger, _GER)}
_OF_COMPLEX: Final[dict[str, tuple[Routine, str]]] = {
    "dotu": (_dot, f"{_XY} result"),
    "dotc": (_dotc, f"{_XY} result"),
    "geru": (_ger, _GER),
    "gerc": (_gerc, _GER),
}
_NORMS: Final[dict[str, tuple[Routine, str]]] = {"nrm2": (_nrm2, f"{_X} result"), "asum": (_asum, f"{_X} result")}
_FOUND: Final[dict[str, tuple[Routine, str]]] = {"amax": (_iamax, f"{_X} result"), "amin": (_iamin, f"{_X} result")}
_PREFIXED: Final[list[tuple[str, str, dict[str, tuple[Routine, str]]]]] = [
    ("s", "float32", _OF_ALL_TYPES | _OF_REALS | _NORMS),
    ("d", "float64", _OF_ALL_TYPES | _OF_REALS | _NORMS),
    ("c", "complex64", _OF_ALL_TYPES | _OF_COMPLEX),
    ("z", "complex128", _OF_ALL_TYPES | _OF_COMPLEX),
    ("sc", "complex64", _NORMS),
    ("dz", "complex128", _NORMS),
    ("is", "float32", _FOUND),
    ("id", "float64", _FOUND),
    ("ic", "complex64", _FOUND),
    ("iz", "complex128", _FOUND),
]
_GEMM: Final = "handle transa transb m n k alpha a atype lda{0} b btype ldb{1} beta c ctype ldc{2} compute_type algo"
_OTHERS: Final[dict[str, tuple[Routine, str]]] = {
    "create": (_create, ""),
    "set_stream": (_set_stream, "handle stream_id"),
    "set_workspace": (_set_workspace, "handle workspace workspace_size_in_bytes"),
    "set_math_mode": (_set_math_mode, "handle mode"),
    "set_pointer_mode": (_set_pointer_mode, "handle mode"),
    "axpy_ex_64": (_axpy_ex, "handle n alpha alpha_type x x_type incx y y_type incy executiontype"),
    "scal_ex_64": (_scal_ex, "handle n alpha alpha_type x x_type incx execution_type"),
    "gemm_ex_64": (_gemm_ex, _GEMM.format("", "", "")),
    "gemm_strided_batched_ex_64": (
        _gemm_strided_batched_ex,
        _GEMM.format(" stride_a", " stride_b", " stride_c batch_count"),
    ),
}

ROUTINES: Final = {
    f"{prefix}{name}_64": (routine, dtype) for prefix, dtype, named in _PREFIXED for name, (routine, _) in named.items()
} | {name: (routine, "") for name, (routine, _) in _OTHERS.items()}
SIGNATURES: Final = {
    f"{prefix}{name}_64": parameters.split()
    for prefix, _, named in _PREFIXED
    for name, (_, parameters) in named.items()
} | {name: parameters.split() for name, (_, parameters) in _OTHERS.items()}
"""Parameters by their order."""


def _refuse(status: int, *_arguments: object) -> NoReturn:
    raise CublasError(status)


def _call(cublas: FakeCublas, name: str, routine: Routine, dtype: str, *arguments: int) -> object:
    assert all(type(argument) is int for argument in arguments)
    of = SimpleNamespace(**dict(zip(SIGNATURES[name], arguments, strict=True)))
    assert getattr(of, "handle", HANDLE) == HANDLE
    return routine(cublas, dtype, of)


# --- memory -----------------------------------------------------------------------------------------------------------


class _ArrayWithAddress(np.ndarray[Any, Any]):
    """A NumPy array that tells its address as CuPy's do."""

    @property
    def data(self) -> Any:
        device_memory[self.ctypes.data] = self
        return SimpleNamespace(ptr=self.ctypes.data)


class _Pinned(bytearray):
    """Host memory that tells its address."""

    @property
    def ptr(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


def _ascontiguousarray(values: Array) -> Array:
    return np.ascontiguousarray(values).view(_ArrayWithAddress)


def _full(shape: tuple[int, ...], value: complex, dtype: Any) -> Array:
    return np.full(shape, value, dtype).view(_ArrayWithAddress)


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(content)
    return module


def _memory(address: int, count: int, dtype: str) -> Array:
    size = count * dtypes.item_bytes(dtype)
    memory: Array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return memory.view(dtypes.to_numpy(dtype))


def _vector(address: int, n: int, increment: int, dtype: str) -> Array:
    assert n > 0
    return _memory(address, 1 + (n - 1) * abs(increment), dtype)[::increment]


def _matrix(address: int, rows: int, columns: int, leading: int, dtype: str) -> Array:
    assert min(rows, columns) > 0
    assert leading >= rows
    memory = _memory(address, leading * (columns - 1) + rows, dtype)
    return as_strided(memory, (rows, columns), (memory.itemsize, leading * memory.itemsize))


def _op(trans: int, address: int, rows: int, columns: int, leading: int, dtype: str) -> Array:
    """Return op(A), which has these rows and columns."""
    stored = (rows, columns) if trans == 0 else (columns, rows)
    return _transposed(trans, _matrix(address, *stored, leading, dtype))


def _transposed(trans: int, matrix: Array) -> Array:
    return (matrix, matrix.T, matrix.T.conj())[trans]


def _triangle(uplo: int, n: int) -> Array:
    lower = np.tri(n, dtype=np.bool)
    return lower if uplo == 0 else lower.T


def _magnitudes(dtype: str, of: Any) -> Array:
    x = _vector(of.x, of.n, of.incx, dtype)
    total: Array = abs(x.real) + abs(x.imag)
    return total


def _sum(alpha: Any, product: Array, beta: Any, other: Array) -> Array:
    """Return alpha·product + beta·other; what a beta of 0 multiplies is not read."""
    total: Array = alpha * product + beta * other if beta else alpha * product
    return total


def _wide(array: Array) -> Array:
    return array.astype(np.float32) if array.itemsize == 2 else array
