"""The host backend: memfds for memory, NumPy for arrays, threads for streams.

Modules that need NumPy are imported with the first memory: a worker that never sees an array never pays for it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.board import DEFAULT_STREAM
from atomr_mp.protocol.layout import Layout
from atomr_mp_workers.device.base import Event, Resident, Slab, SlabMemory, Stream, Work, WorkerDevice
from atomr_mp_workers.fault_points import hooks


class HostEvent:
    """The end of work on a host stream; can be waited for."""

    __slots__ = ("_under_way", "done")

    def __init__(self) -> None:
        self.done = False
        # Held until the work has ended. A `threading.Event` takes ten times as long to make.
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def end(self) -> None:
        """Set it: the work has ended. Only the thread that does the work calls this."""
        if not self.done:
            self.done = True
            self._under_way.release()

    def wait(self) -> None:
        """Wait for it. Any number of threads."""
        if not self.done:  # most have ended by then
            with self._under_way:
                pass


class HostStream(Stream):
    """A thread that works in order; the submitting thread does small work itself if no work is before it.

    `submit` is for one thread only, the loop's; a piece of work counts as pending until its event has ended.

    Args:
        name: For logs, and the thread's name.
        inline_bytes: Largest size of small work; -1 for none.
    """

    def __init__(self, name: str, *, inline_bytes: int) -> None:
        super().__init__(name)
        self._inline_bytes = inline_bytes
        self._queue: SimpleQueue[tuple[Work, Sequence[Event]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Event | None = None
        """Event of the last piece of work."""

    def submit(self, work: Work, after: Sequence[Event], nbytes: int) -> bool:
        """Do small work at once if none is before it; queue other work."""
        idle = self._last is None or self._last.done
        if idle and nbytes <= self._inline_bytes and all(event.done for event in after):
            work.call()
            return True
        if self._thread is None:
            # A daemon: work that never ends must not keep a worker alive that was told to leave.
            thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            thread.start()
            self._thread = thread
        self._last = work.event
        self._queue.put((work, after))
        return False

    def close(self) -> None:
        """End the thread after its submitted work."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, after = item
            # Work waits only for earlier work, so no cycle of streams can wait for itself.
            for event in after:
                assert isinstance(event, HostEvent)
                event.wait()
            work.call()
            work.finished()
            del item, work, after  # hold nothing while the queue is empty


class HostDevice(WorkerDevice):
    """The processor and its memory."""

    ahead = 2  # one is computed, and the next follows at once

    @property
    def host(self) -> WorkerDevice:
        """Itself."""
        return self

    def make_slab(self, nbytes: int) -> Slab:
        """Make a memfd, sealed in its size; zero at first."""
        from atomr_mp_workers.device.host_memory import HostSlab

        return HostSlab(nbytes, self.slab_name, self.later)

    def open_slab(self, nbytes: int, handle: bytes, descriptor: int | None) -> SlabMemory:
        """Map another worker's memfd."""
        if descriptor is None or handle:
            raise errors.InvalidRequest("a slab of the host backend comes as a file descriptor")
        from atomr_mp_workers.device.host_memory import map_sealed

        return map_sealed(descriptor, nbytes, writable=True, later=self.later)

    def open_client_slab(self, nbytes: int, descriptor: int) -> SlabMemory:
        """Map a client's memfd for reading."""
        from atomr_mp_workers.device.host_memory import map_sealed

        return map_sealed(descriptor, nbytes, writable=False, later=self.later)

    def to_local(self, value: Any) -> tuple[Any, Layout] | None:
        """Return one of NumPy's arrays."""
        import numpy as np

        if not isinstance(value, np.ndarray) or not value.dtype.isnative or hasattr(value, "mask"):
            return None
        address: int = value.__array_interface__["data"][0]
        return value, Layout(dtypes.name_of(value.dtype), value.shape, value.strides, address)

    @functools.cached_property
    def address_space(self) -> SlabMemory:
        """The process's own."""
        from atomr_mp_workers.device.host_memory import AddressSpace

        return AddressSpace()

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
        """Return the unfinished streams that a test asks for."""
        return DEFAULT_STREAM if hooks.hook is not None and hooks.hook.in_kernel else 0

    def copy(self, source: Any, target: Any) -> None:
        """Copy at once."""
        import numpy as np

        np.copyto(target, source)
