"""An operation on tensors in the form of cuTENSOR: tensors, an operation, and the plan of its kernel.

cuTENSOR wants positive lengths and strides, and the same layout of the output and c.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from nvmath import CudaDataType
from nvmath.bindings import cutensor

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import scalar
from atomr_mp_workers.libraries.base import address, alignment, array
from atomr_mp_workers.libraries.factors import Factors
from atomr_mp_workers.memory.arrays import DeviceArray

TYPES: Final = {
    "float16": int(CudaDataType.CUDA_R_16F),
    "bfloat16": int(CudaDataType.CUDA_R_16BF),
    "float32": int(CudaDataType.CUDA_R_32F),
    "float64": int(CudaDataType.CUDA_R_64F),
    "complex64": int(CudaDataType.CUDA_C_32F),
    "complex128": int(CudaDataType.CUDA_C_64F),
}
"""cutensorDataType_t has the values of cudaDataType_t."""

NOT_THERE: Final = frozenset({int(cutensor.Status.NOT_SUPPORTED), int(cutensor.Status.INVALID_VALUE)})
"""Statuses of a checked request for which cuTENSOR has no kernel."""

FACTORS: Final = {
    "contraction": ("alpha", "beta"),
    "reduction": ("alpha", "beta"),
    "permutation": ("alpha",),
    "elementwise_binary": ("alpha", "gamma"),
    "elementwise_trinary": ("alpha", "beta", "gamma"),
}


def serves(request: Any) -> bool:
    """Return whether cuTENSOR may be asked: all arrays have elements at positive strides, and a is read."""
    layouts = [each.layout for _, _, each in request.arrays() if each is not None]
    strided = all(step > 0 for each in layouts for n, step in zip(each.shape, each.strides, strict=True) if n > 1)
    return strided and all(each.size for each in layouts) and scalar(request.alpha) != 0


class CutensorPlan:
    """The plan of an operation.

    Args:
        handle: Of cuTENSOR.
        request: A request of its kind; only the layouts of its arrays count.
        stream: The stream that it runs on, as CUDA's handle.
        workspace: Returns the stream's workspace.

    Raises:
        cuTENSORError: It makes no plan. It has no kernel if the status is in `NOT_THERE`.
    """

    def __init__(self, handle: int, request: Any, stream: int, workspace: Callable[[int], DeviceArray]) -> None:
        self._drop: Final[list[tuple[Callable[[int], None], int]]] = []
        self._handle: Final = handle
        self._stream: Final = stream
        self._workspace: Final = workspace
        operation = self._kept(cutensor.destroy_operation_descriptor, self._operation(request))
        self._factors: Final = _factors(_scalar_type(handle, operation))
        preference = cutensor.create_plan_preference(handle, int(cutensor.Algo.DEFAULT), int(cutensor.JitMode.NONE))
        try:
            size = cutensor.estimate_workspace_size(
                handle, operation, preference, int(cutensor.WorksizePreference.WORKSPACE_DEFAULT)
            )
            self._plan: Final[int] = self._kept(
                cutensor.destroy_plan, cutensor.create_plan(handle, operation, preference, size)
            )
        finally:
            cutensor.destroy_plan_preference(preference)
        self._workspace_bytes: Final = _required(handle, self._plan)
        workspace(self._workspace_bytes)

    def __del__(self) -> None:
        for destroy, of in reversed(getattr(self, "_drop", ())):
            destroy(of)

    def __call__(self, request: Any) -> None:
        """Put a request on the stream."""
        if not request.name.startswith("elementwise"):
            c = address(request.b if request.name == "permutation" else request.c)
        elif scalar(request.gamma) and request.c.strides == request.d.strides:
            c = address(request.c)
        else:  # it is not read; or it does not lie as d does, which cuTENSOR wants
            c = address(request.d)
            if scalar(request.gamma):
                array(request.d)[...] = array(request.c)
        values = [self._factors[getattr(request, name)] for name in FACTORS[request.name]]
        pointers = [pointer for pointer, _keep in values]
        enqueue: Callable[[Any, list[int], int], None] = getattr(self, f"_{request.name}")
        enqueue(request, pointers, c)

    def _contraction(self, request: Any, factors: list[int], c: int) -> None:
        alpha, beta = factors
        a, b = address(request.a), address(request.b)
        workspace = self._workspace(self._workspace_bytes)
        cutensor.contract(
            self._handle, self._plan, alpha, a, b, beta, c, c, workspace.address, self._workspace_bytes, self._stream
        )

    def _reduction(self, request: Any, factors: list[int], c: int) -> None:
        alpha, beta = factors
        workspace = self._workspace(self._workspace_bytes)
        cutensor.reduce(
            self._handle, self._plan, alpha, address(request.a), beta, c, c, workspace.address, self._workspace_bytes,
            self._stream,
        )  # fmt: skip

    def _permutation(self, request: Any, factors: list[int], b: int) -> None:
        (alpha,) = factors
        cutensor.permute(self._handle, self._plan, alpha, address(request.a), b, self._stream)

    def _elementwise_binary(self, request: Any, factors: list[int], c: int) -> None:
        alpha, gamma = factors
        a, d = address(request.a), address(request.d)
        cutensor.elementwise_binary_execute(self._handle, self._plan, alpha, a, gamma, c, d, self._stream)

    def _elementwise_trinary(self, request: Any, factors: list[int], c: int) -> None:
        alpha, beta, gamma = factors
        a, b, d = address(request.a), address(request.b), address(request.d)
        cutensor.elementwise_trinary_execute(self._handle, self._plan, alpha, a, beta, b, gamma, c, d, self._stream)

    # --- the descriptors ----------------------------------------------------------------------------------------------

    def _operation(self, request: Any) -> int:
        """Describe the operation; the output and c have the same layout, and may be the same array."""
        compute = _compute(request)
        a = self._described(request, "a")
        if request.name == "permutation":
            return int(cutensor.create_permutation(self._handle, *a, *self._described(request, "b")[:2], compute))
        out = request.c if request.name in {"contraction", "reduction"} else request.d
        least = min(alignment(out.layout), alignment(request.c.layout))
        desc, modes = self._tensor(out.layout, least), _modes(request.modes_c)
        c = (desc, modes, _operator(request.op_c))
        if request.name == "reduction":
            reduce = _operator(request.op_reduce)
            return int(cutensor.create_reduction(self._handle, *a, *c, desc, modes, reduce, compute))
        if request.name == "elementwise_binary":
            both = _operator(request.op_ac)
            return int(cutensor.create_elementwise_binary(self._handle, *a, *c, desc, modes, both, compute))
        b = self._described(request, "b")
        if request.name == "contraction":
            return int(cutensor.create_contraction(self._handle, *a, *b, *c, desc, modes, compute))
        operators = _operator(request.op_ab), _operator(request.op_abc)
        return int(cutensor.create_elementwise_trinary(self._handle, *a, *b, *c, desc, modes, *operators, compute))

    def _described(self, request: Any, name: str) -> tuple[int, list[int], int]:
        operator = getattr(request, f"op_{name}", "identity")
        modes = _modes(getattr(request, f"modes_{name}"))
        layout = getattr(request, name).layout
        return self._tensor(layout, alignment(layout)), modes, _operator(operator)

    def _tensor(self, layout: Layout, aligned: int) -> int:
        steps = [
            step // layout.item_bytes if n > 1 else 1 for n, step in zip(layout.shape, layout.strides, strict=True)
        ]
        made = cutensor.create_tensor_descriptor(
            self._handle, len(layout.shape), list(layout.shape), steps, TYPES[layout.dtype], aligned
        )
        return self._kept(cutensor.destroy_tensor_descriptor, made)

    def _kept(self, destroy: Callable[[int], None], made: int) -> int:
        self._drop.append((destroy, made))
        return made


def _modes(names: str) -> list[int]:
    return [ord(name) for name in names]


def _operator(name: str) -> int:
    return int(cutensor.Operator[f"OP_{name.upper()}"])


def _compute(request: Any) -> int:
    """Return the type of the computation, in the library's terms."""
    if getattr(request, "compute", "default") == "tf32":
        return int(cutensor.ComputeDesc.COMPUTE_TF32())
    double = request.a.dtype in {"float64", "complex128"}
    return int(cutensor.ComputeDesc.COMPUTE_64F() if double else cutensor.ComputeDesc.COMPUTE_32F())


def _scalar_type(handle: int, operation: int) -> str:
    """Return the element type of factors, which the library decides."""
    attribute = cutensor.OperationDescriptorAttribute.SCALAR_TYPE
    number = np.zeros(1, cutensor.get_operation_descriptor_attribute_dtype(attribute))
    cutensor.operation_descriptor_get_attribute(handle, operation, int(attribute), number.ctypes.data, number.itemsize)
    return next(name for name, value in TYPES.items() if value == number[0])


def _required(handle: int, plan: int) -> int:
    """Return how many bytes of workspace a plan takes."""
    attribute = cutensor.PlanAttribute.REQUIRED_WORKSPACE
    number = np.zeros(1, cutensor.get_plan_attribute_dtype(attribute))
    cutensor.plan_get_attribute(handle, plan, int(attribute), number.ctypes.data, number.itemsize)
    return int(number[0])


@functools.cache
def _factors(dtype: str) -> Factors:
    return Factors(dtypes.to_numpy(dtype))
