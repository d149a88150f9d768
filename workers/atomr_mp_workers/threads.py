"""An actor's own thread: runs one request at a time, handed over and taken back by the loop."""

from __future__ import annotations

import os
import threading
from collections import deque
from queue import SimpleQueue
from typing import Final

from atomr_mp_workers.envelope import Request


class Completions:
    """Requests that other threads have finished, and a descriptor that says so."""

    def __init__(self) -> None:
        self._done: deque[Request] = deque()
        self.descriptor: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def add(self, request: Request) -> None:
        """Hand a finished request to the loop. Any thread."""
        self._done.append(request)
        os.eventfd_write(self.descriptor, 1)

    def take(self) -> list[Request]:
        """Return what has finished since the last call. The loop's thread."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return []
        return [self._done.popleft() for _ in range(len(self._done))]


class ActorThread:
    """Runs requests of one actor off the loop, in order.

    Args:
        name: The actor's name.
        completions: Where finished requests go.
    """

    def __init__(self, name: str, completions: Completions) -> None:
        self.waiting: deque[Request] = deque()
        """Requests that have not started; the loop starts the next one when the thread is idle."""
        self.running: Request | None = None
        self._completions = completions
        self._inbox: SimpleQueue[Request] = SimpleQueue()
        # A daemon: a method that never returns must not keep a worker alive that was told to leave.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def run(self, request: Request) -> None:
        """Run a request that has begun; it comes back through the completions."""
        self.running = request
        self._inbox.put(request)

    def _run(self) -> None:
        while True:
            request = self._inbox.get()
            request.call()
            self._completions.add(request)
            del request
