"""cuSOLVER's handle, and the memory that its routines work in."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import cupy
import numpy as np
from nvmath.bindings import cusolverDn

ANYWHERE_BYTES: Final = 256


class Workspace(NamedTuple):
    """What a routine works in, in bytes: the plan of a request, or a part of it."""

    on_device: int
    on_host: int = 0


class Room:
    """A workspace that is there. What is on the device is given to nothing but later work on the current stream.

    Args:
        workspace: Its sizes.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._sizes = workspace
        self._device = cupy.cuda.alloc(max(1, workspace.on_device))
        self.host: Final = np.empty(workspace.on_host, np.uint8)
        """To be kept until the routine has ended."""

    @property
    def both(self) -> tuple[int, int, int, int]:
        """Address and bytes on the device, address and bytes on the host, as 64-bit routines take them."""
        return *self.device(1), self.host.ctypes.data, self._sizes.on_host

    def device(self, item_bytes: int) -> tuple[int, int]:
        """Return the address on the device and the number of elements, as older routines take them."""
        return self._device.ptr, self._sizes.on_device // item_bytes


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
