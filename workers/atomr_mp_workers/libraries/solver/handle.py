"""cuSOLVER's handle, and the memory that its routines work in."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import cupy
import numpy as np
from nvmath.bindings import cusolverDn

ANYWHERE_BYTES: Final = 256


class Workspace(NamedTuple):
    """What a routine works in: the plan of a request."""

    on_device: int
    """Bytes, or elements of the request's type for routines that count so."""
    on_host: int = 0
    """Bytes."""


class Room(NamedTuple):
    """A workspace that is there, as routines take it."""

    device: int
    device_bytes: int
    host: int
    host_bytes: int


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
        self._anywhere: Final = cupy.cuda.alloc(ANYWHERE_BYTES)

    @property
    def anywhere(self) -> int:
        """An address on the device for routines that are only asked for sizes."""
        address: int = self._anywhere.ptr
        return address


def room(workspace: Workspace) -> tuple[Room, Any]:
    """Return a workspace, and what keeps it: on the device until it is enqueued, on the host until it has ended."""
    device, host = cupy.cuda.alloc(workspace.on_device), np.empty(workspace.on_host, np.uint8)
    return Room(device.ptr, workspace.on_device, host.ctypes.data, workspace.on_host), (device, host)
