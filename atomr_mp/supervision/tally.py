"""The counts of a device in all its incarnations together. Pure.

A board ends with its incarnation; whoever counts over weeks needs sums that only grow.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable
from typing import Final

from atomr_mp.protocol.board import BUCKETS, BoardReader, Counter
from atomr_mp.protocol.messages.operators import EndCount, Figures

_MAX: Final = 2**63 - 1


class DeviceTally:
    """A device's sums."""

    def __init__(self) -> None:
        self._counted: Counts[Counter] = Counts()
        self._latencies = [0] * BUCKETS
        self._lost = 0
        self._ends: Counts[str] = Counts()

    def add(self, board: BoardReader | None, cause: str, *, lost: bool) -> None:
        """Add the board of an ended incarnation.

        Args:
            board: Read for the last time; None if it is not believed.
            cause: Why it ended, one of few words.
            lost: Its requests have failed, and not moved on.
        """
        self._ends[cause] += 1
        if board is None:
            return
        self._counted += Counts({counter: board.read(counter) for counter in Counter})
        self._latencies = [sum(both) for both in zip(self._latencies, board.latencies(), strict=True)]
        self._lost += board.queue_depth if lost else 0

    def figures(self, boards: Iterable[BoardReader] = ()) -> Figures:
        """Return the sums, those of incarnations that have not ended among them."""
        counted, latencies = self._counted, self._latencies
        for board in boards:
            counted = counted + Counts({counter: board.read(counter) for counter in Counter})
            latencies = [sum(both) for both in zip(latencies, board.latencies(), strict=True)]
        # What is on a board may be anything, if the worker's code writes where it should not.
        return Figures(
            received=min(_MAX, counted[Counter.RECEIVED]),
            answered=min(_MAX, max(0, counted[Counter.COMPLETED] - counted[Counter.FAILED])),
            failed=min(_MAX, counted[Counter.FAILED]),
            cancelled=min(_MAX, counted[Counter.CANCELLED]),
            expired=min(_MAX, counted[Counter.EXPIRED]),
            rejected=min(_MAX, counted[Counter.REJECTED]),
            lost=min(_MAX, self._lost),
            latency_ns=min(_MAX, counted[Counter.LATENCY_NS]),
            latencies=[min(_MAX, count) for count in latencies],
            ends=[EndCount(cause, count) for cause, count in sorted(self._ends.items())],
            internal_errors=min(_MAX, counted[Counter.INTERNAL_ERRORS]),
        )
