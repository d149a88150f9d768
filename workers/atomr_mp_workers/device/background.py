"""A thread for tasks that can wait: freeing and pinning memory, and closing mappings.

Such calls take milliseconds, and on a GPU wait for the driver, which another process may keep busy. On the loop they
would hold up all requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

FINISH_S: Final = 5.0
"""How long a caller that needs the memory waits for the earlier tasks."""


class Background:
    """Runs tasks in order, one after the other."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        """A SimpleQueue, since finalisers put into it: they run in the middle of anything, even of another `put`."""
        self._quiet_until_s = 0.0
        self._hurry = threading.Event()
        self._started = False

    def submit(self, work: Callable[[], object]) -> None:
        """Queue a task. Any thread, even in finalisers."""
        self._queue.put(work)

    def start(self) -> None:
        """Start the thread; earlier tasks wait for it. May be called twice."""
        if not self._started:
            self._started = True
            # A daemon: an unfinished task must not keep a worker alive that was told to leave.
            threading.Thread(target=self._run, name="background", daemon=True).start()

    def rest(self, seconds: float) -> None:
        """Begin no task for a while, unless a caller has to `finish`."""
        self._quiet_until_s = time.monotonic() + seconds

    def finish(self) -> None:
        """Wait until all earlier tasks are done, for `FINISH_S` at most."""
        done = threading.Event()
        self._queue.put(done.set)
        self._hurry.set()
        try:
            done.wait(FINISH_S)
        finally:
            self._hurry.clear()

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            while (left_s := self._quiet_until_s - time.monotonic()) > 0 and not self._hurry.wait(left_s):
                pass
            try:
                work()
            except Exception:
                logging.getLogger("atomr_mp.worker").exception("what was put off has failed")
            del work  # and with it the objects that it was to release
