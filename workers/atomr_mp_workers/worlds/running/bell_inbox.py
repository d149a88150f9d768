"""EDGE: the inbox of a world's thread, which other processes wake as well."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from atomr_mp_workers.requests.off_loop.completions import ring_later
from atomr_mp_workers.requests.request import Run


class BellInbox:
    """Runs for a thread that waits at its bell. Rung by another process, it looks by itself what it has to run.

    To wake the loop for that, and have it wake the thread, would take two more switches of threads for each call.

    Args:
        bell: The bell, an eventfd that does not block. It stays the caller's.
        look: Finds what is next, and puts it here if it can begin. Called on the thread.
    """

    def __init__(self, bell: int, look: Callable[[], object]) -> None:
        self._bell: Final = os.dup(bell)  # the caller may close its own while the thread waits
        self._look: Final = look
        self._runs: Final[deque[Run | None]] = deque()
        self._poll: Final = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._thread = 0
        self._putting: Final = threading.Lock()
        """Held while the bell is rung, which the thread closes at its end."""

    def put(self, run: Run | None) -> None:
        """Add a run; None ends the thread, and nothing comes behind it. Any thread."""
        with self._putting:
            self._runs.append(run)
            if threading.get_ident() != self._thread:
                ring_later(self._bell)  # the thread could not go on while the caller has the loop's turn

    def get(self) -> Run | None:
        """Wait for the next run, and return it; close the bell if there is none. The thread itself."""
        self._thread = threading.get_ident()
        while not self._runs:
            self._poll.poll()
            with contextlib.suppress(BlockingIOError):  # a collective has heard it
                os.eventfd_read(self._bell)
            if not self._runs:
                self._look()
        run = self._runs.popleft()
        if run is None:
            with self._putting:
                os.close(self._bell)
        return run
