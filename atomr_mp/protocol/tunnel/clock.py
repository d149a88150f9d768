"""The clock of the pool's machine, as another machine knows it: by questions and answers, within an error. Pure.

CLOCK_MONOTONIC of two machines differs by any amount, and runs at slightly different rates. An answer tells what the
pool's clock has shown between its question and itself. The middle is off by half of the way at most, and by more the
older it is.
"""

from __future__ import annotations

from typing import Final

DRIFT: Final = 10_000
"""In so many nanoseconds two clocks move apart by one at most: 100 ppm. Machines' clocks are good for 50 and less."""


class PoolClock:
    """The best estimate. Before the first measurement the clocks are one: that of a client on the pool's machine."""

    def __init__(self) -> None:
        self.ahead_ns = 0
        """How far the pool's clock is ahead of this process's. 0 if they may be the same."""
        self._middle_ns = 0
        """The same, as it was measured."""
        self._error_ns = 0
        """How far that was off at most."""
        self._measured_ns: int | None = None
        """When it was measured."""

    def measure(self, asked_ns: int, told_ns: int, came_ns: int) -> None:
        """Take in an answer; ignore it if what is known is better still.

        Args:
            asked_ns: When the question was sent, by this process's clock.
            told_ns: The pool's clock at some time between.
            came_ns: When the answer came, by this process's clock.
        """
        way_ns = came_ns - asked_ns
        error_ns = way_ns // 2 + way_ns // DRIFT + 2
        if self._measured_ns is not None and error_ns > self.error_ns(came_ns):
            return
        self._middle_ns, self._error_ns, self._measured_ns = told_ns - (asked_ns + came_ns) // 2, error_ns, came_ns
        self.ahead_ns = 0 if abs(self._middle_ns) <= error_ns else self._middle_ns

    def error_ns(self, now_ns: int) -> int:
        """Return how far the estimate may be off."""
        if self._measured_ns is None:
            return 0
        return self._error_ns + abs(now_ns - self._measured_ns) // DRIFT + 1

    def latest(self, pool_ns: int, now_ns: int) -> int:
        """Return the latest time by this process's clock at which the pool's may have shown a time.

        Args:
            pool_ns: That time.
            now_ns: This process's clock.
        """
        if self._measured_ns is None:
            return pool_ns
        about_ns = pool_ns - self._middle_ns
        off_ns = self.error_ns(now_ns) + abs(now_ns - about_ns) // DRIFT
        return about_ns + off_ns + off_ns // (DRIFT // 2) + 2
