"""A product in the form of cuBLASLt: descriptors, and the algorithm that its heuristic proposes.

cuBLASLt has vectors of an epilogue along columns, and those epilogues for results in column order only. So a result in
row order is asked for transposed: outᵀ = bᵀ·aᵀ. A bias for each column of out is then one for each row of outᵀ, and the
caller's a is cuBLASLt's B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from nvmath.bindings import cublasLt

from atomr_mp import errors
from atomr_mp.protocol.declaration.checks import is_zero
from atomr_mp.protocol.declaration.strides import Order, batch_stride, leading
from atomr_mp.protocol.dtypes import FLOAT8
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import blas_lt
from atomr_mp.protocol.libraries.base import ALIGNED_BYTES
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import given
from atomr_mp_workers.libraries.blas_lt.kinds import (
    BY_ROW,
    COMPUTES,
    DEVICE,
    EPILOGUES,
    HOST,
    IN_FLOAT32,
    IN_TF32,
    LAYOUT,
    MATMUL,
    OPS,
    PREFERENCE,
    SWAPPED,
    TYPES,
)
from atomr_mp_workers.libraries.matrices import BlasView, told

LINE_BYTES: Final = 16
"""Bytes that tensor cores for eight bits read and write at a time."""

PROPOSED: Final = 16
"""Algorithms that autotuning times at most."""


class StreamWorkspace(NamedTuple):
    """Memory of the device that only requests on one stream use."""

    address: int
    nbytes: int


class _Matrix(NamedTuple):
    """A matrix as cuBLASLt knows it."""

    desc: int
    alignment: int
    """The largest power of two, up to 256, that the address of each of its columns is a multiple of."""


class MatmulPlan:
    """Descriptors of a product and its algorithm; the memory of a request is given when it is put on the stream.

    Args:
        handle: Of cuBLASLt.
        request: A request of its kind; only the layouts of its arrays count.
        workspace: Memory that its kernels may use; nothing is written there yet.

    Raises:
        Unsupported: cuBLASLt has no kernel for it.
        cuBLASLtError: It says so by one of the statuses `NOT_THERE`, or has failed.
    """

    def __init__(self, handle: int, request: blas_lt.Matmul, workspace: StreamWorkspace) -> None:
        self._drop: Final[list[tuple[Callable[[int], None], int]]] = []
        self._handle: Final = handle
        self._compute: Final = IN_TF32 if request.compute == "tf32" else COMPUTES.get(request.a.dtype, IN_FLOAT32)
        self.factors: Final = self._compute.factors
        """Numbers of the type of alpha and beta, in host memory."""
        self._adds: Final = request.c is not None and not is_zero(request.beta)
        self.on_device: Final = any(isinstance(each, Operand) for each in (request.alpha, request.beta))
        """Whether alpha and beta are read there."""
        if blas_lt.takes_aux(request) and request.a.shape[-1] == 1:
            raise unsupported(request)  # as nvmath.linalg has found of cuBLASLt
        out, order = given(request.out).layout, blas_lt.order_of(request)
        assert order is not None
        self._swapped: Final = order == "row"
        names = ("b", "a") if self._swapped else ("a", "b")
        self._factors_of: Final = names
        factors = [getattr(request, name).layout for name in names]
        left, right = (told(each, order) for each in factors)
        rows, columns = reversed(out.shape[-2:]) if self._swapped else out.shape[-2:]
        k, batch = request.a.shape[-1], math.prod(out.shape[:-2])

        self.desc: Final[int] = self._kept(
            cublasLt.matmul_desc_destroy, cublasLt.matmul_desc_create(self._compute.compute, self._compute.scale)
        )
        _set_matmul(self.desc, MATMUL.POINTER_MODE, DEVICE if self.on_device else HOST)
        _set_matmul(self.desc, MATMUL.TRANSA, OPS[left.op])
        _set_matmul(self.desc, MATMUL.TRANSB, OPS[right.op])
        types = [TYPES[getattr(request, name).dtype] for name in names]
        added = given(request.c).layout if request.c is not None and self._adds else None
        self._a: Final = self._matrix(factors[0], types[0], (rows, k), left, batch)
        self._b: Final = self._matrix(factors[1], types[1], (k, columns), right, batch)
        self._d: Final = self._result(out, out.dtype, order, batch)
        dtype = "bfloat16" if out.dtype in FLOAT8 else out.dtype
        self._c: Final = self._result(added or out, dtype, order, batch)
        self._pointers: Final = self._epilogue(request)
        if not _is_in_lines(request, min(each.alignment for each in (self._a, self._b, self._c, self._d))):
            raise unsupported(request)  # a kernel that the heuristic offers (H100, CUDA 13.2) loses the context
        self._algorithms: Final = self._proposed(request, workspace)
        self._chosen = 0

    def __del__(self) -> None:
        for destroy, of in getattr(self, "_drop", ()):
            destroy(of)

    def __len__(self) -> int:
        """Return how many algorithms there are to choose from."""
        return len(self._algorithms)

    def choose(self, number: int) -> None:
        """Use one of the algorithms from now on."""
        self._chosen = number

    @property
    def reads_out(self) -> bool:
        """Whether out takes the place of c: where beta is read on the device, nothing says that it is 0."""
        return self.on_device and not self._adds

    def enqueue(
        self, addresses: Mapping[str, int], factors: Sequence[int], workspace: StreamWorkspace, stream: int
    ) -> None:
        """Put a product on a stream.

        Args:
            addresses: Address of each array of the request, by its name.
            factors: Addresses of alpha and beta.
            workspace: The stream's workspace.
            stream: CUDA's handle.
        """
        for name, attribute in self._pointers.items():
            _set_matmul(self.desc, attribute, addresses[name])
        first, second = self._factors_of
        alpha, beta = factors
        added = addresses["out"] if self.reads_out else addresses["c"] if self._adds else 0
        cublasLt.matmul(
            self._handle, self.desc, alpha, addresses[first], self._a.desc, addresses[second], self._b.desc, beta,
            added, self._c.desc, addresses["out"], self._d.desc,
            self._algorithms[self._chosen : self._chosen + 1].ctypes.data, *workspace, stream,
        )  # fmt: skip

    # --- the descriptors ----------------------------------------------------------------------------------------------

    def _kept(self, destroy: Callable[[int], None], made: int) -> int:
        self._drop.append((destroy, made))
        return made

    def _matrix(self, layout: Layout, kind: int, shape: tuple[int, int], how: BlasView, batch: int) -> _Matrix:
        """Describe a matrix; the shape is that after its op."""
        rows, columns = shape if how.op == "N" else shape[::-1]
        made = self._kept(
            cublasLt.matrix_layout_destroy, cublasLt.matrix_layout_create(kind, rows, columns, how.leading)
        )
        _set_layout(made, LAYOUT.BATCH_COUNT, batch)
        _set_layout(made, LAYOUT.STRIDED_BATCH_OFFSET, how.stride)
        steps = (how.leading if columns > 1 else 0) | (how.stride if batch > 1 else 0)
        begins = (layout.offset | steps * layout.item_bytes) % ALIGNED_BYTES or ALIGNED_BYTES
        return _Matrix(made, begins & -begins)

    def _result(self, layout: Layout, dtype: str, order: Order, batch: int) -> _Matrix:
        rows, columns = layout.shape[-2:]
        shape = (columns, rows) if self._swapped else (rows, columns)
        stride = (batch_stride(layout) or 0) // layout.item_bytes
        how = BlasView("N", leading(layout, order), copied=False, stride=stride)
        return self._matrix(layout, TYPES[dtype], shape, how, batch)

    def _epilogue(self, request: blas_lt.Matmul) -> dict[str, int]:
        """Describe the epilogue; return the attributes that are addresses, each with its array."""
        name = SWAPPED.get(request.epilogue, request.epilogue) if self._swapped else request.epilogue
        _set_matmul(self.desc, MATMUL.EPILOGUE, EPILOGUES[name])
        found: dict[str, int] = {}
        vectors = [(name, each) for name in ("bias", "bias_grad") if (each := getattr(request, name)) is not None]
        for name, vector in vectors:
            found[name] = int(MATMUL.BIAS_POINTER)
            _set_matmul(self.desc, MATMUL.BIAS_DATA_TYPE, TYPES[vector.dtype])
            _set_matmul(self.desc, MATMUL.BIAS_BATCH_STRIDE, vector.shape[-1] if vector.ndim > 1 else 0)
        stored = [(name, each) for name in ("aux", "aux_out") if (each := getattr(request, name)) is not None]
        for name, matrix in stored:
            found[name] = int(MATMUL.EPILOGUE_AUX_POINTER)
            unit = 8 if matrix.dtype == "uint8" else 1  # of a mask the bits count
            _set_matmul(self.desc, MATMUL.EPILOGUE_AUX_LD, matrix.shape[-1] * unit)
            stride = math.prod(matrix.shape[-2:]) * unit if matrix.ndim > 2 else 0
            _set_matmul(self.desc, MATMUL.EPILOGUE_AUX_BATCH_STRIDE, stride)
        first, second = self._factors_of
        scales = (
            (f"scale_{first}", MATMUL.A_SCALE_POINTER, MATMUL.A_SCALE_MODE),
            (f"scale_{second}", MATMUL.B_SCALE_POINTER, MATMUL.B_SCALE_MODE),
            ("scale_out", MATMUL.D_SCALE_POINTER, None),
        )
        by_row = _scaled_by_row(request)
        for name, pointer, mode in scales:
            if getattr(request, name) is not None:
                found[name] = int(pointer)
                if mode is not None and by_row:
                    _set_matmul(self.desc, mode, BY_ROW)
        return found

    def _proposed(self, request: blas_lt.Matmul, workspace: StreamWorkspace) -> np.ndarray[Any, Any]:
        """Return the algorithms that the heuristic proposes, the best first."""
        for name, attribute in self._pointers.items():  # their alignment may count, and nothing reads them
            offset = getattr(request, name).layout.offset % ALIGNED_BYTES
            _set_matmul(self.desc, attribute, workspace.address + offset)
        preference = cublasLt.matmul_preference_create()
        found = np.zeros(PROPOSED if request.autotune else 1, cublasLt.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        try:
            _set_preference(preference, PREFERENCE.MAX_WORKSPACE_BYTES, workspace.nbytes)
            matrices = {"A": self._a, "B": self._b, "C": self._c, "D": self._d}
            for name, matrix in matrices.items():
                _set_preference(preference, PREFERENCE[f"MIN_ALIGNMENT_{name}_BYTES"], matrix.alignment)
            cublasLt.matmul_algo_get_heuristic(
                self._handle, self.desc, *(each.desc for each in matrices.values()), preference, len(found),
                found.ctypes.data, count.ctypes.data,
            )  # fmt: skip
        finally:
            cublasLt.matmul_preference_destroy(preference)
        usable: np.ndarray[Any, Any] = found[: int(count[0])]
        usable = usable[usable["state"] == 0]
        if not len(usable):
            raise unsupported(request)
        return usable


def _is_in_lines(request: blas_lt.Matmul, alignment: int) -> bool:
    """Return whether all lines that kernels read or write 16 bytes at a time begin at multiples of 16 bytes.

    Kernels for eight bits do so with each column of a matrix. All kernels do so with an epilogue's vectors, and the
    heuristic is told nothing of these. A declared rule has the first vector of a batch aligned; the next begins where
    it ends.
    """
    gradients = request.bias_grad
    batch = 1 if gradients is None else math.prod(gradients.shape[:-1])
    if gradients is not None and batch > 1 and gradients.shape[-1] * gradients.layout.item_bytes % LINE_BYTES:
        return False
    return request.a.dtype not in {"int8", *FLOAT8} or alignment >= LINE_BYTES


def _scaled_by_row(request: blas_lt.Matmul) -> bool:
    return any(each is not None and each.shape != (1,) for each in (request.scale_a, request.scale_b))


def unsupported(request: blas_lt.Matmul) -> errors.Unsupported:
    """Return the error for a request that cuBLASLt has nothing for."""
    m, n = given(request.out).shape[-2:]
    return errors.Unsupported(
        f"cuBLASLt has no kernel on this GPU for {request.a.dtype} by {request.b.dtype} to "
        f"{given(request.out).dtype} of {m} by {n} from {request.a.shape[-1]} terms as the arrays lie, with epilogue "
        f"{request.epilogue!r}{' and a scale for each row' if _scaled_by_row(request) else ''}; float8 and int8 want "
        "contiguous rows of a, contiguous columns of b, and lengths and addresses that are multiples of 16 bytes; a "
        "batch of bias gradients wants vectors of such lengths"
    )


def _set_matmul(desc: int, attribute: int, value: int) -> None:
    number = np.array(value, cublasLt.get_matmul_desc_attribute_dtype(attribute))
    cublasLt.matmul_desc_set_attribute(desc, int(attribute), number.ctypes.data, number.itemsize)


def _set_layout(layout: int, attribute: int, value: int) -> None:
    number = np.array(value, cublasLt.get_matrix_layout_attribute_dtype(attribute))
    cublasLt.matrix_layout_set_attribute(layout, int(attribute), number.ctypes.data, number.itemsize)


def _set_preference(preference: int, attribute: int, value: int) -> None:
    number = np.array(value, cublasLt.get_matmul_preference_attribute_dtype(attribute))
    cublasLt.matmul_preference_set_attribute(preference, int(attribute), number.ctypes.data, number.itemsize)
