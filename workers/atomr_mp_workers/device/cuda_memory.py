"""Memory of the CUDA backend: allocations that cross processes by IPC handles, and pinned memory of the host."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import cupy
import numpy as np
from cupy.cuda import runtime

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout
from atomr_mp_workers.device.base import Export, Later, Slab, SlabMemory, at_once
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.device.host_memory import HostMemory

HANDLE_BYTES: Final = 64

LAZY_PEER_ACCESS: Final = 1
"""`cudaIpcMemLazyEnablePeerAccess`, its only flag."""


class CudaMemory(SlabMemory):
    """An allocation, ours or another process's.

    Args:
        address: Its first address.
        nbytes: Its size.
    """

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes

    def bytes(self, owner: object, offset: int, nbytes: int) -> Any:
        """Return a part as a CuPy array of bytes; it holds `owner` and the allocation."""
        return cupy.ndarray((nbytes,), cupy.uint8, self.pointer(owner, offset, nbytes))

    def array(self, part: Any, layout: Layout, *, writable: bool) -> Any:  # noqa: ARG002 - CuPy has none for reading
        """Return a CuPy array over a part; eight-bit floating point, which CuPy does not have, as unsigned integers."""
        dtype = np.uint8 if layout.dtype in dtypes.FLOAT8 else dtypes.to_numpy(layout.dtype)
        return cupy.ndarray(layout.shape, dtype, part.data + layout.offset, layout.strides)

    def read(self, part: Any, layout: Layout) -> Any:
        """Return a copy of such an array in the host's memory; waits for the current stream."""
        return self.array(part, layout, writable=False).get().view(dtypes.to_numpy(layout.dtype))

    def pointer(self, owner: object, offset: int, nbytes: int) -> Any:
        """Return a part in the form of CuPy's allocators."""
        held = cupy.cuda.UnownedMemory(self.address + offset, nbytes, (self, owner), 0)
        return cupy.cuda.MemoryPointer(held, 0)


class CudaSlab(CudaMemory, Slab):
    """An allocation of this process.

    Args:
        nbytes: Its size.
        later: Frees it, when nothing refers to this any more.
    """

    def __init__(self, nbytes: int, later: Later = at_once) -> None:
        super().__init__(runtime.malloc(nbytes), nbytes)
        self._handle = b""
        weakref.finalize(self, later, partial(runtime.free, self.address)).atexit = False

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """Fill a part with a byte, on a stream that waits for no other; not if the context is lost."""
        with contextlib.suppress(runtime.CUDARuntimeError), cupy.cuda.Stream(non_blocking=True) as stream:
            runtime.memsetAsync(self.address + offset, value, nbytes, stream.ptr)
            stream.synchronize()

    def export(self) -> Export:
        """Return its IPC handle."""
        if not self._handle:
            self._handle = bytes(runtime.ipcGetMemHandle(self.address))
        return Export(self.nbytes, self._handle, None)


class OpenedSlab(CudaMemory):
    """Another process's allocation, mapped here.

    Args:
        handle: Its IPC handle.
        nbytes: Its size.
        later: Closes it, when nothing refers to this any more.

    Raises:
        InvalidRequest: It is not such memory.
    """

    def __init__(self, handle: bytes, nbytes: int, later: Later = at_once) -> None:
        if len(handle) != HANDLE_BYTES:
            raise errors.InvalidRequest(f"a CUDA IPC handle has {HANDLE_BYTES} bytes, got {len(handle)}")
        super().__init__(runtime.ipcOpenMemHandle(handle, LAZY_PEER_ACCESS), nbytes)
        weakref.finalize(self, later, partial(runtime.ipcCloseMemHandle, self.address)).atexit = False


class PinnedHost(HostDevice):
    """Host memory, pinned as long as it is mapped, so that the GPU reads and writes it directly.

    Pinning takes some 0.8 s a GiB, once. It is done in the background if there is one; until then the memory is copied
    through the driver's own buffers, like other host memory.
    """

    def make_slab(self, nbytes: int) -> Slab:
        """Make a memfd, mapped and pinned at once or soon."""
        slab = super().make_slab(nbytes)
        self._pin_later(slab)
        return slab

    def open_client_slab(self, nbytes: int, descriptor: int) -> SlabMemory:
        """Map a client's memfd, to be pinned when it is first used.

        It is mapped for writing too: a read-only mapping cannot be pinned, and clients have results written there.
        """
        return _PinnedWhenUsed(self.open_slab(nbytes, b"", descriptor), self._pin_later)

    def _pin_later(self, memory: SlabMemory) -> None:
        assert isinstance(memory, HostMemory)
        self.later(partial(_pin_if_used, weakref.ref(memory), self.later))


class _PinnedWhenUsed(SlabMemory):
    """A mapped memfd that may be meant for other devices of the pool, and is pinned only at its first use."""

    def __init__(self, memory: SlabMemory, pin: Callable[[SlabMemory], None]) -> None:
        self.nbytes, self.address = memory.nbytes, memory.address
        self._memory = memory
        self._pin: Callable[[SlabMemory], None] | None = pin

    def bytes(self, owner: object, offset: int, nbytes: int) -> Any:
        """Return a part as an array of bytes."""
        pin, self._pin = self._pin, None
        if pin is not None:
            pin(self._memory)
        return self._memory.bytes(owner, offset, nbytes)

    def array(self, part: Any, layout: Layout, *, writable: bool) -> Any:
        """Return a NumPy array over a part."""
        return self._memory.array(part, layout, writable=writable)


def _pin_if_used(used: weakref.ref[HostMemory], later: Later) -> None:
    """Pin memory, if it still exists."""
    memory = used()
    if memory is None:
        return
    try:
        runtime.hostRegister(memory.address, memory.nbytes, 0)
    except runtime.CUDARuntimeError:
        return  # memory that cannot be pinned (RLIMIT_MEMLOCK, for one) is only slower
    memory.before_unmap(lambda mapping, address: later(partial(_unpin, mapping, address)))


def _unpin(_mapping: object, address: int) -> None:
    """Unpin memory, which is still mapped."""
    runtime.hostUnregister(address)
