"""cuSOLVER's handle, and the workspace of its routines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import cupy
import numpy as np
from nvmath.bindings import cusolverDn

if TYPE_CHECKING:
    from atomr_mp_workers.memory.arrays import DeviceArray

ANYWHERE_BYTES: Final = 256


class WorkSizes(NamedTuple):
    """A routine's workspace sizes in bytes: the plan of a request, or a part of it."""

    on_device: int
    on_host: int = 0


class Room:
    """The workspace of a routine.

    Args:
        sizes: Its sizes.
        memory: Its device memory, which only later work on the stream uses.
    """

    def __init__(self, sizes: WorkSizes, memory: DeviceArray) -> None:
        self._sizes: Final = sizes
        self._device: Final = memory
        self.host: Final = np.empty(sizes.on_host, np.uint8)
        """Host memory, to keep until the routine has ended."""

    @property
    def both(self) -> tuple[int, int, int, int]:
        """Address and bytes on the device, address and bytes on the host, in the form of 64-bit routines."""
        return *self.device(1), self.host.ctypes.data, self._sizes.on_host

    def device(self, item_bytes: int) -> tuple[int, int]:
        """Return the address on the device and the number of elements, in the form of older routines."""
        return self._device.address, self._sizes.on_device // item_bytes


class Handle:
    """A handle of cuSOLVER, and parameters that leave everything at its default.

    Args:
        stream: The stream of its routines, as CUDA's handle; 0 for a handle that is only asked for sizes.
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
        """A device address for arguments that routines do not read, as when they are asked for sizes only."""
        address: int = self._anywhere.ptr
        return address
