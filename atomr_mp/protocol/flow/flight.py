"""Requests in flight on one connection, and the credit they use. Pure.

The client enforces the window (a full one is `Overloaded` at once, in the caller, however busy the worker is); the
worker keeps the same count and ends a session that exceeds it.
"""

from __future__ import annotations

from typing import Annotated, Final, Generic, TypeVar

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import U64, Message
from atomr_mp.protocol.words import counted

T = TypeVar("T")

MAX_STREAMS: Final = 1024
"""Most streams that may be open on a worker: as many as its board has places for."""

RETRY_AFTER_S: Final = 0.01
"""When a full window is worth another try: it has room as soon as any of its requests is answered."""


class Window(Message, frozen=True):
    """Most that may be unanswered per worker and connection; the client keeps to it, the worker checks."""

    requests: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    payload_bytes: U64
    """Bodies and payload frames; a single larger call is admitted when it is alone."""
    streams: Annotated[int, msgspec.Meta(ge=0, le=MAX_STREAMS)] = 256
    """Streams that may be open besides; on the worker also the number for all clients together."""


class Flight(Generic[T]):
    """Requests that were sent and not answered.

    Args:
        window: How much may be unanswered.
        device: Index of the device, for the error's text.
    """

    def __init__(self, window: Window, device: int) -> None:
        self._most_requests = self._window = window.requests
        self._most_bytes = window.payload_bytes
        self._device = device
        self.requests: Final[dict[int, tuple[T, int]]] = {}
        """Each with what it counts for, by id, oldest first. To be looked at: `add` and `take` change it."""
        self._bytes = 0
        self._most_streams = window.streams
        self.streams = 0
        """How many of the requests are streams, which use no window."""

    def add(self, request_id: int, request: T, payload_bytes: int) -> int:
        """Take credit for a request; return how many are in flight with it.

        A single request larger than the whole window in bytes is admitted when nothing else is in flight.

        Raises:
            Overloaded: The window is full, or closed; nothing was taken.
            ProtocolError: A request of this id is in flight already; nothing was taken.
        """
        count = self.let_in(request_id, request, payload_bytes)
        if not count:
            raise self.full()
        return count

    def let_in(self, request_id: int, request: T, payload_bytes: int) -> int:
        """Take credit as `add` does, but return 0 if the window is full or closed.

        Raises:
            ProtocolError: A request of this id is in flight already; nothing was taken.
        """
        requests = self.requests
        count, nbytes = len(requests) - self.streams, self._bytes + payload_bytes
        if count >= self._most_requests or (nbytes > self._most_bytes and count):
            return 0
        if request_id in requests:
            raise errors.ProtocolError(f"request {request_id} is in flight already; ids are unique in a session")
        requests[request_id] = (request, payload_bytes)
        self._bytes = nbytes
        return count + 1

    def full(self) -> errors.Overloaded:
        """Return the error of a request for which there is no room."""
        count = len(self.requests) - self.streams
        return errors.Overloaded(
            f"device {self._device} has {counted(count, 'unanswered request')} ({self._bytes} bytes) of this "
            f"client; the window is {counted(self._window, 'request')} and {self._most_bytes} bytes",
            device=self._device,
            window=self._window,
            retry_after_s=RETRY_AFTER_S,
        )

    def add_stream(self, request_id: int, request: T) -> None:
        """Note a stream.

        Raises:
            Overloaded: Too many are open; nothing was noted.
        """
        self.check_streams()
        self.let_in_stream(request_id, request)

    def check_streams(self, waiting: int = 0) -> None:
        """Check that one more stream may be open, besides some that wait to be.

        Raises:
            Overloaded: Too many are open.
        """
        if self.streams + waiting >= self._most_streams:
            raise errors.Overloaded(
                f"device {self._device} has {counted(self.streams + waiting, 'open stream')} of this client, as many "
                "as may (max_streams)",
                device=self._device,
                window=self._most_streams,
                retry_after_s=RETRY_AFTER_S,
            )

    def let_in_stream(self, request_id: int, request: T) -> None:
        """Note a stream for which there is room."""
        self.requests[request_id] = (request, 0)
        self.streams += 1

    def take_stream(self, request_id: int) -> None:
        """Forget a stream, if it is there."""
        if self.requests.pop(request_id, None) is not None:
            self.streams -= 1

    @property
    def closed(self) -> bool:
        """Whether nothing is let in, since earlier requests wait."""
        return self._most_requests == 0

    @closed.setter
    def closed(self, closed: bool) -> None:
        # A window of none: so that `let_in` has nothing more to look at.
        self._most_requests = 0 if closed else self._window

    def take(self, request_id: int) -> T | None:
        """Give a request's credit back and return it, or None if it is not in flight."""
        entry = self.requests.pop(request_id, None)
        if entry is None:
            return None
        self._bytes -= entry[1]
        return entry[0]

    def find(self, request_id: int) -> T | None:
        """Return a request that is in flight, None if it is not."""
        entry = self.requests.get(request_id)
        return None if entry is None else entry[0]

    def items(self) -> list[tuple[int, T]]:
        """Return (id, request) of all that is in flight, oldest first."""
        return [(request_id, request) for request_id, (request, _) in self.requests.items()]
