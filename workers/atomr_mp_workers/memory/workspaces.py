"""Workspaces: memory in which the kernels of libraries work, one piece for each stream.

A kernel expects no content in it and leaves none, and kernels on a stream follow each other. So the libraries on a
stream share a piece; streams never do. It grows when more is asked for, best while a plan is made, off the loop. The
old piece goes back to the store once nothing refers to it: a graph keeps the piece that it was recorded with. When
memory is short, pieces that have grown are released, and made again when they are needed.
"""

from __future__ import annotations

import threading
from typing import Final
from weakref import WeakKeyDictionary

from atomr_mp_workers.device.base import Stream
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.buffers import Buffers

FIXED_BYTES: Final = 2**25
"""Bytes that cuBLAS recommends from Hopper on, and more than enough before (cublasSetWorkspace)."""


class Workspace:
    """The workspace of a stream.

    Args:
        buffers: Makes its memory, which is this process's own.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers: Final = buffers
        self._lock: Final = threading.Lock()
        self._fixed: DeviceArray | None = None
        self._grown: DeviceArray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that it takes now."""
        return sum(each.nbytes for each in (self._fixed, self._grown) if each is not None)

    def fixed(self) -> DeviceArray:
        """Return `FIXED_BYTES` at a fixed address, for handles that get the address once. Any thread.

        Raises:
            OutOfMemory: There is no room.
        """
        made = self._made(FIXED_BYTES) if self._fixed is None else self._fixed
        with self._lock:
            if self._fixed is None:
                self._fixed = made
                if self._grown is not None and self._grown.nbytes <= FIXED_BYTES:
                    self._grown = None
            return self._fixed

    def take(self, nbytes: int) -> DeviceArray:
        """Return at least so many bytes, for the next work on the stream. Any thread.

        The memory stays as long as the caller refers to it. Growing it may take as long as the driver does.

        Raises:
            OutOfMemory: There is no room, even after grown pieces were released.
        """
        with self._lock:
            found = self._enough(nbytes)
        if found is not None:
            return found
        made = self._made(nbytes)  # without the lock, since a shortage of memory shrinks all workspaces
        with self._lock:
            if self._grown is None or self._grown.nbytes < nbytes:
                self._grown = made
            return self._grown

    def shrink(self) -> None:
        """Release a piece that has grown. Any thread."""
        with self._lock:
            self._grown = None

    def _enough(self, nbytes: int) -> DeviceArray | None:
        if self._fixed is not None and nbytes <= FIXED_BYTES:
            return self._fixed
        return self._grown if self._grown is not None and self._grown.nbytes >= nbytes else None

    def _made(self, nbytes: int) -> DeviceArray:
        return self._buffers.allocate(self._buffers.ours, "uint8", (max(nbytes, 1),))


class Workspaces:
    """The workspaces of a process, by stream; each ends with its stream.

    Args:
        buffers: Makes their memory.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers: Final = buffers
        self._lock: Final = threading.Lock()
        self._of: Final[WeakKeyDictionary[Stream, Workspace]] = WeakKeyDictionary()

    def of(self, stream: Stream) -> Workspace:
        """Return a stream's workspace. Any thread."""
        with self._lock:
            found = self._of.get(stream)
            if found is None:
                found = self._of[stream] = Workspace(self._buffers)
            return found

    @property
    def nbytes(self) -> int:
        """Bytes of all workspaces now. Any thread."""
        return sum(each.nbytes for each in self._all())

    def shrink(self) -> None:
        """Release pieces that have grown, since memory is short. Any thread."""
        for each in self._all():
            each.shrink()

    def _all(self) -> list[Workspace]:
        with self._lock:
            return list(self._of.values())
