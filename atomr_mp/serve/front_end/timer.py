"""A timer of the event loop that costs next to nothing to begin and to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

AFTER_READING_S: Final = 0.02
"""How much later it calls back than asked: the loop reads in between what came while it stood still."""


class LazyTimer:
    """Calls back once after some seconds, unless it is stopped or begun anew before.

    A connection begins and stops its timers for every request. So the loop's own timer runs on, and looks at its end
    whether it is still wanted.

    Args:
        loop: The event loop.
        callback: Called in the loop when the time is over.
    """

    __slots__ = ("_callback", "_due_s", "_handle", "_loop", "_over_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop: Final = loop
        self._callback: Final = callback
        self._due_s: float | None = None
        """When to call, by the loop's clock; None if there are no waiters."""
        self._over_s = 0.0
        """The end that was over at the last look."""
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        """Whether it will call back."""
        return self._due_s is not None

    def begin(self, after_s: float) -> None:
        """Call back after some seconds, counted from now."""
        self._due_s = due_s = self._loop.time() + after_s
        if self._handle is None or self._handle.when() > due_s:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_at(due_s, self._look)

    def stop(self) -> None:
        """Do not call back."""
        self._due_s = None

    def close(self) -> None:
        """Stop for good: the loop does not keep the timer any longer."""
        self.stop()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        self._handle = None
        due_s, now_s = self._due_s, self._loop.time()
        if due_s is None:
            return
        if due_s > now_s:
            self._handle = self._loop.call_at(due_s, self._look)
        elif due_s != self._over_s:
            self._over_s = due_s
            self._handle = self._loop.call_at(now_s + AFTER_READING_S, self._look)
        else:
            self._due_s = None
            self._callback()
