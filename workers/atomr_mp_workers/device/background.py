"""A thread for what a device's process need not do at once: to free memory, to pin it, to let go of mappings.

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
"""How long whoever needs the memory waits for all that was submitted."""


class Background:
    """Does what it is given in order, one after the other."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        """Of Python's, since finalisers put into it: they run in the middle of anything, also of another `put`."""
        self._quiet_until_s = 0.0
        self._hurry = threading.Event()
        self._started = False

    def submit(self, work: Callable[[], object]) -> None:
        """Queue a task. Any thread, finalisers too."""
        self._queue.put(work)

    def start(self) -> None:
        """Start the thread; what was submitted before waits for it. May be called twice."""
        if not self._started:
            self._started = True
            # A daemon: what is never done must not keep a worker alive that was told to leave.
            threading.Thread(target=self._run, name="background", daemon=True).start()

    def rest(self, seconds: float) -> None:
        """Begin nothing for a while, unless somebody has to `finish`."""
        self._quiet_until_s = time.monotonic() + seconds

    def finish(self) -> None:
        """Wait until all is done that was submitted before; not for ever."""
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
            del work  # and with it what it was to let go of
