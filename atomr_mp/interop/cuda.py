"""EDGE: slabs of the CUDA backend, opened by their IPC handles and seen as CuPy arrays.

The device is found by its UUID, so it does not matter how this process numbers the GPUs that it sees. What this
process does with an array goes on after the array has gone: it has ended only when the device is idle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.interop.mapped import Mapped
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.protocol.layout import Layout

LAZY_PEER_ACCESS: Final = 1
"""`cudaIpcMemLazyEnablePeerAccess`, its only flag."""

CUDA: Final = 2
"""kDLCUDA, of DLPack."""


class CudaMapping(Mapped):
    """A slab of device memory in this process, readable and writable.

    Args:
        handle: Its IPC handle.
        nbytes: Its size.
        uuid: Of the GPU that has it.
        ending: Where what an array has kept is put when the array has gone, with what waits for this process's own
            work on it; called on any thread, in the middle of anything.
        unmapped: See `Mapped`.

    Raises:
        Unsupported: CuPy, or a driver, is not there.
        GpuRefWrongDevice: This process does not see the GPU.
        GpuRefStale: The memory is not there any more.
    """

    def __init__(
        self,
        handle: bytes,
        nbytes: int,
        uuid: str,
        ending: Callable[[Callable[[], object], object], object],
        unmapped: Callable[[], object] | None = None,
    ) -> None:
        self.ordinal: Final = ordinal_of(uuid)
        self.nbytes: Final = nbytes
        self._ending = ending
        runtime = _cupy().cuda.runtime
        with _cupy().cuda.Device(self.ordinal):
            try:
                address: int = runtime.ipcOpenMemHandle(handle, LAZY_PEER_ACCESS)
            except runtime.CUDARuntimeError as error:
                raise errors.GpuRefStale(f"the memory cannot be opened, its process may have ended: {error}") from error
        self._address: Final = address
        super().__init__(functools.partial(_unmap, address, self.ordinal), unmapped)

    def array(self, layout: Layout, *, writable: bool, keep: object = None) -> Any:  # noqa: ARG002 - CuPy knows no other
        """Return a CuPy array in the slab, zero-copy.

        Args:
            layout: How it lies in the slab.
            writable: Whether it is meant to be written; CuPy has no arrays that cannot be.
            keep: Kept until the array, and what was made from it without a copy, has gone and this process's work on
                the device has ended.

        Raises:
            GpuRefOutOfExtent: It does not lie in the slab.
            GpuRefReleased: The mapping was closed.
        """
        low, high = layout.span_within(self.nbytes)
        with self._lock:
            self._check_mapped()
            part = _CudaPart(self, keep)
            self._parts.add(part)
        cupy = _cupy()
        memory = cupy.cuda.UnownedMemory(self._address + low, high - low, part, self.ordinal)
        dtype = "uint8" if layout.dtype in dtypes.FLOAT8 else dtypes.to_numpy(layout.dtype)
        with cupy.cuda.Device(self.ordinal):
            return cupy.ndarray(
                layout.shape, dtype, cupy.cuda.MemoryPointer(memory, layout.offset - low), layout.strides
            )

    def ended(self, keep: object) -> None:
        """Take back what an array has kept, for when this process's work has ended. Any thread, at any time."""
        self._ending(functools.partial(synchronize, self.ordinal), (self, keep))


class _CudaPart:
    """Object that CuPy keeps for as long as any array over the memory lives."""

    def __init__(self, mapping: CudaMapping, keep: object) -> None:
        self._mapping = mapping
        self._keep = keep

    def __del__(self) -> None:
        if self._keep is not None:
            self._mapping.ended(self._keep)


def _unmap(address: int, ordinal: int) -> None:
    """Unmap memory, once this process's own work on the GPU has ended."""
    synchronize(ordinal)
    with _cupy().cuda.Device(ordinal):
        _cupy().cuda.runtime.ipcCloseMemHandle(address)


def synchronize(ordinal: int) -> None:
    """Wait until the GPU has done all that this process has given to it."""
    _cupy().cuda.Device(ordinal).synchronize()


@functools.cache
def ordinal_of(uuid: str) -> int:
    """Return by which number this process knows a GPU.

    Raises:
        Unsupported: CuPy, or a driver, is not there.
        GpuRefWrongDevice: This process does not see the GPU.
    """
    runtime = _cupy().cuda.runtime
    try:
        seen = [bytes(runtime.getDeviceProperties(each)["uuid"]) for each in range(runtime.getDeviceCount())]
    except runtime.CUDARuntimeError as error:
        raise errors.Unsupported(f"this process has no GPU to view device memory on: {error}") from error
    found = [ordinal for ordinal, raw in enumerate(seen) if is_uuid(uuid, raw)]
    if len(found) != 1:
        raise errors.GpuRefWrongDevice(
            f"the memory is on GPU {uuid}, which is {len(found)} of the {len(seen)} GPUs that this process sees "
            "(CUDA_VISIBLE_DEVICES)"
        )
    return found[0]


@functools.cache
def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise errors.Unsupported(
            f"a view of device memory needs CuPy, which cannot be imported: {error}; "
            f"{how_to_install('cupy')}, or copy the elements (numpy)"
        ) from error
    return cupy


def is_uuid(uuid: str, raw: bytes) -> bool:
    """Return whether CuPy's bytes of a UUID mean this one; CuPy ends them at a byte of zero, as if they were text."""
    whole = bytes.fromhex(uuid.removeprefix("GPU-").replace("-", ""))
    return whole == raw[:16] or (len(raw) < len(whole) and whole.startswith(raw) and whole[len(raw)] == 0)
