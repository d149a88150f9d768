"""Requests that run elsewhere than on the loop: on streams and on actors' threads. Only with the loop's turn."""

from __future__ import annotations

from collections.abc import Iterable

from atomr_mp_workers.requests.request import Run


class InProgress:
    """Requests that have been started and have not come back, in the order of their start."""

    def __init__(self) -> None:
        self.last = 0
        """Number of the request that was started last."""
        self.requests: dict[int, Run] = {}
        """Requests by number; checking this dict costs less than a call."""
        self.on_streams = 0
        """Number of those whose end the device has to be asked for; threads report theirs themselves."""

    @property
    def on_threads(self) -> int:
        """How many run on actors' threads, or wait there."""
        return len(self.requests) - self.on_streams

    def begin(self, request: Run) -> None:
        """Note a request that is being started."""
        self.last += 1
        request.number = self.last
        self.requests[self.last] = request
        self.on_streams += request.method.stream is not None

    def end(self, request: Run) -> None:
        """Record that a request has come back."""
        del self.requests[request.number]
        self.on_streams -= request.method.stream is not None

    def ended(self, number: int) -> bool:
        """Return whether this request and all earlier ones have come back. Any thread."""
        # A list at once, since the loop may start and end some meanwhile.
        return next(iter(list(self.requests)), number + 1) > number

    def take_all(self) -> Iterable[Run]:
        """Return all requests, and stop waiting for them."""
        requests, self.requests, self.on_streams = self.requests, {}, 0
        return requests.values()
