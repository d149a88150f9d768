"""What runs elsewhere than on the loop: on streams and on actors' threads. The loop's thread only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atomr_mp_workers.envelope import Run


class Underway:
    """Requests that have been started and have not come back, in the order of their start."""

    def __init__(self) -> None:
        self.last = 0
        """Number of the request that was started last."""
        self._requests: dict[int, Run] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def begin(self, request: Run) -> None:
        """Note a request that is being started."""
        self.last += 1
        request.number = self.last
        self._requests[self.last] = request

    def end(self, request: Run) -> None:
        """Note that a request has come back."""
        del self._requests[request.number]

    def ended(self, number: int) -> bool:
        """Return whether this request has come back, and all that were started before it. Any thread."""
        return next(iter(self._requests), number + 1) > number

    def take_all(self) -> Iterable[Run]:
        """Return all, which are not to be waited for any more."""
        requests, self._requests = self._requests, {}
        return requests.values()
