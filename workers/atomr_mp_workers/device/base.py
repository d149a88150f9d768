"""The interface of every backend: memory that crosses processes, and streams that work runs on.

A backend is small: it makes, exports and opens slabs, makes arrays over them, and puts work on streams, in order;
events tell when work has ended.
"""

# ruff: noqa: B027 - methods that a device does not need do nothing

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.process_tags import RESIDENT, SLAB
from atomr_mp_workers.device.background import Background
from atomr_mp_workers.timeline import WorkTimes

Later = Callable[[Callable[[], object]], object]
"""Has a function called, now or in the background."""


def at_once(call: Callable[[], object]) -> None:
    """Call a function now."""
    call()


class Export(NamedTuple):
    """A handle that opens memory in another process."""

    nbytes: int
    handle: bytes
    """A CUDA IPC handle, empty on the host backend."""
    descriptor: int | None
    """Stays its maker's; None on CUDA."""


class SlabMemory(ABC):
    """Memory that this process can reach: a slab of its own, or one that it has opened.

    It is unmapped, perhaps in the background, when the last reference to it goes. Arrays over it hold a reference.
    """

    nbytes: int
    address: int
    """Its first address, in this process's address space or its device's."""

    @abstractmethod
    def bytes(self, owner: object, offset: int, nbytes: int) -> Any:
        """Return an array of bytes over a part of it, of the backend's kind, that keeps `owner` alive."""

    @abstractmethod
    def array(self, part: Any, layout: Layout, *, writable: bool) -> Any:
        """Return an array over what `bytes` has returned; `layout.offset` counts from the start of the part."""

    def read(self, part: Any, layout: Layout) -> Any:
        """Return a copy of such an array in the host's memory, NumPy's and row-major; waits for the current stream."""
        return self.array(part, layout, writable=False).copy()


class Slab(SlabMemory):
    """Memory that this process has made."""

    def populate(self, _nbytes: int) -> None:
        """Have the system give its first bytes now, instead of at their first write, if it can."""

    @abstractmethod
    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """Fill a part that nothing uses with a byte, before this returns. Any thread; for `atomr_mp.checks`."""

    @abstractmethod
    def export(self) -> Export:
        """Return the handle that opens it in another process."""


class Resident(SlabMemory):
    """Memory that can outlive this process: made here and writable until it is sealed, or sealed elsewhere."""

    @abstractmethod
    def seal(self) -> int:
        """Wait for all writes, and forbid further ones; once, for memory made here.

        Arrays over it stay valid for reading. Writing through an earlier array ends this process.

        Returns:
            A descriptor that opens it elsewhere, the caller's.

        Raises:
            SetupFailed: Another process can still write it.
        """

    @abstractmethod
    def content(self, offset: int, nbytes: int) -> Any:
        """Return the bytes of a part, in the host's memory; waits for them."""


class Event(Protocol):
    """The end of a piece of work."""

    @property
    def done(self) -> bool:
        """Whether it has ended. Never blocks."""

    def end(self) -> None:
        """Set it: the work has ended. Any thread."""


class Stream(ABC):
    """Work in order: each piece begins when the one before it has ended.

    Attributes:
        name: For logs.
    """

    defers = False
    """Whether work goes on after the call that has put it here: it may not have ended when `Work.call` returns."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.number = 0
        """Its number among the process's streams."""

    def takes(self, after: Sequence[Event]) -> bool:  # noqa: ARG002 - a stream that waits by itself takes all
        """Return whether work that has to wait for these events can be submitted; if not, they have to end first."""
        return True

    @abstractmethod
    def submit(self, work: Work, after: Sequence[Event], nbytes: int) -> bool:
        """Have work done after earlier work of this stream, and after other streams' events.

        Args:
            work: The work; its `event` is done when it has ended.
            after: Other events that it waits for; `takes` has accepted them.
            nbytes: Bytes that it touches, from which the stream may judge how long it takes.

        Returns:
            Whether it has been done already. If not, `work.finished()` is called at its end, on any thread.
        """

    def run(self, function: Callable[[], None]) -> None:
        """Call a function at once, in order, and wait for the end of its work."""
        function()

    @property
    def is_current(self) -> bool:
        """Whether work that the calling thread starts now would go to this stream."""
        return True

    def synchronize(self) -> None:
        """Wait for the work that calls before this one have put on the stream."""

    @abstractmethod
    def close(self) -> None:
        """End the stream after its submitted work; wait for that."""


class Work(Protocol):
    """A piece of work, as streams see it."""

    raised: BaseException | None
    """The exception that it has raised."""
    times: WorkTimes | None
    """Takes the times of its work on the device, if somebody wants them."""

    def call(self) -> None:
        """Do it; never raises."""

    def finished(self) -> None:
        """Report that it has been done. Any thread."""

    @property
    def event(self) -> Event | None:
        """Done when this is; made before it is submitted."""

    @property
    def goes_on(self) -> bool:
        """Whether it will be submitted again when its part on the stream has ended; `event` is done later."""


class ArrayRoom(Protocol):
    """The room for arrays of user code. Any thread."""

    def holder(self) -> Any:
        """Return the holder of arrays made now; its attribute `pool` is for the device's use."""

    @property
    def ours(self) -> Any:
        """Return the holder of the process's own memory."""

    def take(self, holder: Any, nbytes: int) -> tuple[SlabMemory, object, int]:
        """Return room in a holder's memory: the slab, the object that keeps the room taken, and its offset."""


class WorkerDevice(ABC):
    """The device of this process. Methods are for the loop's thread only, unless they say otherwise."""

    asynchronous = False
    """Whether work goes on after the call that has submitted it, even work of users' methods: they run on streams too,
    and memory without references may still be in use by submitted work."""

    ahead = 32
    """Most requests on a stream at a time: the device has enough work until the loop looks again. Their order is fixed,
    a new client waits for them, and none of them can be dropped."""

    slab_name = SLAB
    """Name of the memfds of its slabs, if it has memfds; it tells other processes whose they are."""

    resident_name = RESIDENT
    """Name of the memfds of memory that outlives this process."""

    background: Background | None = None
    """The thread for tasks that can wait, in a process that serves; None to do all at once."""

    def later(self, work: Callable[[], object]) -> None:
        """Have a function called in the background, if there is one. Any thread, even in finalisers."""
        if self.background is None:
            work()
        else:
            self.background.submit(work)

    @property
    @abstractmethod
    def host(self) -> WorkerDevice:
        """The device that makes arrays in host memory; itself, if it is the host."""

    @abstractmethod
    def make_slab(self, nbytes: int) -> Slab:
        """Make a slab; its content is zero, or left from this process.

        Raises:
            OutOfMemory: There is no such memory.
        """

    @abstractmethod
    def open_slab(self, nbytes: int, handle: bytes, descriptor: int | None) -> SlabMemory:
        """Open another worker's slab; the descriptor is owned from here on.

        Raises:
            InvalidRequest: It is not such memory.
        """

    @abstractmethod
    def open_client_slab(self, nbytes: int, descriptor: int) -> SlabMemory:
        """Open memory of a client for reading, as host memory; the descriptor is owned from here on.

        Raises:
            InvalidRequest: It is not such memory.
        """

    @abstractmethod
    def make_resident(self, nbytes: int) -> Resident:
        """Make memory that can outlive this process; its content is undefined.

        Raises:
            OutOfMemory: There is no such memory.
        """

    @abstractmethod
    def open_resident(self, nbytes: int, descriptor: int) -> Resident:
        """Map sealed memory, for reading; the descriptor is owned from here on.

        Raises:
            InvalidRequest: It is not such memory.
        """

    @abstractmethod
    def make_event(self) -> Event:
        """Return an event that ends on request."""

    @abstractmethod
    def make_stream(self, name: str, *, inline_bytes: int, priority: str = "normal") -> Stream:
        """Make a stream; work that touches no more than `inline_bytes` may be done by whoever submits it.

        The priority, one of `streams.PRIORITIES`, matters on a GPU only: the host's threads have none.
        """

    def to_array(self, value: Any) -> tuple[Any, Layout] | None:  # noqa: ARG002 - the host's arrays are sent, not kept
        """Return `value` as an array of this backend's kind, without a copy, and its layout in the address space.

        None if it is not in memory that stays on the device when it is a result.
        """
        return None

    def to_local(self, value: Any) -> tuple[Any, Layout] | None:
        """Return an array of user code, and its layout in the address space; None if it is not of this device.

        Arrays are of this backend's kind: NumPy's on the host; on a GPU, CuPy's and others with CUDA's array interface.
        """
        return self.to_array(value)

    def number(self, value: Any) -> Any:
        """Return a number of Python's or NumPy's as an array without dimensions, as `to_local` takes them."""
        import numpy as np

        return np.asarray(value)

    @property
    @abstractmethod
    def address_space(self) -> SlabMemory:
        """All memory that this process can reach, as one slab at address 0, for arrays outside its own slabs."""

    @abstractmethod
    def copy(self, source: Any, target: Any) -> None:
        """Have elements copied between arrays of the host and of this device, in either direction.

        Any thread. Keep both arrays, and do not write the source, until the current stream's work has ended.
        """

    def await_read(self, source: Any) -> None:
        """Wait until user code may write an array that is being copied on the current stream. Any thread."""

    # --- for asynchronous devices only -------------------------------------------------------------------------------

    def use_memory(self, arrays: ArrayRoom) -> None:
        """Make user code's arrays lie in slabs."""

    def poll(self) -> Iterable[Work]:
        """Return ended work that cannot report its end itself.

        Raises:
            ContextPoisoned: No work will ever end.
        """
        time.sleep(0)  # the threads that work need the interpreter's lock to report their end
        return ()

    def watch(self, wake: Callable[[], object]) -> None:
        """Have `wake` called, on any thread, when there may be ended work: the loop does not poll before."""

    def unfinished(self) -> int:
        """Return the streams with unfinished work, as bits of the board. Any thread; never blocks."""
        return 0

    def check(self) -> None:
        """Check that the context is well, without waiting.

        Raises:
            ContextPoisoned: It is lost: no result of it may leave.
        """

    def explain(self, error: BaseException) -> errors.AtomrError | None:  # noqa: ARG002 - by default nothing is
        """Return the meaning of an exception, None if no library of this device raised it. Any thread."""
        return None

    def start_timing(self) -> Callable[[], WorkTimes] | None:
        """Return a function that makes the measure of a run's work; None if work ends with the call that does it."""
        return None

    def on_thread(self, function: Callable[[], None], times: WorkTimes | None = None) -> None:  # noqa: ARG002 - by default nothing is left to be timed
        """Run a piece of work to its end, on the calling thread; have it timed on the device, if that is wanted."""
        function()

    def thread_context(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which the calling thread works as in `on_thread`, without waiting for its work."""
        return _ANYWHERE

    def thread_work(self) -> Callable[[], object] | None:
        """Return a function that waits, on any thread, for work begun by the calling thread; None if it has ended."""
        return None

    def thread_stream(self) -> Stream | None:
        """Return the stream of the calling thread's work in `on_thread`; None if it has none.

        Any thread. On a synchronous device each call returns a stream of its own.
        """
        return self.make_stream("thread", inline_bytes=-1)

    def cached_bytes(self, holder: Any) -> int:  # noqa: ARG002 - by default nothing is
        """Return the bytes of a holder's memory that are kept for arrays of user code. Any thread."""
        return 0

    def forget(self, holder: Any) -> None:
        """Give back the memory kept for a holder that has no running work."""

    def free_caches(self) -> None:
        """Give back memory that is kept for later arrays. Waits for all submitted work."""


_ANYWHERE: Final = contextlib.nullcontext()
