"""Arguments of event loops' calls, which are copied to the pool's machine while the loop goes on. Thread-safe.

They are copied in their order. A lane's connection keeps the calls that need them, and all that is said behind these,
until they are there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.tunnel.channel_life import again_ns

_LOG: Final = logging.getLogger("atomr_mp.client")


class ArgumentUploads:
    """Copies on a thread, which ends when none is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: Final[deque[Callable[[], object]]] = deque()
        self._waiting: Final[list[tuple[int, Callable[[], object]]]] = []
        self._works = False
        """Whether the thread is there."""
        self.begun = 0
        """How many copies were begun."""
        self.done = 0
        """How many of these are done. They are done in their order."""

    def add(self, copy: Callable[[], object]) -> None:
        """Begin a copy.

        Args:
            copy: Does it. If it raises, it is tried again, until it raises the loss of the pool.
        """
        with self._lock:
            if not self._works:
                threading.Thread(target=self._run, name="atomr-mp uploads", daemon=True).start()
                self._works = True
            self._copies.append(copy)
            self.begun += 1

    def when_done(self, count: int, call: Callable[[], object]) -> None:
        """Call `call` once so many copies are done, on whichever thread."""
        with self._lock:
            if self.done < count:
                self._waiting.append((count, call))
                return
        call()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._copies:
                    self._works = False
                    return
                copy = self._copies[0]
            self._do(copy)
            with self._lock:
                self._copies.popleft()
                self.done += 1
                ready = [call for count, call in self._waiting if count <= self.done]
                self._waiting[:] = [each for each in self._waiting if each[0] > self.done]
            del copy
            for call in ready:
                call()

    def _do(self, copy: Callable[[], object]) -> None:
        attempts = 0
        while True:
            try:
                copy()
            except errors.PoolLost:  # the calls that need it get that, too
                return
            except Exception:  # noqa: BLE001 - no call runs without its arguments, nor is one refused for a passing want
                attempts += 1
                _LOG.exception("an argument cannot be copied to the pool's machine; its call waits")
                time.sleep(again_ns(attempts) / 1e9)
            else:
                return
