"""An actor whose thread finds out how long no thread of the worker could run Python code."""

from __future__ import annotations

import ctypes
import threading
import time

from atomr_mp_workers import Actor, method

TICK_S = 0.001


class Ticking(Actor):
    """Ticks between `begin` and `end`."""

    @method
    def begin(self) -> None:
        """Start the thread, and return when it runs."""
        self._longest_s, self._over, runs = 0.0, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._tick, args=(runs,))
        self._thread.start()
        runs.wait()

    @method
    def keep(self, seconds: float) -> None:
        """Wait with the interpreter's lock."""
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))

    @method
    def end(self) -> float:
        """Return the longest time in seconds between two ticks."""
        self._over.set()
        self._thread.join()
        return self._longest_s

    def _tick(self, runs: threading.Event) -> None:
        last = time.monotonic()
        runs.set()
        while not self._over.wait(TICK_S):
            now = time.monotonic()
            self._longest_s, last = max(self._longest_s, now - last), now
        self._longest_s = max(self._longest_s, time.monotonic() - last)
