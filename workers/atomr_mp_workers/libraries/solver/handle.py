"""cuSOLVER's handle, and the memory that its routines work in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import cupy
import numpy as np
from nvmath.bindings import cusolverDn

if TYPE_CHECKING:
    from atomr_mp_workers.memory.arrays import DeviceArray

ANYWHERE_BYTES: Final = 256


class WorkSizes(NamedTuple):
    """What a routine works in, in bytes: the plan of a request, or a part of it."""

    on_device: int
    on_host: int = 0


class Room:
    """What a routine works in.

    Args:
        sizes: How much of it there is.
        memory: As much of the device, which nothing uses but later work on the stream.
    """

    def __init__(self, sizes: WorkSizes, memory: DeviceArray) -> None:
        self._sizes: Final = sizes
        self._device: Final = memory
        self.host: Final = np.empty(sizes.on_host, np.uint8)
        """To be kept until the routine has ended."""

    @property
    def both(self) -> tuple[int, int, int, int]:
        """Address and bytes on the device, address and bytes on the host, as 64-bit routines take them."""
        return *self.device(1), self.host.ctypes.data, self._sizes.on_host

    def device(self, item_bytes: int) -> tuple[int, int]:
        """Return the address on the device and the number of elements, as older routines take them."""
        return self._device.address, self._sizes.on_device // item_bytes


class Handle:
    """A handle of cuSOLVER, and parameters that leave everything at its default.

    Args:
        stream: Where its routines run, as CUDA's handle; 0 for one that is only asked for sizes.
    """

    def __init__(self, stream: int = 0) -> None:
        self.handle: Final[int] = cusolverDn.create()
        if stream:
            cusolverDn.set_stream(self.handle, stream)
        self.params: Final[int] = cusolverDn.create_params()
        self.jacobi: Final[int] = cusolverDn.create_gesvdj_info()
        self._anywhere: Final[Any] = cupy.cuda.alloc(ANYWHERE_BYTES)

    @property
    def anywhere(self) -> int:
        """An address on the device for arguments that routines do not read; they read none if asked for sizes only."""
        address: int = self._anywhere.ptr
        return address
