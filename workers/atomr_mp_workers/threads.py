"""An actor's own thread: runs one request at a time, handed over and taken back by the loop."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import Final

from atomr_mp import errors
from atomr_mp_workers.envelope import Request

STRATEGIES: Final = ("adaptive", "host_function", "polled", "synchronous")
"""How the loop learns of the end of work on streams: by looking for a short time, then by a descriptor; by the
descriptor alone, which the work itself writes; by looking every `POLL_S`; by waiting for it at once."""

POLL_S: Final = 50e-6
"""How often "polled" looks."""

SPIN_NS: Final = 30_000
"""How long "adaptive" looks before it waits: most of what is short has ended by then, and to be woken costs more."""


class Completions:
    """Requests that other threads have finished, and a descriptor that says so.

    Args:
        strategy: One of `STRATEGIES`.
    """

    def __init__(self, strategy: str = "adaptive") -> None:
        if strategy not in STRATEGIES:
            raise errors.ConfigurationError(f"completion = {strategy!r}: use one of {', '.join(STRATEGIES)}")
        self.strategy: Final = strategy
        self.expected = 0
        """Requests on streams that have not come back."""
        self._done: deque[Request] = deque()
        self.descriptor: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def add(self, request: Request) -> None:
        """Hand a finished request to the loop. Any thread."""
        self._done.append(request)
        if self.strategy != "polled":
            os.eventfd_write(self.descriptor, 1)

    def look(self) -> bool:
        """Look for what is to end soon, as the strategy says; return whether there is something."""
        if self._done or not self.expected:
            return bool(self._done)
        if self.strategy == "polled":
            time.sleep(POLL_S)  # what the strategy is
        elif self.strategy == "adaptive":
            until_ns = time.monotonic_ns() + SPIN_NS
            while not self._done and time.monotonic_ns() < until_ns:
                time.sleep(0)  # the thread that works needs the interpreter's lock
        return bool(self._done)

    @property
    def polls(self) -> bool:
        """Whether no descriptor will tell: the loop has to look again."""
        return self.strategy == "polled" and self.expected > 0

    def take(self) -> list[Request]:
        """Return what has finished since the last call. The loop's thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        return [self._done.popleft() for _ in range(len(self._done))]


class ActorThread:
    """Runs requests of one actor off the loop, in order.

    Args:
        name: The actor's name.
    """

    def __init__(self, name: str) -> None:
        self.waiting: deque[Request] = deque()
        """Requests that have not started; the loop starts the next one when the thread is idle."""
        self.running: Request | None = None
        self._inbox: SimpleQueue[Request] = SimpleQueue()
        # A daemon: a method that never returns must not keep a worker alive that was told to leave.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def run(self, request: Request) -> None:
        """Run a request that has begun; then it says that it has `finished`."""
        self.running = request
        self._inbox.put(request)

    def _run(self) -> None:
        while True:
            request = self._inbox.get()
            request.call()
            request.finished()
            del request
