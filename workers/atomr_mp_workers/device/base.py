"""The interface of every backend: memory that crosses processes, and streams that work runs on.

A backend is small: slabs are made, exported and opened; arrays are made over them; work is put on streams, in order,
and events tell when it has ended.
"""

# ruff: noqa: B027 - what a device has no need of does nothing

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


class Export(NamedTuple):
    """A handle that opens memory in another process."""

    nbytes: int
    handle: bytes
    """A CUDA IPC handle, empty on the host backend."""
    descriptor: int | None
    """Stays its maker's; None on CUDA."""


class SlabMemory(ABC):
    """Memory that this process can reach: a slab of its own, or one that it has opened.

    Unmapped when the last reference to it goes: arrays over it hold one, so it is never pulled away from under them.
    """

    nbytes: int
    address: int
    """Where it begins, in this process's address space or its device's."""

    @abstractmethod
    def bytes(self, owner: object, offset: int, nbytes: int) -> Any:
        """Return an array of bytes over a part of it, of the backend's kind, that keeps `owner` alive."""

    @abstractmethod
    def array(self, part: Any, layout: Layout, *, writable: bool) -> Any:
        """Return an array over what `bytes` has returned; `layout.offset` counts from the start of the part."""


class Slab(SlabMemory):
    """Memory that was made here."""

    def populate(self, _nbytes: int) -> None:
        """Have the system give the first bytes of it now, rather than when they are first written; where it can."""

    @abstractmethod
    def export(self) -> Export:
        """Return the handle that opens it elsewhere."""


class Resident(SlabMemory):
    """Memory that can outlive this process: made here and writable until it is sealed, or sealed elsewhere."""

    @abstractmethod
    def seal(self) -> int:
        """Wait for all that writes it, and see that nobody writes it any more; for memory made here, once.

        Arrays over it stay valid, for reading. Writing through one that was made before ends this process.

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
        """Say that it has ended. Any thread."""


class Stream(ABC):
    """Work in order: each piece begins when the one before it has ended.

    Attributes:
        name: For logs.
    """

    defers = False
    """Work goes on after the call that has put it here: when `Work.call` returns, it may not have ended."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.number = 0
        """Tells it from the process's others."""

    def takes(self, after: Sequence[Event]) -> bool:  # noqa: ARG002 - a stream that waits by itself takes all
        """Return whether work can be submitted that has to wait for these; if not, they have to end first."""
        return True

    @abstractmethod
    def submit(self, work: Work, after: Sequence[Event], nbytes: int) -> bool:
        """Have work done after what was submitted before, and after other streams' events.

        Args:
            work: What to do; its `event` is done when it has ended.
            after: What it waits for, besides the stream; which `takes` it.
            nbytes: What it touches, by which the stream may judge how long it takes.

        Returns:
            Whether it has been done already. If not, `work.finished()` is called when it has, on any thread.
        """

    def run(self, function: Callable[[], None]) -> None:
        """Do something at once, in order; waits for its end."""
        function()

    @property
    def is_current(self) -> bool:
        """Whether what the calling thread starts now would be done on this stream."""
        return True

    def synchronize(self) -> None:
        """Wait for what has been put on it by calls that have returned."""

    @abstractmethod
    def close(self) -> None:
        """End the stream after what was submitted; waits for it."""


class Work(Protocol):
    """A piece of work, as streams see it."""

    raised: BaseException | None
    """The exception that it has raised."""

    def call(self) -> None:
        """Do it; never raises."""

    def finished(self) -> None:
        """Say that it has been done. Any thread."""

    @property
    def event(self) -> Event | None:
        """Done when this is; made before it is submitted."""

    @property
    def goes_on(self) -> bool:
        """Whether it will be submitted again when what it has put on the stream has ended; `event` is done later."""


class ArrayRoom(Protocol):
    """Where the arrays of user code lie. Any thread."""

    def holder(self) -> Any:
        """Return who holds what is made now; has an attribute `pool` for what the device keeps for it."""

    @property
    def ours(self) -> Any:
        """What holds the memory of the process itself."""

    def take(self, holder: Any, nbytes: int) -> tuple[SlabMemory, object, int]:
        """Return room in its memory: the slab, what keeps the room taken, and its offset."""


class WorkerDevice(ABC):
    """The device of this process. Where nothing is said about it, for the loop's thread only."""

    asynchronous = False
    """Work goes on after the call that has submitted it, also that of users' methods: they run on streams too, and
    memory that nothing refers to any more may still be in use by what was submitted before."""

    slab_name = SLAB
    """Name of the memfds of its slabs, if they are memfds: it tells others whose they are."""

    resident_name = RESIDENT
    """Name of the memfds of memory that outlives this process."""

    background: Background | None = None
    """Does what holds up nobody, in a process that serves; None if all is done at once."""

    def later(self, work: Callable[[], object]) -> None:
        """Have something done in the background, if there is one. Any thread, finalisers too."""
        if self.background is None:
            work()
        else:
            self.background.submit(work)

    @property
    @abstractmethod
    def host(self) -> WorkerDevice:
        """What makes memory for arrays that lie in the host's; itself, if it is the host."""

    @abstractmethod
    def make_slab(self, nbytes: int) -> Slab:
        """Make a slab; its content is zero, or of this process.

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
        """Return an event that ends when it is told to."""

    @abstractmethod
    def make_stream(self, name: str, *, inline_bytes: int, priority: str = "normal") -> Stream:
        """Make a stream; work that touches no more than `inline_bytes` may be done by whoever submits it.

        The priority, one of `streams.PRIORITIES`, is a GPU's affair: the host's threads have none.
        """

    def to_array(self, value: Any) -> tuple[Any, Layout] | None:  # noqa: ARG002 - the host's arrays are sent, not kept
        """Return `value` as an array of this backend's kind, without a copy, and where it lies in the address space.

        None if it is not in memory that stays on the device when it is a result.
        """
        return None

    def to_local(self, value: Any) -> tuple[Any, Layout] | None:
        """Return an array that user code has, and where it lies in the address space; None if it is not of this device.

        Arrays are of this backend's kind: NumPy's on the host, CuPy's and what has CUDA's array interface on a GPU.
        """
        return self.to_array(value)

    @property
    @abstractmethod
    def address_space(self) -> SlabMemory:
        """All memory that this process can reach, as one slab at address 0: for arrays that lie in none of its own."""

    @abstractmethod
    def copy(self, source: Any, target: Any) -> None:
        """Have elements copied between arrays of the host and of this device, in either direction.

        Any thread; the source is not written, and both live, until what the current stream has been given has ended.
        """

    # --- what only devices need on which work goes on by itself ----------------------------------------------------

    def use_memory(self, arrays: ArrayRoom) -> None:
        """Make user code's arrays lie in slabs."""

    def poll(self) -> Iterable[Work]:
        """Return work that has ended and cannot say so itself.

        Raises:
            ContextPoisoned: None ever will.
        """
        time.sleep(0)  # the threads that work, and say so, need the interpreter's lock
        return ()

    def watch(self, wake: Callable[[], object]) -> None:
        """Have `wake` called, on any thread, when there may be something to `poll`: nobody will look before."""

    def unfinished(self) -> int:
        """Return which streams have work that is not done, as bits of the board. Any thread; never blocks."""
        return 0

    def check(self) -> None:
        """Look whether the context is well. Does not wait.

        Raises:
            ContextPoisoned: It is not: nothing that was computed in it may leave.
        """

    def explain(self, error: BaseException) -> errors.AtomrError | None:  # noqa: ARG002 - by default nothing is
        """Return the meaning of an exception, None if no library of this device raised it. Any thread."""
        return None

    def on_thread(self, function: Callable[[], None]) -> None:
        """Run a piece of work to its end, on the calling thread."""
        function()

    def thread_context(self) -> contextlib.AbstractContextManager[object]:
        """Return what has the calling thread work as `on_thread` does, without waiting for what it begins."""
        return _ANYWHERE

    def thread_work(self) -> Callable[[], object] | None:
        """Return what waits, on any thread, for what the calling thread has begun; None if all of it has ended."""
        return None

    def thread_stream(self) -> Stream | None:
        """Return the stream on which `on_thread` has the calling thread work; None if it has none.

        Any thread. Where work does not go on by itself each call returns a stream of its own.
        """
        return self.make_stream("thread", inline_bytes=-1)

    def cached_bytes(self, holder: Any) -> int:  # noqa: ARG002 - by default nothing is
        """Return how much of a holder's memory is kept for arrays that user code will make. Any thread."""
        return 0

    def forget(self, holder: Any) -> None:
        """Give back what is kept for a holder of whom nothing runs any more."""

    def free_caches(self) -> None:
        """Give back memory that is kept for what comes next. Waits for all that was submitted."""


_ANYWHERE: Final = contextlib.nullcontext()
