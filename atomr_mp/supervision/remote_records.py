"""Records of a remote client's calls beyond the life of the gateway that made them. Pure.

The ids of a remote session's calls are those of the requests in the pool. So boards say which of them have started,
and the next gateway can say so of each that the last one left without an outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from atomr_mp.supervision.reclaim import Worker

MOST_STARTED: Final = 65536
"""Most ids that are kept of a session; when there are more, all that is known is forgotten, and calls of before count
as maybe started."""


class Fates(NamedTuple):
    """The started calls of a session."""

    started: list[int]
    known_since_ns: int
    """CLOCK_MONOTONIC; calls that were sent earlier may have started without being listed."""


class RemoteRecord:
    """A remote session's calls, over all of its local sessions."""

    def __init__(self) -> None:
        self.local = 0
        """Number of the local session that it has, 0 after that has ended."""
        self._started: set[int] = set()
        self._known_since_ns = 0
        self._undiscarded: set[tuple[int, Worker]] = set()
        """Workers that may still start what an ended local session has queued there."""
        self._unclosed: set[tuple[int, Worker]] = set()
        """Workers that may still run what an ended local session has started there."""

    @property
    def is_known(self) -> bool:
        """Whether nothing of ended local sessions will be started."""
        return not self._undiscarded

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of ended local sessions runs."""
        return not self._unclosed

    def ended(self, number: int, told: Iterable[Worker]) -> None:
        """A local session has ended, and these workers were informed."""
        self.local = 0
        waiting = {(number, worker) for worker in told}
        self._undiscarded |= waiting
        self._unclosed |= waiting

    def discarded(self, number: int, worker: Worker) -> None:
        """A worker will start nothing of an ended local session; what it has started was added."""
        self._undiscarded.discard((number, worker))

    def closed(self, number: int, worker: Worker) -> None:
        """A worker runs nothing of it now."""
        self._undiscarded.discard((number, worker))
        self._unclosed.discard((number, worker))

    def worker_ended(self, worker: Worker) -> None:
        """A worker has ended; what it had started was added."""
        self._undiscarded = {each for each in self._undiscarded if each[1] != worker}
        self._unclosed = {each for each in self._unclosed if each[1] != worker}

    def add(self, started: Iterable[int], known_since_ns: int, now_ns: int) -> None:
        """Record the calls that a worker has started, by its board."""
        self._started.update(started)
        self._known_since_ns = max(self._known_since_ns, known_since_ns)
        if len(self._started) > MOST_STARTED:
            self._started.clear()
            self._known_since_ns = max(self._known_since_ns, now_ns)

    def fates(self, unanswered: Iterable[int]) -> Fates:
        """Return the started calls without an outcome; all others are settled, and forgotten here."""
        self._started.intersection_update(unanswered)
        return Fates(sorted(self._started), self._known_since_ns)
