"""The door from other threads to the gateway's event loop, and a guard of what the loop's thread alone may use.

A session's local client reads the supervisor's messages on whichever thread waits for one, also in the threads that
make room for uploads or read large results. So a listener of it is an `Inbox`, and never a session's own method.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class OwnerThread:
    """The thread that alone may use something: the one that makes this.

    Args:
        what: What it owns, for the error.
    """

    __slots__ = ("_ident", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._ident = threading.get_ident()

    @property
    def is_here(self) -> bool:
        """Whether this is the thread."""
        return threading.get_ident() == self._ident

    def check(self) -> None:
        """Refuse another thread, before it has changed anything.

        Raises:
            RuntimeError: This is another thread. libzmq would abort the process, now or later.
        """
        if not self.is_here:
            name = threading.current_thread().name
            raise RuntimeError(f"{self._what} is for the event loop's thread alone, and thread {name!r} uses it")


class Inbox(Generic[T]):
    """Hands messages over to the event loop, in the order in which they come.

    Args:
        loop: The event loop.
        take: Called with each message, on the loop's thread: at once if it comes there and none waits before it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], object]) -> None:
        self._loop = loop
        self._owner: Final = OwnerThread("an inbox")
        self._take = take
        self._waiting: Final[deque[T]] = deque()

    def put(self, message: T) -> None:
        """Hand a message over; from any thread."""
        self._waiting.append(message)
        if self._owner.is_here:
            self._take_all()
        else:
            self._loop.call_soon_threadsafe(self._take_all)

    def _take_all(self) -> None:
        while self._waiting:
            self._take(self._waiting.popleft())
