"""What a client's callers have met: counts, and what was wrong. Thread-safe."""

from __future__ import annotations

import collections
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Final

import atomr_mp
from atomr_mp import errors
from soaking.words import Count, Share

EXCUSED: Final = (
    errors.WorkerLost,
    errors.ContextPoisoned,
    errors.DeviceUnavailable,
    errors.Overloaded,
    errors.Cancelled,
    errors.GpuRefStale,
    errors.PoisonRequest,  # a fault may have met it twice; the soak looks at whether it had
)
"""What a request may end with here, if it says nothing of a device that is spared."""

OF_AN_END: Final = (
    errors.WorkerLost,
    errors.ContextPoisoned,
    errors.DeviceUnavailable,
    errors.GpuRefStale,
    errors.ConnectionLost,
)
"""What tells of a worker's end, or a connection's."""

WITHOUT_ENDS: Final = (errors.Overloaded, errors.Cancelled)
"""What a request may end with if no worker ends but as the pool plans it."""

OF_MEMORY: Final = (errors.GpuRefReleased, errors.GpuRefWrongDevice)
"""What besides `GpuRefStale` may tell that the incarnation has ended which had the memory."""

PLACES: Final = 4
"""How many places of a traceback are shown."""

MOST_WRONG: Final = 50
"""Largest number of findings shown at a time."""


class Tally:
    """Counts.

    Args:
        spared: A device that nobody kills.
        planned: If workers end only as the pool plans it: returns whether a generation of a device has ended.
        cuts: Connections end too.
    """

    def __init__(
        self, spared: int | None, planned: Callable[[int, int], bool] | None = None, *, cuts: bool = False
    ) -> None:
        self.spared: Final = spared
        self.kills: Final = planned is None
        self._planned: Final = planned
        self._excused: Final = (*EXCUSED, errors.ConnectionLost) if cuts else EXCUSED
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

    def error(
        self, error: errors.AtomrError, *also: type[errors.AtomrError], refs: Iterable[atomr_mp.GpuRef | Share] = ()
    ) -> None:
        """Count an error; it is wrong unless it is excused, or one of `also`.

        Args:
            error: What a request has ended with.
            also: What it may end with besides.
            refs: All memory that the request needs, but for what it makes itself.
        """
        self.note(f"error {error.code}")
        if isinstance(error, also) or self._is_excused(error, {(ref.device, ref.generation) for ref in refs}):
            return
        where = "".join(traceback.format_tb(error.__traceback__)[-PLACES:])
        self.wrong(f"unexpected: {error!r}\n{where}")

    def _is_excused(self, error: errors.AtomrError, needed: set[tuple[int, int]]) -> bool:
        if self._planned is None:
            if isinstance(error, errors.GpuRefUndefined) and error.failed_with == errors.ConnectionLost.code:
                return errors.ConnectionLost in self._excused and error.device != self.spared
            lives = self.spared is not None and getattr(error, "device", None) == self.spared
            return isinstance(error, self._excused) and not (lives and isinstance(error, OF_AN_END))
        if isinstance(error, errors.GpuRefStale):
            needed &= {(error.device, error.generation)}
        elif not isinstance(error, OF_MEMORY):
            return isinstance(error, WITHOUT_ENDS)
        return any(self._planned(device, generation) for device, generation in needed)

    def take(self) -> Count:
        """Return the counts since the last time."""
        with self._lock:
            count = Count(dict(self._counts), self._wrong)
            self._counts.clear()
            self._wrong = []
        return count
