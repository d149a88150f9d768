"""Brings requests that have run on streams or on actors' threads back to the loop."""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, cast

from atomr_mp import checks, errors
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.requests.request import Run

STRATEGIES: Final = ("adaptive", "host_function", "polled", "synchronous")
"""How the loop learns of the end of work on streams. "adaptive": it polls for a short time, then waits for a
descriptor; "host_function": the work itself writes the descriptor; "polled": it polls every `POLL_S`; "synchronous": it
waits at once."""

POLL_S: Final = 50e-6
"""How often "polled" looks."""

SPIN_NS: Final = 100_000
"""How long "adaptive" polls, between looks at the sockets, before it waits: most short work has ended by then, and
waking up costs more."""

MOST_SPIN_NS: Final = 500_000
"""How long it polls at most on an asynchronous device, if the last work took about as long. A graph of fifty products
takes 160 µs; waking up for its end was 100 µs late (H100, 2026)."""


FALLBACK_S: Final = 0.05
"""How often "host_function" polls nevertheless: after a fault of the device, host functions no longer run."""


class Completions:
    """Requests that have been finished elsewhere than on the loop, and a descriptor that signals them.

    If the loop sleeps, an actor's thread settles its ended requests itself, and a world's thread that was rung looks
    what is next: waking the loop costs more, and both would want the interpreter's lock. So the loop's state belongs to
    the thread that holds `turn`.

    Args:
        strategy: One of `STRATEGIES`.
        device: The device, which is asked for ended work.
        in_progress: Requests that have not come back.
    """

    def __init__(self, strategy: str, device: WorkerDevice, in_progress: InProgress) -> None:
        if strategy not in STRATEGIES:
            raise errors.ConfigurationError(f"completion = {strategy!r}: use one of {', '.join(STRATEGIES)}")
        self.strategy: Final = strategy
        self.in_progress: Final = in_progress
        self._device = device
        self._look_until_ns = 0
        self._begun_ns = 0
        """When the last request was put on a stream."""
        self._spin_ns = SPIN_NS
        self._done: deque[Run] = deque()
        self.turn: Final = checks.lock()
        """Lock of the loop's state: held by the loop, except while it sleeps. A thread that releases it checks
        `waiting`."""
        self.take_turn: Callable[[], bool] = _not_here
        """Does the work that ended requests make due, with the turn held; returns whether the loop may sleep on."""
        self.descriptor: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Descriptor to poll edge-triggered: each write signals. It is never read, since that releases the
        interpreter's lock.
        """

    def add(self, request: Run) -> None:
        """Hand a finished request to the loop. Any thread."""
        self._done.append(request)
        if request.method.thread and self._taken_here():
            return
        if self.strategy != "polled":
            self.wake()

    def add_all(self, requests: Iterable[Run]) -> None:
        """Hand over requests that have ended on an actor's thread, together. Any thread."""
        self._done.extend(requests)
        if not self._taken_here() and self.strategy != "polled":
            self.wake()

    def wake(self) -> None:
        """Have the loop look. Any thread."""
        os.eventfd_write(self.descriptor, 1)

    def wake_later(self) -> None:
        """Have the loop look once this thread waits for something, or the interpreter switches to it. Any thread."""
        ring_later(self.descriptor)

    def look_here(self) -> None:
        """Take a turn on this thread if the loop sleeps, else have the loop take one more. An actor's thread."""
        if not self._taken_here(at_least=1):
            self.wake()

    def _taken_here(self, at_least: int = 0) -> bool:
        """Take turns while requests have ended; return False if the loop has to take one."""
        # A thread that finds the turn taken need not wait: its holder looks once more after the release.
        while (self._done or at_least) and self.turn.acquire(blocking=False):
            at_least = 0
            try:
                if not self.take_turn():
                    return False
            finally:
                self.turn.release()
        return not at_least

    @property
    def waiting(self) -> bool:
        """Whether a request has finished that was not taken yet."""
        return bool(self._done)

    def begin(self, request: Run) -> None:
        """Note a request that will come back."""
        request.completions = self
        self.in_progress.begin(request)
        if request.method.stream is not None:  # a thread reports its end itself; polling would hold it up
            self._begun_ns = time.monotonic_ns()
            self._look_until_ns = self._begun_ns + self._spin_ns

    def look(self) -> bool:
        """Look for ended work; return whether there is some."""
        if self.in_progress.on_streams:  # even if threads have some, since a stream's end is signalled once
            if self.strategy == "polled" and not self._done:
                time.sleep(POLL_S)  # the strategy's way
            self._done.extend(cast("Iterable[Run]", self._device.poll()))
        return bool(self._done)

    def patience_s(self) -> float | None:
        """Return how long the loop may sleep before it has to `look` again; None for as long as nothing tells it."""
        if not self.in_progress.requests:
            return None
        if self._done or self.strategy == "polled":
            return 0
        if self.strategy == "host_function":
            return FALLBACK_S
        if time.monotonic_ns() < self._look_until_ns:
            return 0
        self._device.watch(self.wake)
        return None

    def take(self) -> list[Run]:
        """Return the requests that have finished since the last call. Hold the turn."""
        done = [self._done.popleft() for _ in range(len(self._done))]
        for request in done:
            self.in_progress.end(request)
            if request.method.stream is not None:
                self._learn()
        return done

    def _learn(self) -> None:
        """Set the polling time to the last work's and a quarter more, or to the usual time if that is too long."""
        now_ns = time.monotonic_ns()
        self._look_until_ns = now_ns + SPIN_NS
        if self._device.asynchronous:
            took_ns = now_ns - self._begun_ns
            enough_ns = took_ns + took_ns // 4
            self._spin_ns = max(SPIN_NS, enough_ns) if enough_ns <= MOST_SPIN_NS else SPIN_NS


def ring_later(descriptor: int) -> None:
    """Write an eventfd, and keep the interpreter's lock, so that no thread of this process goes on by that at once."""
    _KEEPING_THE_LOCK.eventfd_write(descriptor, 1)


def _not_here() -> bool:
    return False


_KEEPING_THE_LOCK: Final = ctypes.PyDLL(None)
"""The C library; the thread that calls it keeps the interpreter's lock."""
