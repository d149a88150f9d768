"""The host backend: memfds for memory, NumPy for arrays, threads for streams."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.board import DEFAULT_STREAM
from atomr_mp.protocol.layout import Layout
from atomr_mp_workers import points
from atomr_mp_workers.device.base import Device, Event, Export, Memory, Resident, Slab, Stream, Work

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""What a memfd must be sealed against before it is mapped: by nobody's doing can an access beyond its end occur."""


class HostMemory(Memory):
    """A mapped memfd.

    Args:
        descriptor: The memfd; not needed any more once this returns.
        nbytes: Its size.
        writable: Whether this process may write it.
    """

    def __init__(self, descriptor: int, nbytes: int, *, writable: bool) -> None:
        self.nbytes = nbytes
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED, protection)
        self.address = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        self._read_only = not writable

    def before_unmap(self, function: Callable[[int], object], address: int) -> None:
        """Have something done before the memory is unmapped; must not refer to it otherwise."""
        weakref.finalize(self, function, address).atexit = False

    def bytes(self, owner: object, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Return a part as an array of bytes; it holds `owner` and the mapping."""
        return np.asarray(_Part(self, owner, self.address + offset, nbytes, read_only=self._read_only))

    def array(self, part: np.ndarray[Any, Any], layout: Layout, *, writable: bool) -> np.ndarray[Any, Any]:
        """Return a NumPy array over a part."""
        view: np.ndarray[Any, Any] = np.ndarray(
            layout.shape, dtypes.to_numpy(layout.dtype), part, layout.offset, layout.strides
        )
        if not writable:
            view.setflags(write=False)
        return view


class HostSlab(HostMemory, Slab):
    """A memfd of this process.

    Args:
        nbytes: Its size.
        name: Its name.
    """

    def __init__(self, nbytes: int, name: str) -> None:
        self._descriptor = -1
        try:
            self._descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self._descriptor, nbytes)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
            super().__init__(self._descriptor, nbytes, writable=True)
        except OSError as error:  # the descriptor, if there is one, is closed with this object
            raise errors.OutOfMemory(f"no slab of {nbytes} bytes: {error}", requested_bytes=nbytes) from error

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def export(self) -> Export:
        """Return the memfd."""
        return Export(self.nbytes, b"", self._descriptor)


class HostEvent:
    """The end of work on a host stream; can be waited for."""

    __slots__ = ("_under_way", "done")

    def __init__(self) -> None:
        self.done = False
        # Held until the work has ended. An Event of `threading` takes ten times as long to make.
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def end(self) -> None:
        """Say that the work has ended; whoever does the work, so one thread at a time."""
        if not self.done:
            self.done = True
            self._under_way.release()

    def wait(self) -> None:
        """Wait for it. Any number of threads."""
        if not self.done:  # most have ended by then
            with self._under_way:
                pass


class HostStream(Stream):
    """A thread that works in order; what is small is done by whoever submits it, if nothing is before it.

    `submit` is for one thread only, the loop's; a piece of work counts as pending until its event has ended.

    Args:
        name: For logs, and the thread's name.
        inline_bytes: What is small; -1 for nothing.
    """

    def __init__(self, name: str, *, inline_bytes: int) -> None:
        super().__init__(name)
        self._inline_bytes = inline_bytes
        self._queue: SimpleQueue[tuple[Work, Sequence[Event]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Event | None = None
        """That of the last piece of work."""

    def submit(self, work: Work, after: Sequence[Event], nbytes: int) -> bool:
        """Do small work at once if nothing is before it; else queue it."""
        idle = self._last is None or self._last.done
        if idle and nbytes <= self._inline_bytes and all(event.done for event in after):
            work.call()
            return True
        if self._thread is None:
            # A daemon: work that never ends must not keep a worker alive that was told to leave.
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        self._last = work.event
        self._queue.put((work, after))
        return False

    def close(self) -> None:
        """End the thread after what it has."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, after = item
            # What is waited for was submitted before, so no circle of streams can wait for itself.
            for event in after:
                assert isinstance(event, HostEvent)
                event.wait()
            work.call()
            work.finished()
            del item, work, after  # nothing is held while the queue is empty


class HostDevice(Device):
    """The processor and its memory."""

    @property
    def host(self) -> Device:
        """Itself."""
        return self

    def make_slab(self, nbytes: int) -> Slab:
        """Make a memfd, sealed in its size; zero at first."""
        return HostSlab(nbytes, self.slab_name)

    def open_slab(self, nbytes: int, handle: bytes, descriptor: int | None) -> Memory:
        """Map another worker's memfd."""
        if descriptor is None or handle:
            raise errors.InvalidRequest("a slab of the host backend comes as a file descriptor")
        return _map_sealed(descriptor, nbytes, writable=True)

    def open_client_slab(self, nbytes: int, descriptor: int) -> Memory:
        """Map a client's memfd for reading."""
        return _map_sealed(descriptor, nbytes, writable=False)

    def make_resident(self, nbytes: int) -> Resident:
        """Make a memfd; zero at first."""
        from atomr_mp_workers.device.host_resident import HostResident

        return HostResident.make(nbytes, self.resident_name)

    def open_resident(self, nbytes: int, descriptor: int) -> Resident:
        """Map a sealed memfd."""
        from atomr_mp_workers.device.host_resident import HostResident

        return HostResident.open(nbytes, descriptor)

    def make_event(self) -> Event:
        """Return an event for threads to wait for."""
        return HostEvent()

    def make_stream(self, name: str, *, inline_bytes: int, priority: str = "normal") -> Stream:  # noqa: ARG002
        """Make a thread that works in order."""
        return HostStream(name, inline_bytes=inline_bytes)

    def unfinished(self) -> int:
        """Return what a test wants a GPU not to have finished."""
        return DEFAULT_STREAM if points.hook is not None and points.hook.in_kernel else 0

    def copy(self, source: Any, target: Any) -> None:
        """Copy at once."""
        np.copyto(target, source)


class _Part:
    """What a NumPy array over a part of a mapping holds on to."""

    def __init__(self, memory: HostMemory, owner: object, address: int, nbytes: int, *, read_only: bool) -> None:
        self._held = (memory, owner)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (address, read_only),
        }


def _map_sealed(descriptor: int, nbytes: int, *, writable: bool) -> HostMemory:
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS or os.fstat(descriptor).st_size != nbytes:
            raise errors.InvalidRequest(f"a slab must be a memfd of exactly {nbytes} bytes, sealed in its size")
        return HostMemory(descriptor, nbytes, writable=writable)
    except (OSError, ValueError) as error:
        raise errors.InvalidRequest(f"a slab of {nbytes} bytes cannot be mapped: {error}") from error
    finally:
        os.close(descriptor)
