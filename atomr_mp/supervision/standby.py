"""Standbys: the modes, and how soon a failed one is followed by another. Pure.

A standby's end costs nobody anything, so it is not judged by the restart intensity. But one that cannot start must not
be tried without end: after `MAX_FAILURES` in a row there is none until the device's next start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from atomr_mp.supervision import intensity
from atomr_mp.supervision.settings import PoolSettings

MAX_FAILURES: Final = 3
"""Standbys that may fail in a row."""

SETTLED_S: Final = 10.0
"""How long a standby must have been ready, so that its end is not one more failure in a row."""


class StandbyMode(StrEnum):
    """The standby of each worker."""

    HOT = "hot"
    """A second process, set up."""
    WARM = "warm"
    """A process that was forked ahead, and has imported the actors."""
    NONE = "none"
    """Nothing: a process is forked when it is needed."""


class StandbyState(StrEnum):
    """The state of a device's standby."""

    READY = "ready"
    STARTING = "starting"
    FAILED = "failed"
    """It was tried too often."""
    NONE = "none"
    """There is none, or none yet."""


def failures_after(failures: int, ready_for_s: float | None) -> int:
    """Return how many have failed in a row once another has ended.

    Args:
        failures: As many had before it.
        ready_for_s: How long it was ready; None if it never was.
    """
    return 1 if ready_for_s is not None and ready_for_s >= SETTLED_S else failures + 1


def delay_s(policy: PoolSettings, failures: int) -> float | None:
    """Return how long to wait before the next, after so many failures in a row; None if there is to be none."""
    return None if failures >= MAX_FAILURES else intensity.delay_s(policy, failures)


class Turns:
    """Decides which standbys may start: so many at a time in a pool.

    A start takes processors and disk from the workers.

    Args:
        limit: How many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._has: set[int] = set()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def ask(self, device: int, call: Callable[[], None]) -> None:
        """Call `call()` when it is a device's turn, maybe at once; nothing if it has asked already."""
        if device not in self._has and all(device != other for other, _ in self._waiting):
            self._waiting.append((device, call))
            self._next()

    def done(self, device: int) -> None:
        """A device's standby has ceased to start, or its device wants none. May be called at any time."""
        self._waiting = deque(each for each in self._waiting if each[0] != device)
        self._has.discard(device)
        self._next()

    def _next(self) -> None:
        while self._waiting and len(self._has) < self._limit:
            device, call = self._waiting.popleft()
            self._has.add(device)
            call()
