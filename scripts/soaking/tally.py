"""What a client's callers have met: counts, and what was wrong. Thread-safe."""

from __future__ import annotations

import collections
import threading
import traceback
from typing import Final

from atomr_mp import errors
from soaking.words import Count

EXCUSED: Final = (
    errors.WorkerLost,
    errors.ContextPoisoned,
    errors.DeviceUnavailable,
    errors.Overloaded,
    errors.Cancelled,
    errors.GpuRefStale,
    errors.PoisonRequest,  # its worker may have been killed twice while it ran alone
)
"""What a request may end with here, if it says nothing of a device that is spared."""

OF_AN_END: Final = (errors.WorkerLost, errors.ContextPoisoned, errors.DeviceUnavailable, errors.GpuRefStale)
"""What tells of a worker's end."""

PLACES: Final = 4
"""How many places of a traceback are told."""

MOST_WRONG: Final = 50
"""How much of what is wrong is told at a time."""


class Tally:
    """Counts.

    Args:
        spared: A device that nobody kills.
    """

    def __init__(self, spared: int | None) -> None:
        self.spared: Final = spared
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._wrong: list[str] = []

    def note(self, what: str) -> None:
        """Count something."""
        with self._lock:
            self._counts[what] += 1

    def wrong(self, what: str) -> None:
        """Tell of something that must not be."""
        with self._lock:
            self._counts["wrong"] += 1
            if len(self._wrong) < MOST_WRONG:
                self._wrong.append(what[:4000])

    def error(self, error: errors.AtomrError, *also: type[errors.AtomrError]) -> None:
        """Count an error; it is wrong unless it is excused, or one of `also`."""
        self.note(f"error {error.code}")
        device = getattr(error, "device", None)
        lives = self.spared is not None and device == self.spared
        if isinstance(error, also) or (isinstance(error, EXCUSED) and not (lives and isinstance(error, OF_AN_END))):
            return
        where = "".join(traceback.format_tb(error.__traceback__)[-PLACES:])
        self.wrong(f"unexpected: {error!r}\n{where}")

    def take(self) -> Count:
        """Return what was counted since the last time."""
        with self._lock:
            count = Count(dict(self._counts), self._wrong)
            self._counts.clear()
            self._wrong = []
        return count
