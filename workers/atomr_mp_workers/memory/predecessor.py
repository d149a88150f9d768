"""The process whose place this one has taken: while it dies, it may still have memory that this one needs."""

from __future__ import annotations

import os
import select
import weakref
from typing import Final

WAIT_S: Final = 2.0
"""How long an allocation waits for it at most; on the loop, nothing else is answered meanwhile. To take down a context
takes the kernel tens of milliseconds, with much memory some more; one that takes longer than this may be stuck."""


class Predecessor:
    """A process that was killed.

    Args:
        pidfd: Tells of its end; owned from here on.
    """

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._patience_s = WAIT_S
        weakref.finalize(self, os.close, pidfd).atexit = False

    def has_ended(self) -> bool:
        """Wait for its end, but once in vain at most; return whether it has come. Any thread."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        ended = bool(poll.poll(self._patience_s * 1000))
        if not ended:
            self._patience_s = 0.0
        return ended
