"""An actor whose thread finds out how long no thread of the worker could run Python code."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

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
        """Return the longest time in seconds between two ticks, less what a busy machine is to blame for."""
        self._over.set()
        self._thread.join()
        return self._longest_s

    def _tick(self, runs: threading.Event) -> None:
        last = _not_kept_s()
        runs.set()
        is_over = False
        while not is_over:
            is_over = self._over.wait(TICK_S)
            now = _not_kept_s()
            self._longest_s, last = max(self._longest_s, now - last), now


def _not_kept_s() -> float:
    """Return a clock that stands while the calling thread, or the one that runs requests, waits for a processor.

    The second field of `schedstat` has the nanoseconds that a thread has waited so, see the kernel's sched-stats.rst.
    """
    waited_ns = sum(
        int(Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii").split()[1])
        for thread in (threading.get_native_id(), os.getpid())
    )
    return time.monotonic() - waited_ns / 1e9
