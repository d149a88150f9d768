"""What runs elsewhere than on the loop: on streams and on actors' threads. Only with the loop's turn."""

from __future__ import annotations

from collections.abc import Iterable

from atomr_mp_workers.requests.request import Run


class InProgress:
    """Requests that have been started and have not come back, in the order of their start."""

    def __init__(self) -> None:
        self.last = 0
        """Number of the request that was started last."""
        self.requests: dict[int, Run] = {}
        """By number; to look there whether there are any costs less than to ask."""
        self.on_streams = 0
        """How many of them a device has to be asked for; a thread says by itself when it has done."""

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
        """Return whether this request has come back, and all that were started before it. Any thread."""
        # A list at once: the loop may start and end some meanwhile.
        return next(iter(list(self.requests)), number + 1) > number

    def take_all(self) -> Iterable[Run]:
        """Return all, which are not to be waited for any more."""
        requests, self.requests, self.on_streams = self.requests, {}, 0
        return requests.values()
