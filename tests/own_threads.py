"""Threads of a part that a test makes without a process of its own: they are to end before their descriptors do.

Else one of them writes what has another owner by then: descriptors' numbers come again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from tests.support import DEADLINE_S


class OwnThreads:
    """The threads that were started within `started`."""

    def __init__(self) -> None:
        self._threads: Final[list[threading.Thread]] = []

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Note the threads that are started within the `with` block."""
        before = set(threading.enumerate())
        yield
        self._threads.extend(each for each in threading.enumerate() if each not in before)

    def join(self) -> None:
        """Wait until all have ended, which were asked to."""
        for each in self._threads:
            each.join(DEADLINE_S)
            assert not each.is_alive(), f"{each.name} goes on"
