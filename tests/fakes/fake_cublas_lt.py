"""A stand-in for cuBLASLt on the host's memory: what the CUDA actor asks for is proved without a GPU.

It does what cuBLASLt's documentation says of its attributes, for matrices in column order: a bias has an element for
each row and goes to all columns, an auxiliary matrix has the columns of D. Enums and types in memory are those of
`nvmath.bindings.cublasLt` itself. It checks what the actor has to give: dimensions that are not empty, leading
dimensions that suffice, alignments that were told, a workspace.
"""

from __future__ import annotations

import importlib
import itertools
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest import mock

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol import dtypes
from tests.cases.blas_lt_cases import LARGEST, gelu
from tests.fakes.fake_cublas import STREAM, _memory, _module, device_memory, factor_at

Array = npt.NDArray[Any]

REAL: Final[Any] = importlib.import_module("nvmath.bindings.cublasLt")
CUBLAS: Final[Any] = importlib.import_module("nvmath.bindings.cublas")
TYPES: Final = {
    0: "float32", 1: "float64", 2: "float16", 3: "int8", 10: "int32", 14: "bfloat16", 28: "float8_e4m3fn",
    29: "float8_e5m2",
}  # fmt: skip
"""By CUDA's numbers (cudaDataType_t)."""
HANDLE: Final = 78
COMPUTED: Final = {68: ("float32", 0), 77: ("float32", 0), 70: ("float64", 1), 72: ("int64", 10)}
"""What a compute type stands for, and the type of its factors (cublasComputeType_t)."""


class LtError(Exception):
    """As the binding raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class FakeCublasLt(ModuleType):
    """The binding, with one handle."""

    cuBLASLtError = LtError  # noqa: N815 - the binding's

    def __init__(self) -> None:
        super().__init__("nvmath.bindings.cublasLt")
        self.objects: dict[int, dict[str, Any]] = {}
        """Descriptors by their handle: attributes by name."""
        self.proposed = 1
        """How many algorithms the heuristic knows."""
        self.status = 0
        """What the heuristic returns."""
        self.ran: list[int] = []
        """The number of the algorithm of each product."""
        self._numbers = itertools.count(1000)

    def __getattr__(self, name: str) -> Any:
        """Return what is the same without a GPU: enums, and the types that attributes have."""
        return getattr(REAL, name)

    def create(self) -> int:
        """Make the handle."""
        return HANDLE

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        """Make a descriptor of a product."""
        return self._made(compute=compute, scale=scale)

    def matrix_layout_create(self, kind: int, rows: int, columns: int, ld: int) -> int:
        """Make a descriptor of a matrix."""
        assert min(rows, columns) > 0
        assert ld >= rows
        return self._made(dtype=TYPES[kind], rows=rows, columns=columns, ld=ld)

    def matmul_preference_create(self) -> int:
        """Make a descriptor of wishes."""
        return self._made()

    def matmul_desc_set_attribute(self, of: int, attribute: int, address: int, size: int) -> None:
        """Set an attribute."""
        self._set(of, REAL.MatmulDescAttribute(attribute), REAL.get_matmul_desc_attribute_dtype, address, size)

    def matrix_layout_set_attribute(self, of: int, attribute: int, address: int, size: int) -> None:
        """Set an attribute."""
        self._set(of, REAL.MatrixLayoutAttribute(attribute), REAL.get_matrix_layout_attribute_dtype, address, size)

    def matmul_preference_set_attribute(self, of: int, attribute: int, address: int, size: int) -> None:
        """Set an attribute."""
        known = REAL.MatmulPreferenceAttribute(attribute)
        self._set(of, known, REAL.get_matmul_preference_attribute_dtype, address, size)

    def matmul_desc_destroy(self, of: int) -> None:
        """Drop a descriptor."""
        del self.objects[of]

    matrix_layout_destroy = matmul_preference_destroy = matmul_desc_destroy

    def matmul_algo_get_heuristic(
        self,
        handle: int,
        desc: int,
        a: int,
        b: int,
        c: int,
        d: int,
        preference: int,
        wanted: int,
        found: int,
        count: int,
    ) -> None:
        """Propose algorithms; remember the given alignments, to hold the products to them."""
        assert handle == HANDLE
        if self.status:
            raise LtError(self.status)
        given, wishes = self.objects[desc], self.objects[preference]
        if given["EPILOGUE"] & 128:
            assert given["EPILOGUE_AUX_POINTER"]
        given["alignments"] = [wishes[f"MIN_ALIGNMENT_{name}_BYTES"] for name in "ABCD"]
        given["pointers"] = {name: value % 256 for name, value in given.items() if name.endswith("_POINTER")}
        number = min(wanted, self.proposed)
        results = _memory(found, wanted * REAL.matmul_heuristic_result_dtype.itemsize, "uint8")
        records = results.view(REAL.matmul_heuristic_result_dtype)
        for at in range(number):
            records[at]["algo"]["data_"][0] = 1 + at
        _memory(count, 1, "int32")[0] = number
        assert {self.objects[each]["BATCH_COUNT"] for each in (a, b, c, d)} == {self.objects[d]["BATCH_COUNT"]}

    def matmul(
        self, handle: int, desc: int, alpha: int, a: int, adesc: int, b: int, bdesc: int, beta: int, c: int, cdesc: int,
        d: int, ddesc: int, algo: int, workspace: int, nbytes: int, stream: int,
    ) -> None:  # fmt: skip
        """Compute, one matrix of the batch after the other."""
        assert (handle, stream) == (HANDLE, STREAM)
        assert workspace % 256 == 0
        assert nbytes > 0
        given = self.objects[desc]
        self.ran.append(int(_memory(algo, 1, "uint64")[0]) if algo % 8 == 0 else 0)
        lines = zip((a, b, c, d), (adesc, bdesc, cdesc, ddesc), given["alignments"], strict=True)
        for address, matrix, alignment in lines:
            assert all(begin % alignment == 0 for begin in _lines(address, self.objects[matrix]))
        assert given["pointers"] == {name: given[name] % 256 for name in given["pointers"]}
        dtype, scale = COMPUTED[given["compute"]]
        assert given["scale"] == scale
        on_device = given["POINTER_MODE"] == REAL.PointerMode.DEVICE
        factor, other = (factor_at(each, TYPES[scale], on_device=on_device) for each in (alpha, beta))
        assert c or not (on_device or other)  # where only the device knows that beta is 0, C is read
        matrices = {at: self.objects[at] for at in (adesc, bdesc, cdesc, ddesc)}
        for number in range(matrices[ddesc]["BATCH_COUNT"]):
            left, right, target = (
                _matrix(address, matrices[each], number) for address, each in ((a, adesc), (b, bdesc), (d, ddesc))
            )
            left, right = (left.T if given["TRANSA"] else left), (right.T if given["TRANSB"] else right)
            wide, wide_right = left.astype(dtype), right.astype(dtype)
            total = np.asarray(factor).astype(dtype) * (wide @ wide_right)
            for name, values in _scales(given, total.shape).items():
                total = total * (values if name == "B" else values[:, None])
            if other or on_device:
                total = total + other * _matrix(c, matrices[cdesc], number).astype(dtype)
            total = _Epilogue(given, number, total.shape, matrices[ddesc]["dtype"]).finish(total, wide, wide_right)
            if "D_SCALE_POINTER" in given:
                total = total * _memory(given["D_SCALE_POINTER"], 1, "float32")
            largest = LARGEST.get(matrices[ddesc]["dtype"], np.inf)
            target[...] = np.clip(total, -largest, largest)

    def _made(self, **attributes: Any) -> int:
        number = next(self._numbers)
        self.objects[number] = attributes
        return number

    def _set(self, of: int, attribute: Any, dtype_of: Any, address: int, size: int) -> None:
        dtype = np.dtype(dtype_of(attribute))
        assert size == dtype.itemsize
        self.objects[of][attribute.name] = _memory(address, 1, dtype.name)[0].item()


def installed(lt: FakeCublasLt) -> AbstractContextManager[Any]:
    """Return a context in which the stand-ins are imported; what is imported on top of them is forgotten after it."""
    memory = SimpleNamespace(OutOfMemoryError=MemoryError)
    cuda = SimpleNamespace(
        alloc=lambda _nbytes: SimpleNamespace(ptr=2**40), memory=memory, Event=_Event,
        get_current_stream=lambda: SimpleNamespace(ptr=STREAM), get_elapsed_time=lambda *_: 1.0,
    )  # fmt: skip
    modules = {
        "cupy": _module("cupy", cuda=cuda, uint8=np.uint8, full=_full),
        "nvmath.bindings": _module("nvmath.bindings", cublas=CUBLAS, cublasLt=lt),
        "nvmath.bindings.cublasLt": lt,
    }
    return mock.patch.dict("sys.modules", modules)


class _Event:
    def record(self) -> None:
        """Do nothing: everything has ended."""

    synchronize = record


def _full(shape: int | tuple[()], value: complex, dtype: Any) -> Any:
    """Return memory that begins at a multiple of 256."""
    memory = np.full(256 + (shape or 1), value, dtype)
    address = memory.ctypes.data + -memory.ctypes.data % 256
    device_memory[address] = memory
    return SimpleNamespace(data=SimpleNamespace(ptr=address), memory=memory)


def _lines(address: int, of: dict[str, Any]) -> list[int]:
    """Return where the columns of a batch's matrices begin."""
    item = dtypes.item_bytes(of["dtype"])
    matrices = [address + number * of["STRIDED_BATCH_OFFSET"] * item for number in range(of["BATCH_COUNT"])]
    return [begin + column * of["ld"] * item for begin in matrices for column in range(of["columns"])]


def _matrix(address: int, of: dict[str, Any], number: int) -> Array:
    item = dtypes.item_bytes(of["dtype"])
    address += number * of["STRIDED_BATCH_OFFSET"] * item
    memory = _memory(address, of["ld"] * (of["columns"] - 1) + of["rows"], of["dtype"])
    shape, strides = (of["rows"], of["columns"]), (item, of["ld"] * item)
    return np.ndarray(shape, memory.dtype, memory.view(np.uint8).data, 0, strides)


def _scales(given: dict[str, Any], shape: tuple[int, int]) -> dict[str, Array]:
    """Return the scale of rows and that of columns (CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, or one for all)."""
    found = {}
    for name, length in zip("AB", shape, strict=True):
        if f"{name}_SCALE_POINTER" in given:
            by_row = given.get(f"{name}_SCALE_MODE", 0) == REAL.MatmulMatrixScale.OUTER_VEC_32F
            found[name] = _memory(given[f"{name}_SCALE_POINTER"], length if by_row else 1, "float32")
    return found


class _Epilogue:
    """What follows a product of a batch (cublasLtEpilogue_t)."""

    def __init__(self, given: dict[str, Any], number: int, shape: tuple[int, int], dtype: str) -> None:
        self.name: Final[str] = REAL.Epilogue(given["EPILOGUE"]).name
        self.rows, self.columns = shape
        self._given, self._number, self._dtype = given, number, dtype

    def vector(self, length: int) -> Array:
        """Return a bias, or the gradient of one."""
        given, dtype = self._given, TYPES[self._given["BIAS_DATA_TYPE"]]
        address = given["BIAS_POINTER"] + self._number * given["BIAS_BATCH_STRIDE"] * dtypes.item_bytes(dtype)
        assert address % 16 == 0  # kernels read and write that much at a time, whatever the heuristic is told
        return _memory(address, length, dtype)

    def bits(self) -> Array:
        """Return the bits of a ReLU, a row for each column of D."""
        address, ld = self._stored(128)
        return _memory(address // 8, self.columns * ld // 8, "uint8").reshape(self.columns, ld // 8)

    def sums(self) -> Array:
        """Return the sums before a GELU."""
        address, ld = self._stored(8, dtypes.item_bytes(self._dtype))
        memory = _memory(address, self.columns * ld, self._dtype).reshape(self.columns, ld)
        return memory[:, : self.rows].T

    def finish(self, total: Array, a: Array, b: Array) -> Array:
        """Return D before it is scaled and rounded; store what else there is."""
        if self.name.endswith("BIAS"):
            total = total + self.vector(self.rows).astype(total.dtype)[:, None]
        if self.name.startswith("RELU_AUX"):
            found = np.packbits(total.T > 0, axis=-1, bitorder="little")
            self.bits()[:, : found.shape[-1]] = found
        elif self.name.startswith("GELU_AUX"):
            self.sums()[...] = total
        total = self._activated(total)
        if "BGRAD" in self.name:
            gradient = {"BGRADA": a.sum(1), "BGRADB": b.sum(0)}.get(self.name, total.sum(1))
            self.vector(len(gradient))[...] = gradient
        return total

    def _activated(self, total: Array) -> Any:
        if self.name.startswith("DRELU"):
            return total * np.unpackbits(self.bits(), axis=-1, bitorder="little")[:, : self.rows].T
        if self.name.startswith("DGELU"):
            return total * gelu(self.sums().astype(np.float64) + 1e-100j).imag / 1e-100
        if self.name.startswith("RELU"):
            return np.maximum(total, 0)
        return gelu(total) if self.name.startswith("GELU") else total

    def _stored(self, unit: int, item_bytes: int = 1) -> tuple[int, int]:
        """Return where the auxiliary matrix is, of a mask in bits, and its leading dimension in elements."""
        given = self._given
        ld, stride = given["EPILOGUE_AUX_LD"], given["EPILOGUE_AUX_BATCH_STRIDE"]
        assert (ld % unit, stride % unit) == (0, 0)
        pointer = given["EPILOGUE_AUX_POINTER"] * (8 if unit == 128 else 1)
        return pointer + self._number * stride * item_bytes, ld
