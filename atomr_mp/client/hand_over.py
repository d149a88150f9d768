"""Hands things over to a thread, from whichever thread finds them, whatever that one holds."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

from atomr_mp.client import interrupts

T = TypeVar("T")

_LOG: Final = logging.getLogger("atomr_mp.client")


class HandOver(Generic[T]):
    """A thread of a client, from the first time on that it may be needed.

    Whoever finds something may be collecting garbage, and hold any lock of the client's, and of threading's. So that
    thread does nothing itself and starts no thread: `put` hands over, by the one queue that bears this.

    Args:
        name: The thread's.
        act: Takes one of the things. An exception of it is logged, and the thread goes on.
    """

    def __init__(self, name: str, act: Callable[[T], object]) -> None:
        self._name: Final = name
        self._act: Final = act
        self._found: Final[SimpleQueue[tuple[T] | None]] = SimpleQueue()
        self._deciding: Final = threading.Lock()
        """Held to start the thread, or to close this, after which none is started."""
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread, the first time."""
        if self._thread is None:
            with self._deciding:
                self._start()

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def put(self, found: T) -> None:
        """Hand something over. Any thread, whatever it holds."""
        self._found.put((found,))

    def handing_over(self, found: T) -> Callable[[object], object]:
        """Return a function in C that hands something over, and ignores its argument.

        A weak reference may call it: unlike a function in Python it cannot be interrupted, which would lose the thing.
        """
        return functools.partial(self._found.put, (found,))  # the argument is `block`, which that queue ignores

    def close(self) -> None:
        """End the thread; with no lock held. May be called twice."""
        with self._deciding:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._found.put(None)
            if thread is not threading.current_thread():
                interrupts.wait(thread.join)

    def _run(self) -> None:
        while (found := self._found.get()) is not None:
            try:
                self._act(*found)
            except Exception:  # noqa: BLE001 - what else was found is not to blame
                _LOG.exception("%s: something that was handed over could not be seen to", self._name)
            del found
