"""The supervisor's event loop, and the relay's: descriptors, timers and signals, all on the main thread.

Timers go by the process's own time, and what has come in is called for before them: so a process that was stopped for
a while takes nobody else for silent.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Final

from atomr_mp import checks
from atomr_mp.protocol.own_time import LOOK_S, STEP_S, OwnTime


class Timer:
    """A pending call; made by `Loop.call_later`."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call
        """None once the call was made or cancelled."""

    def cancel(self) -> None:
        """Forget the call; may be called twice, and after it was made."""
        self.call = None


@checks.owned(by_maker=True)
class Loop:
    """Waits for descriptors, timers and signals, and calls their callbacks."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[int], None]] = {}
        self._new: set[int] = set()
        """Descriptors watched since the last look. That look's events with such a number are of a closed descriptor."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._afterwards: list[Callable[[], object]] = []
        self._signals: dict[int, Callable[[], None]] = {}
        self._signal_pipe: Final = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._runs = self._stopped = False
        self._own: Final = OwnTime(time.monotonic())
        self._paused: Callable[[float], object] = lambda _: None
        self.watch(self._signal_pipe[0], select.EPOLLIN, self._on_signal)

    def watch(self, descriptor: int, events: int, call: Callable[[int], None]) -> None:
        """Call `call(events)` whenever a descriptor has one of `events`, errors and hang-ups always included."""
        self._epoll.register(descriptor, events)
        self._calls[descriptor] = call
        self._new.add(descriptor)

    def rewatch(self, descriptor: int, events: int) -> None:
        """Change the events that a descriptor is watched for."""
        self._epoll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor, before it is closed."""
        if self._calls.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call `call()` once `delay_s` of this process's own time has passed."""
        timer = Timer(call)
        heapq.heappush(self._timers, (self.own_s + delay_s, next(self._order), timer))
        return timer

    @property
    def own_s(self) -> float:
        """This process's own time; how long another has been silent is counted by it. Looks at the clock."""
        self._look()
        return self._own.now_s

    def on_pause(self, call: Callable[[float], object]) -> None:
        """Call `call(seconds)` whenever the running loop did not look for so long, which its own time leaves out."""
        self._paused = call

    def call_afterwards(self, call: Callable[[], object]) -> None:
        """Call `call()` when everything else of this round is done: also before the first round, and after the last."""
        self._afterwards.append(call)

    def on_signal(self, number: int, call: Callable[[], None]) -> None:
        """Call `call()` on the loop after a signal has arrived."""
        signal.set_wakeup_fd(self._signal_pipe[1], warn_on_full_buffer=False)
        self._signals[number] = call
        signal.signal(number, lambda *_: None)

    def run(self) -> None:
        """Run until `stop`."""
        self._look()
        self._runs = True
        while not self._stopped:
            self._run_afterwards()
            # A wait that a stop has interrupted comes back without what has come in meanwhile.
            seen = self._epoll.poll(self._until_next_timer()) or self._epoll.poll(0)
            self._new.clear()
            for descriptor, events in seen:
                call = self._calls.get(descriptor)  # an earlier call of this round may have forgotten it
                if call is not None and descriptor not in self._new:
                    call(events)
            self._run_timers()
        self._run_afterwards()

    def stop(self) -> None:
        """Make `run` return after this round."""
        self._stopped = True

    def close(self) -> None:
        """Give descriptors and signals back."""
        signal.set_wakeup_fd(-1)
        for number in self._signals:
            signal.signal(number, signal.SIG_DFL)
        self._epoll.close()
        for descriptor in self._signal_pipe:
            os.close(descriptor)

    def _until_next_timer(self) -> float:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return min(LOOK_S, max(0.0, self._timers[0][0] - self.own_s)) if self._timers else -1

    def _look(self) -> None:
        """Count the own time, and tell of a pause."""
        left_out_s = self._own.look(time.monotonic())
        if left_out_s and self._runs:
            self.call_afterwards(lambda: self._paused(left_out_s + STEP_S))

    def _run_timers(self) -> None:
        now = self.own_s
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                call, timer.call = timer.call, None
                call()

    def _run_afterwards(self) -> None:
        while self._afterwards:
            calls, self._afterwards = self._afterwards, []
            for call in calls:
                call()

    def _on_signal(self, _events: int) -> None:
        for number in os.read(self._signal_pipe[0], 4096):
            call = self._signals.get(number)
            if call is not None:
                call()
