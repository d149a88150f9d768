"""A request that can be run, of a user's actor or of a library."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from atomr_mp.errors import AtomrError, RequestError
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp.protocol.refs import ClientArray, WireRef
from atomr_mp_workers.actor import Batch, Steps
from atomr_mp_workers.device.base import Event, Stream
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.requests.raised import Meaning, unknown
from atomr_mp_workers.requests.work_count import WorkCount

UNKNOWN_NS: Final = 2**62
"""Stands for the duration of a method that has never run."""

Resolve = Callable[[WireRef | ClientArray], object]
"""Returns the array that a ref in a request names."""

RowsOf = Callable[[tuple[Any, ...]], tuple[int, Hashable]]
"""Returns how many rows arguments have, and a key that is equal for arguments that can be joined; raises a
`RequestError` if they have none."""


class Method(ABC):
    """A request that can be run: the way to decode its arguments, and the function to call with them.

    Args:
        name: "Actor.method", or "library.request".
        function: The function that does the work.
    """

    thread = False
    """Whether it runs on a thread of its actor."""
    is_async = False
    """Whether it runs on its actor's event loop: it is a coroutine function, or an asynchronous generator."""
    reads = False
    """Whether it writes none of its arguments."""
    takes_refs = False
    """Whether some of its arguments have to be refs; `written` checks that."""
    batch: Batch | None = None
    """How its requests are put together; None if they are not."""
    key: Callable[..., Hashable] | None = None
    """Groups its requests: those of one key may share a batch."""
    rows_of: RowsOf | None = None
    """Set if its batches are of rows."""
    most_queued = sys.maxsize
    """How many of its requests may wait."""
    streams = False
    """Whether it is a generator, so that its requests are answered by parts, see `streams`."""
    steps: Steps | None = None
    """Set if it is one step over all its running requests."""
    resumes = Resumes.NEVER
    """How it goes on with streams that another incarnation has begun: by a further argument."""
    resumable = False
    """Whether it goes on with such streams in any way."""
    exclusive = False
    """Whether a request keeps its thread until it ends."""
    side_by_side = 1
    """How many requests of its actor run at a time, on threads or on an event loop."""
    apart = False
    """Whether its requests wait apart from others: for threads, or for batches."""
    meaning: Meaning = staticmethod(unknown)
    """Returns the meaning of an exception that the libraries of the device raise, None for any other."""
    stream: Stream | None = None
    """The stream that it runs on, if it belongs to a library."""
    hang_timeout_s: float | None = None
    """How long it may run before it counts as hung; None if its actor sets no limit."""
    number = 0
    """Its number on the board, see `Watched.method`."""
    watched = 0
    """The board's word for its requests, see `hang_limits`."""
    items: Callable[[bytes, Sequence[memoryview]], list[tuple[Any, ...]]] | None = None
    """Decodes the arguments of each item of a call with items; raises a `RequestError` if they do not fit. None if it
    takes no such calls."""
    admit: Callable[[Any, Holder], None] | None = None
    """Called with its first argument on arrival, before it waits for anything."""
    withdraw: Callable[[Any, Holder], None] | None = None
    """Called with its first argument after `admit`, if the request is not run, or fails."""
    recall: Callable[[Any, Holder], Any] | None = None
    """Completes its first argument by what its session has sent before; raises a `RequestError` if that is unknown."""
    weigh: Callable[[tuple[Any, ...]], int] | None = None
    """Returns as how many bytes of memory its arguments count, besides those of its arrays."""
    in_parts: Callable[[Any], bool] | None = None
    """Returns whether a request with this first argument may give way to others on its stream (`Next.gives_way`), and
    ends between two parts once it has an error to end with (`Request.closing`)."""
    is_ours: bool = False
    """Whether it is a library's, and no actor's code."""
    world: int | None = None
    """Number of the world whose calls alone it takes; None if its actor is in none."""
    refused: Callable[[RequestError], object] | None = None
    """Returns the argument with which a part of a call of a world runs that is refused, since other members wait for
    it; None if such a part is answered at once."""
    prepares = False
    """Whether its requests need a plan, see `prepared`."""
    work_count: WorkCount | None = None
    """Counts what its requests have done; None if it belongs to no library."""
    counts = False
    """Whether its requests count there also where they declare no work."""
    allocates = False
    """Whether its requests may make buffers, see `room_for`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name: Final = name
        self.function: Final = function
        self.queued = 0
        """Requests that have been received and have not started."""
        self.typical_ns = UNKNOWN_NS
        """How long it takes, as far as known."""

    def took(self, ns: int) -> None:
        """Learn from a run: at once if it was short, gradually if it was long, which may be the machine's doing."""
        self.typical_ns = ns if ns < self.typical_ns else self.typical_ns + (ns - self.typical_ns) // 4

    @property
    def queued_ns(self) -> int:
        """How long its waiting requests may take, as far as known."""
        runs = self.queued if self.batch is None else -(-self.queued // self.batch.max_items)
        return 0 if self.typical_ns == UNKNOWN_NS else runs * self.typical_ns // self.side_by_side

    @abstractmethod
    def arguments(self, body: bytes, frames: Sequence[memoryview], resolve: Resolve) -> tuple[Any, ...]:
        """Decode a call's arguments.

        Raises:
            RequestError: The arguments do not fit, or a ref among them is refused.
        """

    @abstractmethod
    def written(self, arguments: tuple[Any, ...]) -> list[DeviceArray]:
        """Return the arrays among the arguments that the request writes.

        Raises:
            BorrowConflict: It would write memory that it also reads, or that it writes twice.
        """

    def read(self, _arguments: tuple[Any, ...], arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Return the arrays whose content it needs: by default all that it does not write."""
        return [array for array in arrays if not array.writable]

    def triangle_of(self, _arguments: tuple[Any, ...], _array: DeviceArray) -> str | None:
        """Return the triangle of an array that is written, "" for all of it; None if parts may be left out."""
        return ""

    def written_before(self, _arguments: tuple[Any, ...], _array: DeviceArray) -> Sequence[DeviceArray]:
        """Return the arrays that the request writes before it reads this one, see `LibraryRequest.written_before`."""
        return ()

    def undefined_after(self, _arguments: tuple[Any, ...], _error: AtomrError) -> Sequence[DeviceArray] | None:
        """Return the written arrays that are undefined after an error; None for all of them."""
        return None

    def explained(self, error: AtomrError) -> AtomrError:
        """Return a request's error with facts that only the method knows."""
        return error

    def converted(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments for the function, once the arrays are borrowed."""
        return arguments

    def work(self, _arguments: tuple[Any, ...]) -> tuple[int, int]:
        """Return the arithmetic operations of a request and the bytes that it moves; zeros if nothing declares them."""
        return 0, 0

    def kernel(self, _arguments: tuple[Any, ...]) -> str:
        """Return the name of the kernel that a request launches, empty for others."""
        return ""

    def room_for(self, _arguments: tuple[Any, ...], _holder: Holder) -> Event | None:
        """Have room made elsewhere for a request's new buffers; return the event of its end, None if there is room.

        Used only where the loop must not ask the driver for memory.
        """
        return None

    def prepared(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], Event | None]:
        """Return the arguments with a plan, and the end of its making if the request has to wait for it."""
        return arguments, None

    def give_up(self, _arguments: tuple[Any, ...]) -> None:
        """Give up the work that `prepared` has begun for one unwanted request alone."""
        return

    def resumed(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], Event | None]:
        """Return the same once what `prepared` has named has ended: there may be something else to wait for then."""
        return arguments, None
