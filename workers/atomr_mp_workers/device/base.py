"""What every backend provides: memory that crosses processes, and streams that work runs on.

A backend is small: slabs are made, exported and opened; arrays are made over them; work is put on streams, in order,
and events tell when it has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from atomr_mp.protocol.layout import Layout


class Export(NamedTuple):
    """What opens memory in another process."""

    nbytes: int
    handle: bytes
    """A CUDA IPC handle, empty on the host backend."""
    descriptor: int | None
    """Stays its maker's; None on CUDA."""


class Memory(ABC):
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


class Slab(Memory):
    """Memory that was made here."""

    @abstractmethod
    def export(self) -> Export:
        """Return what opens it elsewhere."""


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

    def __init__(self, name: str) -> None:
        self.name: Final = name

    @abstractmethod
    def submit(self, work: Work, after: Sequence[Event], nbytes: int) -> bool:
        """Have work done after what was submitted before, and after other streams' events.

        Args:
            work: What to do; its `event` is done when it has ended.
            after: What it waits for, besides the stream.
            nbytes: What it touches, by which the stream may judge how long it takes.

        Returns:
            Whether it has been done already. If not, `work.finished()` is called when it has, on any thread.
        """

    @abstractmethod
    def close(self) -> None:
        """End the stream after what was submitted; waits for it."""


class Work(Protocol):
    """A piece of work, as streams see it."""

    def call(self) -> None:
        """Do it; never raises."""

    def finished(self) -> None:
        """Say that it has been done. Any thread."""

    @property
    def event(self) -> Event | None:
        """Done when this is; made before it is submitted."""


class Device(ABC):
    """The device of this process."""

    @abstractmethod
    def make_slab(self, nbytes: int) -> Slab:
        """Make a slab; its content is zero, or of this process.

        Raises:
            OutOfMemory: There is no such memory.
        """

    @abstractmethod
    def open_slab(self, nbytes: int, handle: bytes, descriptor: int | None) -> Memory:
        """Open another worker's slab; the descriptor is owned from here on.

        Raises:
            InvalidRequest: It is none.
        """

    @abstractmethod
    def open_client_slab(self, nbytes: int, descriptor: int) -> Memory:
        """Open memory of a client for reading, as host memory; the descriptor is owned from here on.

        Raises:
            InvalidRequest: It is none.
        """

    @abstractmethod
    def make_event(self) -> Event:
        """Return an event that ends when it is told to."""

    @abstractmethod
    def make_stream(self, name: str, *, inline_bytes: int) -> Stream:
        """Make a stream; work that touches no more than `inline_bytes` may be done by whoever submits it."""

    @abstractmethod
    def to_array(self, value: Any) -> Any | None:
        """Return `value` as an array of this backend's kind if it is one, else None."""
