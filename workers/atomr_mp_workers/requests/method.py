"""A request that can be run, whoever has written it: a user's actor or a library."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from atomr_mp.errors import AtomrError
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp.protocol.refs import ClientArray, WireRef
from atomr_mp_workers.actor import Batch, Steps
from atomr_mp_workers.device.base import Event, Stream
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder

UNKNOWN_NS: Final = 2**62
"""Stands for how long a method takes that has never run."""

Resolve = Callable[[WireRef | ClientArray], object]
"""Returns the array that a ref in a request names."""


class Method(ABC):
    """A request that can be run: how its arguments are decoded, and what to call with them.

    Args:
        name: "Actor.method", or "library.request".
        function: What does the work.
    """

    thread = False
    """It runs on a thread of its actor."""
    is_async = False
    """It runs on its actor's event loop: it is a coroutine function, or yields as an asynchronous generator."""
    reads = False
    """It writes none of its arguments."""
    takes_refs = False
    """Some of its arguments have to be refs, which `written` checks."""
    batch: Batch | None = None
    """Its requests are put together."""
    key: Callable[..., Hashable] | None = None
    """Which of them may be in one batch."""
    most_queued = sys.maxsize
    """How many of its requests may wait."""
    streams = False
    """It is a generator: its requests are answered by parts, see `streams`."""
    steps: Steps | None = None
    """It is one step over all its requests that run."""
    resumes = Resumes.NEVER
    """How a stream of it goes on that another incarnation has begun: by a further argument."""
    exclusive = False
    """Such a request keeps its thread until it ends."""
    side_by_side = 1
    """How many requests of its actor run at a time where it runs, on threads or on an event loop."""
    apart = False
    """Its requests wait for their turn apart from others: those of a thread, and those of batches."""
    stream: Stream | None = None
    """Where it runs, if it is a library's."""
    hang_timeout_s: float | None = None
    """How long it may run before it counts as hung; None if its actor does not say."""
    watched = 0
    """What the board says of its requests, see `watching`."""
    items: Callable[[bytes, Sequence[memoryview]], list[tuple[Any, ...]]] | None = None
    """Decodes the arguments of each item of a call with items; raises a `RequestError` if they do not fit. None if it
    takes no such calls."""
    admit: Callable[[Any, Holder], None] | None = None
    """What is to be done with its first argument when it arrives, before it waits for anything."""
    recall: Callable[[Any, Holder], Any] | None = None
    """Completes its first argument by what its session has told before; raises a `RequestError` if that is unknown."""
    weigh: Callable[[Any], int] | None = None
    """Returns as how many bytes of memory its first argument counts, besides those of its arrays."""
    prepares = False
    """Its requests need a plan, see `prepared`."""
    allocates = False
    """Its requests may make buffers, see `room_for`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name: Final = name
        self.function: Final = function
        self.queued = 0
        """Requests that have been received and have not started."""
        self.typical_ns = UNKNOWN_NS
        """How long it takes, as far as is known."""

    def took(self, ns: int) -> None:
        """Learn from a run: at once if it was short, step by step if it was long, which may be the machine's doing."""
        self.typical_ns = ns if ns < self.typical_ns else self.typical_ns + (ns - self.typical_ns) // 4

    @property
    def queued_ns(self) -> int:
        """How long its waiting requests may take, as far as that is known."""
        runs = self.queued if self.batch is None else -(-self.queued // self.batch.max_items)
        return 0 if self.typical_ns == UNKNOWN_NS else runs * self.typical_ns // self.side_by_side

    @abstractmethod
    def arguments(self, body: bytes, frames: Sequence[memoryview], resolve: Resolve) -> tuple[Any, ...]:
        """Decode a call's arguments.

        Raises:
            RequestError: They do not fit, or a ref among them is refused.
        """

    @abstractmethod
    def written(self, arguments: tuple[Any, ...]) -> list[DeviceArray]:
        """Return the arrays among the arguments that the request writes.

        Raises:
            BorrowConflict: It would write what it also reads, or writes twice.
        """

    def read(self, _arguments: tuple[Any, ...], arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Return the arrays whose content matters: by default those that are not written."""
        return [array for array in arrays if not array.writable]

    def triangle_of(self, _arguments: tuple[Any, ...], _array: DeviceArray) -> str | None:
        """Return which triangle of an array alone is written, "" for all of it; None if anything may be left out."""
        return ""

    def undefined_after(self, _arguments: tuple[Any, ...], _error: AtomrError) -> Sequence[DeviceArray] | None:
        """Return which of the arrays that the request writes are undefined after an error; None if all are."""
        return None

    def explained(self, error: AtomrError) -> AtomrError:
        """Return an error of a request with what only the method knows."""
        return error

    def converted(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments as the function takes them, once the arrays are borrowed."""
        return arguments

    def room_for(self, _arguments: tuple[Any, ...], _holder: Holder) -> Event | None:
        """Have room made elsewhere for the buffers that a request makes; return what ends then, None if there is some.

        Only where the loop must not ask the driver for memory.
        """
        return None

    def prepared(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], Event | None]:
        """Return the arguments with a plan, and the end of its making if the request has to wait for it."""
        return arguments, None
