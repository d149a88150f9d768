"""Requests in flight on one connection, and the credit they use. Pure.

The client enforces the window (a full one is `Overloaded` at once, in the caller, however busy the worker is); the
worker keeps the same count and ends a session that exceeds it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from atomr_mp import errors
from atomr_mp.protocol.session import Window

T = TypeVar("T")


class Flight(Generic[T]):
    """What was sent and not answered.

    Args:
        window: How much may be unanswered.
        device: Index of the device, for the error's text.
    """

    def __init__(self, window: Window, device: int) -> None:
        self._window = window
        self._device = device
        self._requests: dict[int, tuple[T, int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._requests

    @property
    def full(self) -> bool:
        """Whether the next request would be refused for its number."""
        return len(self._requests) >= self._window.requests

    def add(self, request_id: int, request: T, payload_bytes: int) -> int:
        """Take credit for a request; return how many are in flight with it.

        A single request larger than the whole window in bytes is admitted when nothing else is in flight.

        Raises:
            Overloaded: The window is full; nothing was taken.
            ProtocolError: A request of this id is in flight already; nothing was taken.
        """
        window = self._window
        if len(self._requests) >= window.requests or (
            self._bytes + payload_bytes > window.payload_bytes and self._requests
        ):
            raise errors.Overloaded(
                f"device {self._device} has {len(self._requests)} unanswered requests ({self._bytes} bytes) of this "
                f"client; the window is {window.requests} requests and {window.payload_bytes} bytes",
                device=self._device,
                window=window.requests,
            )
        if request_id in self._requests:
            raise errors.ProtocolError(f"request {request_id} is in flight already; ids are unique in a session")
        self._requests[request_id] = (request, payload_bytes)
        self._bytes += payload_bytes
        return len(self._requests)

    def take(self, request_id: int) -> T | None:
        """Give a request's credit back and return it, or None if it is not in flight."""
        entry = self._requests.pop(request_id, None)
        if entry is None:
            return None
        self._bytes -= entry[1]
        return entry[0]

    def items(self) -> list[tuple[int, T]]:
        """Return (id, request) of all that is in flight, oldest first."""
        return [(request_id, request) for request_id, (request, _) in self._requests.items()]
