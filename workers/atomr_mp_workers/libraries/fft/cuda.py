"""Fourier transforms on the CUDA backend, with cuFFT on the memory itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, cast

import cupy
from nvmath import CudaDataType
from nvmath.bindings import cufft

from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import fft
from atomr_mp_workers.libraries.base import Library, array, given
from atomr_mp_workers.libraries.fft.embedding import TransformLayout, embedding, placed

if TYPE_CHECKING:
    from atomr_mp_workers.device.cuda_streams import CudaStream

FORWARD, INVERSE = -1, 1
"""CUFFT_FORWARD and CUFFT_INVERSE."""

TYPES: Final = {
    "float32": int(CudaDataType.CUDA_R_32F),
    "float64": int(CudaDataType.CUDA_R_64F),
    "complex64": int(CudaDataType.CUDA_C_32F),
    "complex128": int(CudaDataType.CUDA_C_64F),
}


class FftPlan:
    """A plan of cuFFT; the caller provides its workspace.

    Args:
        request: A request of its kind.
        stream: The stream on which it runs, as CUDA's handle.
    """

    def __init__(self, request: fft.Transform, stream: int) -> None:
        source, target = request.x.layout, given(request.out).layout
        halved = request.kind != "c2c"
        self.how: Final = _copying(placed(source, target, request.axes, halved=halved), request)
        axes = self.how.axes
        inner = self.how.source or _packed(source, axes)
        outer = self.how.target or _packed(target, axes)
        lengths = target.shape if request.kind == "c2r" else source.shape
        n = [lengths[axis] for axis in axes]
        batch = math.prod(length for axis, length in enumerate(lengths) if axis not in axes)
        compute = TYPES[request.x.dtype if request.kind != "r2c" else target.dtype]
        self.handle: Final[int] = cufft.create()
        cufft.set_auto_allocation(self.handle, 0)
        self.work_bytes: Final[int] = cufft.xt_make_plan_many(
            self.handle, len(n), n, list(inner.embed), inner.stride, inner.distance, TYPES[source.dtype],
            list(outer.embed), outer.stride, outer.distance, TYPES[target.dtype], batch, compute,
        )  # fmt: skip
        cufft.set_stream(self.handle, stream)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            cufft.destroy(self.handle)


class CudaFft(Library):
    """Transforms of device memory.

    Making a plan takes 17 to 111 ms (H200, cuFFT 12, 2026), so it is made off the loop, and kept.
    """

    slow = frozenset({"transform"})

    def prepare_transform(self, request: fft.Transform) -> FftPlan:
        """Make a plan."""
        plan = FftPlan(request, cast("CudaStream", self.stream).stream.ptr)
        self.workspace(plan.work_bytes)
        return plan

    def transform(self, request: fft.Transform, plan: FftPlan) -> None:
        """Transform x along axes."""
        how, x, out = plan.how, array(request.x), array(request.out)
        if how.source is None:
            x = cupy.array(_turned(x, how.axes), order="C", copy=True)
        made = out if how.target is not None else cupy.empty(_turned(out, how.axes).shape, out.dtype)
        work = self.workspace(plan.work_bytes)
        cufft.set_work_area(plan.handle, work.address)
        inverse = request.inverse or request.kind == "c2r"
        cufft.xt_exec(plan.handle, x.data.ptr, made.data.ptr, INVERSE if inverse else FORWARD)
        factor = _factor(request, out.shape if request.kind == "c2r" else request.x.shape)
        if factor != 1:
            made *= made.dtype.type(factor)
        if how.target is None:
            out[...] = cupy.moveaxis(made, range(-len(how.axes), 0), how.axes)


def _copying(how: TransformLayout, request: fft.Transform) -> TransformLayout:
    """Return how a transform is done by cuFFT, which wants some arrays copied.

    It writes over the input of c2r, and takes real numbers only where a complex one could lie (cufftExecR2C).
    """
    if request.kind == "c2r" or _is_odd(request.x.layout):
        how = how._replace(source=None)
    return how._replace(target=None) if _is_odd(given(request.out).layout) else how


def _is_odd(layout: Layout) -> bool:
    """Return whether real numbers begin where no complex one could."""
    return layout.dtype.startswith("float") and layout.offset % (2 * layout.item_bytes) != 0


def _turned(values: Any, axes: tuple[int, ...]) -> Any:
    """Return a view with the axes last, in their order."""
    return cupy.moveaxis(values, axes, range(-len(axes), 0))


def _packed(layout: Layout, axes: tuple[int, ...]) -> Any:
    """Return the description of a copy that is packed with the axes last."""
    rest = [axis for axis in range(len(layout.shape)) if axis not in axes]
    shape = [layout.shape[axis] for axis in (*rest, *axes)]
    copy = Layout.contiguous(layout.dtype, shape)
    return embedding(copy, range(len(rest), len(shape)))


def _factor(request: fft.Transform, shape: tuple[int, ...]) -> float:
    """Return the factor to multiply the result by."""
    n = math.prod(shape[axis] for axis in request.axes)
    inverse = request.inverse or request.kind == "c2r"
    if request.norm == "ortho":
        return 1 / math.sqrt(n)
    return 1 / n if request.norm == ("backward" if inverse else "forward") else 1.0


Implementation: Final = CudaFft
