"""The process that this one replaces: while it dies, it may still have memory that this one needs."""

from __future__ import annotations

import os
import select
import weakref
from typing import Final

WAIT_S: Final = 2.0
"""Longest wait of an allocation; on the loop, no request is answered meanwhile. The kernel takes tens of milliseconds
to take down a context, and more with much memory; a longer one may be stuck."""


class Predecessor:
    """A process that was killed.

    Args:
        pidfd: Its pidfd; owned from here on.
    """

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._patience_s = WAIT_S
        weakref.finalize(self, os.close, pidfd).atexit = False

    def has_ended(self) -> bool:
        """Wait for its end, but in vain only once; return whether it has ended. Any thread."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        ended = bool(poll.poll(self._patience_s * 1000))
        if not ended:
            self._patience_s = 0.0
        return ended
