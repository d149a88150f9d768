"""Products of matrices by cuBLAS, for the functions of arrays on the CUDA backend.

CuPy's own cannot be recorded in a graph: it refuses to call cuBLAS there. This handle works in the stream's workspace,
so that nothing is allocated.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

import cupy
import numpy as np
from nvmath.bindings import cublas

from atomr_mp_workers.libraries.blas.kinds import ALGORITHM, KINDS, MATH, NOT_SUPPORTED, OPS
from atomr_mp_workers.libraries.dnn.base import Product

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.device.cuda_streams import CudaStream
    from atomr_mp_workers.memory.arrays import DeviceArray

IN_TF32: Final = int(cublas.ComputeType.COMPUTE_32F_FAST_TF32)


class Products:
    """Multiplies matrices, and batches of them, on a stream.

    Args:
        stream: The stream.
        workspace: Returns the stream's workspace at a fixed address.
    """

    def __init__(self, stream: Stream, workspace: Callable[[], DeviceArray]) -> None:
        self._stream: Final = stream
        self._workspace: Final = workspace
        self._handle = 0

    def open(self) -> None:
        """Make the handle, which takes long; it stays until the process ends.

        Raises:
            OutOfMemory: There is no room for the workspace.
        """
        if not self._handle:
            workspace = self._workspace()
            handle: int = cublas.create()
            cublas.set_stream(handle, cast("CudaStream", self._stream).stream.ptr)
            cublas.set_workspace(handle, workspace.address, workspace.nbytes)  # after the stream, which resets it
            cublas.set_math_mode(handle, MATH)
            self._handle = handle

    def of(self, request: Any) -> Product:
        """Return the function that multiplies matrices for a request, as `numpy.matmul` does.

        float32 is multiplied as such, unless the request allows that its factors are rounded.
        """
        self.open()
        return functools.partial(self._multiply, request.allow_tf32)

    def _multiply(self, in_tf32: bool, one: Any, other: Any) -> Any:  # noqa: FBT001 - `of` gives it
        dtype = np.result_type(one.dtype, other.dtype)
        batch = np.broadcast_shapes(one.shape[:-2], other.shape[:-2])
        shape = (*batch, one.shape[-2], other.shape[-1])
        if 0 in {*shape, one.shape[-1]}:
            return cupy.zeros(shape, dtype)
        out = cupy.empty(shape, dtype)
        # cuBLAS has matrices in column order, and sees each of these transposed.
        factors = [_Factor.of(each.astype(dtype, copy=False), len(batch)) for each in (other, one)]
        axes = _axes(batch, [each.steps for each in factors] + [_steps(out, len(batch))])
        sizes = shape[-1], shape[-2], one.shape[-1]
        try:
            self._run(factors, out, sizes, axes, in_tf32, at_once=True)
        except cublas.cuBLASError as error:
            if error.status != NOT_SUPPORTED:  # see `blas`: it is for some batches of products of one element
                raise
            self._run(factors, out, sizes, axes, in_tf32, at_once=False)
        return out

    def _run(
        self,
        factors: Sequence[_Factor],
        out: Any,
        sizes: tuple[int, int, int],
        axes: list[_Axis],
        in_tf32: bool,  # noqa: FBT001 - `of` gives it
        *,
        at_once: bool,
    ) -> None:
        """Multiply all matrices; those along the longest axis at once, if that is wanted."""
        kind, item_bytes = KINDS[out.dtype.name], out.dtype.itemsize
        first, second = factors
        head = self._handle, OPS[first.op], OPS[second.op], *sizes
        compute = IN_TF32 if in_tf32 else kind.compute
        (unit, _), (zero, _) = kept = kind.factors[1], kind.factors[0]
        inner = axes[-1] if at_once and axes else None
        outer = axes[:-1] if inner else axes
        starts = [each.values.data.ptr for each in factors] + [out.data.ptr]
        for at in itertools.product(*(range(axis.length) for axis in outer)):
            a, b, c = (
                start + item_bytes * sum(n * axis.strides[which] for n, axis in zip(at, outer, strict=True))
                for which, start in enumerate(starts)
            )
            x, y, z = (a, kind.data, first.leading), (b, kind.data, second.leading), (c, kind.data, sizes[0])
            if inner is None:
                cublas.gemm_ex_64(*head, unit, *x, *y, zero, *z, compute, ALGORITHM)
                continue
            of_x, of_y, of_z = inner.strides
            cublas.gemm_strided_batched_ex_64(
                *head, unit, *x, of_x, *y, of_y, zero, *z, of_z, inner.length, compute, ALGORITHM
            )
        del kept  # the numbers had to stay until now


class _Axis(NamedTuple):
    """An axis of batches."""

    length: int
    strides: tuple[int, ...]
    """Elements from one matrix to the next: of both factors, and of the result."""


class _Factor(NamedTuple):
    """Matrices in the form of cuBLAS."""

    values: Any
    """The array, which owns the memory."""
    op: str
    """N for matrices in row order, T for those in column order."""
    leading: int
    steps: tuple[int, ...]
    """Elements from one matrix to the next, along each axis of the batch; 0 where there is but one."""

    @classmethod
    def of(cls, values: Any, count: int) -> Self:
        """Return an array as it lies, or a copy in row order.

        Args:
            values: The array.
            count: Axes of the batch.
        """
        found = _lies(values)
        if found is None:
            values = cupy.ascontiguousarray(values)
            found = "N", values.shape[-1]
        return cls(values, *found, _steps(values, count))


def _lies(values: Any) -> tuple[str, int] | None:
    """Return operation and leading dimension of matrices as cuBLAS sees them, None if it cannot."""
    rows, columns = values.shape[-2:]
    down, across = (stride // values.itemsize for stride in values.strides[-2:])
    if min(values.strides) < 0:
        return None
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return "N", max(down, columns)
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return "T", max(across, rows)
    return None


def _steps(values: Any, count: int) -> tuple[int, ...]:
    batch = values.shape[:-2]
    steps = [0 if n == 1 else s // values.itemsize for n, s in zip(batch, values.strides[:-2], strict=True)]
    return (*[0] * (count - len(steps)), *steps)


def _axes(batch: Sequence[int], steps: Sequence[Sequence[int]]) -> list[_Axis]:
    """Return the axes of a batch, as few as there may be, the longest last."""
    found: list[_Axis] = []
    for n, *strides in zip(batch, *steps, strict=True):
        if n == 1:
            continue
        if found and all(outer == n * stride for outer, stride in zip(found[-1].strides, strides, strict=True)):
            found.append(_Axis(n * found.pop().length, tuple(strides)))
        else:
            found.append(_Axis(n, tuple(strides)))
    return sorted(found, key=lambda axis: axis.length)
