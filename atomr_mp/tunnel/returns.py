"""How often a session has gone on at another relay, for whoever waits for that."""

from __future__ import annotations

import threading
from typing import Final


class RelayReturns:
    """Counts how often a session has gone on at another relay, and wakes who waits for that. Thread-safe."""

    def __init__(self) -> None:
        self._changed: Final = threading.Condition()
        self.count = 0

    def back(self) -> None:
        """Take in that it goes on."""
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, count: int, timeout_s: float) -> None:
        """Wait until it has gone on more often than so many times, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.count > count, timeout_s)
