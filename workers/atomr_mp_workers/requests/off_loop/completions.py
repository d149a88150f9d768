"""Brings requests back to the loop that have run on streams or on actors' threads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, cast

from atomr_mp import errors
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.requests.request import Run

STRATEGIES: Final = ("adaptive", "host_function", "polled", "synchronous")
"""How the loop learns of the end of work on streams: by looking for a short time, then by a descriptor; by the
descriptor alone, which the work itself writes; by looking every `POLL_S`; by waiting for it at once."""

POLL_S: Final = 50e-6
"""How often "polled" looks."""

SPIN_NS: Final = 100_000
"""How long "adaptive" looks, between looking at the sockets, before it waits: most short work has ended by then, and to
be woken costs more."""

MOST_SPIN_NS: Final = 500_000
"""How long it looks at most where a device works by itself, if what ended last had taken about as long. A graph of
fifty products takes 160 µs; to be woken for its end was 100 µs late (H100, 2026)."""


FALLBACK_S: Final = 0.05
"""How often "host_function" looks nevertheless: after a fault of the device, no host function is run any more."""


class Completions:
    """Requests that have been finished elsewhere than on the loop, and a descriptor that says so.

    What has ended on an actor's thread is settled by that thread, if the loop sleeps: to wake it costs more, and both
    would want the interpreter's lock. So what is the loop's belongs to whoever has the `turn`.

    Args:
        strategy: One of `STRATEGIES`.
        device: Is asked for what it has done.
        in_progress: What has not come back.
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
        self.turn: Final = threading.Lock()
        """Held by whoever touches what is the loop's: by the loop, except while it sleeps. Whoever has given it back
        looks at what is `waiting`."""
        self.take_turn: Callable[[], bool] = _not_here
        """Does the work due when something has ended, with the turn; returns whether the loop may sleep on."""
        self.descriptor: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """To be polled edge-triggered: each write tells. Nobody reads, for that gives the interpreter's lock away."""

    def add(self, request: Run) -> None:
        """Hand a finished request to the loop. Any thread."""
        self._done.append(request)
        if request.method.thread and self._taken_here():
            return
        if self.strategy != "polled":
            self.wake()

    def add_all(self, requests: Iterable[Run]) -> None:
        """Hand over what has ended on an actor's thread, together. Any thread."""
        self._done.extend(requests)
        if not self._taken_here() and self.strategy != "polled":
            self.wake()

    def wake(self) -> None:
        """Have the loop look. Any thread."""
        os.eventfd_write(self.descriptor, 1)

    def _taken_here(self) -> bool:
        # Who finds the turn taken need not wait: whoever has it looks once more after giving it back.
        while self._done and self.turn.acquire(blocking=False):
            try:
                if not self.take_turn():
                    return False
            finally:
                self.turn.release()
        return True

    @property
    def waiting(self) -> bool:
        """Whether something has finished that nobody has taken."""
        return bool(self._done)

    def begin(self, request: Run) -> None:
        """Note a request that is to come back."""
        request.completions = self
        self.in_progress.begin(request)
        if request.method.stream is not None:  # a thread says by itself when it has done; to look would hold it up
            self._begun_ns = time.monotonic_ns()
            self._look_until_ns = self._begun_ns + self._spin_ns

    def look(self) -> bool:
        """Look for what has ended; return whether there is something."""
        if self.in_progress.on_streams:  # also if threads have something: that a stream has is told once
            if self.strategy == "polled" and not self._done:
                time.sleep(POLL_S)  # what the strategy is
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
        """Return what has finished since the last call. With the turn."""
        done = [self._done.popleft() for _ in range(len(self._done))]
        for request in done:
            self.in_progress.end(request)
            if request.method.stream is not None:
                self._learn()
        return done

    def _learn(self) -> None:
        """Look as long as what has just ended took, with a quarter in reserve; the usual time if that was too long."""
        now_ns = time.monotonic_ns()
        self._look_until_ns = now_ns + SPIN_NS
        if self._device.asynchronous:
            took_ns = now_ns - self._begun_ns
            enough_ns = took_ns + took_ns // 4
            self._spin_ns = max(SPIN_NS, enough_ns) if enough_ns <= MOST_SPIN_NS else SPIN_NS


def _not_here() -> bool:
    return False
