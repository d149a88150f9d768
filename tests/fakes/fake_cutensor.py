"""A stand-in for cuTENSOR on the host's memory: what the CUDA actor asks for is proved without a GPU.

It does what cuTENSOR's documentation says of an operation, by NumPy's einsum. It checks what the actor has to give:
lengths and strides that are positive, addresses as they were told, factors of the type that the operation has.
"""

from __future__ import annotations

import importlib
import itertools
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple
from unittest import mock

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol import dtypes
from tests.cases.tensor_cases import BINARY, UNARY
from tests.fakes.fake_cublas import STREAM, _memory, _module

Array = npt.NDArray[Any]

REAL: Final[Any] = importlib.import_module("nvmath.bindings.cutensor")
TYPES: Final = {
    0: "float32", 1: "float64", 2: "float16", 4: "complex64", 5: "complex128", 14: "bfloat16",
}  # fmt: skip
HANDLE: Final = 79
SCALARS: Final = {"float16": "float32", "bfloat16": "float32"}
"""Types of factors where these are not those of the elements (cutensorCreateContraction)."""


class TensorError(Exception):
    """As the binding raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class ComputeDesc:
    """Addresses of what the library computes in."""

    COMPUTE_32F = staticmethod(lambda: 32)
    COMPUTE_64F = staticmethod(lambda: 64)
    COMPUTE_TF32 = staticmethod(lambda: 19)


class Tensor(NamedTuple):
    """A tensor descriptor."""

    extent: list[int]
    stride: list[int]
    dtype: str
    alignment: int

    def at(self, address: int) -> Array:
        """Return the tensor at an address."""
        assert address % self.alignment == 0
        item = dtypes.item_bytes(self.dtype)
        reach = 1 + sum((n - 1) * step for n, step in zip(self.extent, self.stride, strict=True))
        memory = _memory(address, reach, self.dtype)
        return np.ndarray(
            self.extent, memory.dtype, memory.view(np.uint8).data, 0, [step * item for step in self.stride]
        )


class Operation(NamedTuple):
    """An operation: its inputs as (tensor, modes, operator), the output, and what puts the inputs together."""

    inputs: list[tuple[Tensor, list[int], str]]
    output: tuple[Tensor, list[int]]
    operators: list[str]
    compute: int


class FakeCutensor(ModuleType):
    """The binding, with one handle."""

    ComputeDesc = ComputeDesc
    cuTENSORError = TensorError  # noqa: N815 - the binding's

    def __init__(self, *, installed: bool = True) -> None:
        super().__init__("nvmath.bindings.cutensor")
        self.installed: Final = installed
        self.objects: Final[dict[int, Any]] = {}
        self.status = 0
        """Of the making of a plan."""
        self.ran: Final[list[str]] = []
        self._numbers = itertools.count(1)

    def __getattr__(self, name: str) -> Any:
        """Return what is the same without a GPU: enums, and the types that attributes have."""
        if name.startswith("destroy_"):
            return self.objects.pop
        return getattr(REAL, name)

    def create(self) -> int:
        """Make the handle."""
        if not self.installed:
            raise RuntimeError("no library")
        return HANDLE

    def create_tensor_descriptor(
        self, handle: int, modes: int, extent: list[int], stride: list[int], kind: int, alignment: int
    ) -> int:
        """Describe a tensor."""
        assert handle == HANDLE
        assert len(extent) == len(stride) == modes
        assert min([1, *extent, *stride]) > 0
        return self._made(Tensor(extent, stride, TYPES[kind], alignment))

    def create_contraction(self, _handle: int, *of: Any) -> int:
        """Describe a contraction: a, b and c, then the output."""
        return self._operation(of[:9], of[9:11], [], of[11])

    def create_reduction(self, _handle: int, *of: Any) -> int:
        """Describe a reduction: a and c, then the output and the operator."""
        return self._operation(of[:6], of[6:8], of[8:9], of[9])

    def create_permutation(self, _handle: int, *of: Any) -> int:
        """Describe a permutation: a, then the output."""
        return self._operation(of[:3], of[3:5], [], of[5])

    def create_elementwise_binary(self, _handle: int, *of: Any) -> int:
        """Describe one of a and c."""
        return self._operation(of[:6], of[6:8], of[8:9], of[9])

    def create_elementwise_trinary(self, _handle: int, *of: Any) -> int:
        """Describe one of a, b and c."""
        return self._operation(of[:9], of[9:11], of[11:13], of[13])

    def operation_descriptor_get_attribute(
        self, _handle: int, of: int, attribute: int, address: int, size: int
    ) -> None:
        """Tell the type of factors."""
        assert attribute == REAL.OperationDescriptorAttribute.SCALAR_TYPE
        wanted = _scalars(self.objects[of])
        assert size == 4
        _memory(address, 1, "int32")[0] = next(number for number, name in TYPES.items() if name == wanted)

    def create_plan_preference(self, _handle: int, algorithm: int, _jit: int) -> int:
        """Make wishes."""
        assert algorithm == REAL.Algo.DEFAULT
        return self._made(None)

    def estimate_workspace_size(self, _handle: int, of: int, _preference: int, _wanted: int) -> int:
        """Return a size."""
        assert isinstance(self.objects[of], Operation)
        return 4096

    def create_plan(self, _handle: int, of: int, _preference: int, limit: int) -> int:
        """Make a plan."""
        assert limit == 4096
        if self.status:
            raise TensorError(self.status)
        return self._made(self.objects[of])

    def plan_get_attribute(self, _handle: int, of: int, _attribute: int, address: int, _size: int) -> None:
        """Tell how much workspace a plan takes."""
        assert of in self.objects
        _memory(address, 1, "uint64")[0] = 1024

    def contract(self, *of: Any) -> None:
        """Compute d = alpha·Σ a·b + beta·c."""
        _handle, plan, alpha, a, b, beta, c, d, _workspace, nbytes, stream = of
        operation = self._begun("contract", plan, stream)
        assert nbytes == 1024
        first, second, third = _read(operation, (a, b, c), (alpha, None, beta))
        modes = [
            [mode % 52 for mode in each] for each in (*(each[1] for each in operation.inputs[:2]), operation.output[1])
        ]
        total = np.einsum(first, modes[0], second, modes[1], modes[2])
        _write(operation, d, total + third)

    def reduce(self, *of: Any) -> None:
        """Compute d = alpha·reduced(a) + beta·c."""
        _handle, plan, alpha, a, beta, c, d, _workspace, nbytes, stream = of
        operation = self._begun("reduce", plan, stream)
        assert nbytes == 1024
        values, old = _read(operation, (a, c), (None, beta))
        modes, kept = operation.inputs[0][1], operation.output[1]
        axes = tuple(at for at, mode in enumerate(modes) if mode not in kept)
        total = BINARY[operation.operators[0]].reduce(values, axis=axes) if axes else values
        _write(operation, d, _factor(operation, alpha) * _turned(total, [m for m in modes if m in kept], kept) + old)

    def permute(self, *of: Any) -> None:
        """Compute b = alpha·a."""
        _handle, plan, alpha, a, b, stream = of
        operation = self._begun("permute", plan, stream)
        (values,) = _read(operation, (a,), (alpha,))
        _write(operation, b, _turned(values, operation.inputs[0][1], operation.output[1]))

    def elementwise_binary_execute(self, *of: Any) -> None:
        """Compute d = op(alpha·a, gamma·c)."""
        _handle, plan, alpha, a, gamma, c, d, stream = of
        operation = self._begun("binary", plan, stream)
        _write(operation, d, _combined(operation, _read(operation, (a, c), (alpha, gamma))))

    def elementwise_trinary_execute(self, *of: Any) -> None:
        """Compute d = op(op(alpha·a, beta·b), gamma·c)."""
        _handle, plan, alpha, a, beta, b, gamma, c, d, stream = of
        operation = self._begun("trinary", plan, stream)
        _write(operation, d, _combined(operation, _read(operation, (a, b, c), (alpha, beta, gamma))))

    def _begun(self, name: str, plan: int, stream: int) -> Operation:
        assert stream == STREAM
        self.ran.append(name)
        found: Operation = self.objects[plan]
        return found

    def _operation(self, inputs: Any, output: Any, operators: Any, compute: int) -> int:
        names = [REAL.Operator(each).name.removeprefix("OP_").lower() for each in operators]
        found = [
            (self.objects[desc], modes, REAL.Operator(operator).name.removeprefix("OP_").lower())
            for desc, modes, operator in zip(*[iter(inputs)] * 3, strict=True)
        ]
        tensor, modes = output
        double = found[0][0].dtype in {"float64", "complex128"}
        assert compute in ({64} if double else {32, 19})
        return self._made(Operation(found, (self.objects[tensor], modes), names, compute))

    def _made(self, what: Any) -> int:
        number = next(self._numbers)
        self.objects[number] = what
        return number


def installed(cutensor: FakeCutensor) -> AbstractContextManager[Any]:
    """Return a context in which the stand-ins are imported."""
    cupy = _module("cupy", **{name: getattr(np, name) for name in dir(np) if not name.startswith("__")})
    cupy.empty = _empty  # type: ignore[attr-defined]
    strided = SimpleNamespace(as_strided=lambda *of: np.lib.stride_tricks.as_strided(*of).view(Addressed))
    cupy.lib = SimpleNamespace(stride_tricks=strided)  # type: ignore[attr-defined]
    modules = {
        "cupy": cupy,
        "nvmath.bindings": _module("nvmath.bindings", cutensor=cutensor),
        "nvmath.bindings.cutensor": cutensor,
    }
    return mock.patch.dict("sys.modules", modules)


class Addressed(np.ndarray[Any, Any]):
    """An array that tells its address as CuPy's do."""

    @property
    def data(self) -> Any:
        """Its memory."""
        return SimpleNamespace(ptr=self.ctypes.data)


def _empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return memory that begins at a multiple of 256."""
    item = np.dtype(dtype).itemsize
    memory = np.full(item * int(np.prod(shape)) + 256, 0xFF, np.uint8)
    at = -memory.ctypes.data % 256
    return np.ndarray(shape, dtype, memory.data, at).view(Addressed)


def _scalars(operation: Operation) -> str:
    dtype = operation.inputs[0][0].dtype
    return SCALARS.get(dtype, dtype)


def _factor(operation: Operation, address: int | None) -> Any:
    if address is None:
        return 1
    dtype = _scalars(operation)
    return _memory(address, 1, dtype)[0].astype(np.complex128 if dtype.startswith("complex") else np.float64)


def _read(operation: Operation, addresses: Any, factors: Any) -> list[Any]:
    """Return factors times what the operators make of the inputs; one of 0 leaves its input unread."""
    found: list[Any] = []
    for (tensor, _, operator), address, factor in zip(operation.inputs, addresses, factors, strict=True):
        value = _factor(operation, factor)
        wide = np.complex128 if tensor.dtype.startswith("complex") else np.float64
        found.append(value * UNARY[operator](tensor.at(address).astype(wide)) if value else np.zeros(tensor.extent))
    return found


def _write(operation: Operation, address: int, values: Array) -> None:
    operation.output[0].at(address)[...] = values


def _turned(values: Array, modes: list[int], target: list[int]) -> Array:
    return np.transpose(values, [modes.index(mode) for mode in target])


def _combined(operation: Operation, values: list[Any]) -> Any:
    """Return the inputs put together, along the modes of the output."""
    target = operation.output[1]
    spread = []
    for (_, modes, _), each in zip(operation.inputs, values, strict=True):
        turned = _turned(each, modes, [mode for mode in target if mode in modes])
        spread.append(turned[tuple(slice(None) if mode in modes else None for mode in target)])
    total = spread[0]
    for operator, each in zip(operation.operators, spread[1:], strict=True):
        total = BINARY[operator](total, each)
    return total
