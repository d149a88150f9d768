"""The timer of a connection: it does not count against a client that this process stood still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from atomr_mp.serve.front_end.timer import AFTER_READING_S, LazyTimer


class Handle:
    """One call of the loop."""

    def __init__(self, when_s: float, callback: Callable[[], None]) -> None:
        self.when_s = when_s
        self.callback = callback
        self.cancelled = False

    def when(self) -> float:
        """Return when it is due."""
        return self.when_s

    def cancel(self) -> None:
        """Do not call."""
        self.cancelled = True


class ClockedLoop:
    """A loop whose clock a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.handles: list[Handle] = []

    def time(self) -> float:
        """Return the time."""
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Handle:
        """Call back at a time."""
        self.handles.append(Handle(when_s, callback))
        return self.handles[-1]

    def turn(self, now_s: float) -> None:
        """Set the clock, and call what is due."""
        self.now_s = now_s
        due = [each for each in self.handles if each.when_s <= now_s]
        self.handles = [each for each in self.handles if each.when_s > now_s]
        for each in due:
            if not each.cancelled:
                each.callback()


def timed(calls: list[float]) -> tuple[ClockedLoop, LazyTimer]:
    """Return a timer that notes when it calls back, and its loop."""
    loop = ClockedLoop()
    return loop, LazyTimer(cast("asyncio.AbstractEventLoop", cast("Any", loop)), lambda: calls.append(loop.now_s))


def test_what_came_while_the_loop_stood_still_is_read_before_the_time_is_over() -> None:
    """The loop comes back long after the end, and calls its timers before it looks at its connections."""
    calls: list[float] = []
    loop, timer = timed(calls)
    timer.begin(1.0)
    loop.turn(50.0)
    timer.stop()  # the connection had bytes to read
    loop.turn(100.0)
    assert calls == []
    timer.begin(1.0)
    loop.turn(200.0)
    timer.begin(1.0)  # or one of several steps
    loop.turn(201.1)
    assert calls == []
    loop.turn(201.1 + AFTER_READING_S)
    assert calls == [201.1 + AFTER_READING_S]


@pytest.mark.parametrize("stops", [0, 1, 5])
def test_it_calls_back_once_at_its_latest_end(stops: int) -> None:
    """However often it is begun anew, there is one handle of the loop."""
    calls: list[float] = []
    loop, timer = timed(calls)
    for _ in range(stops):
        timer.begin(1.0)
        timer.stop()
        loop.turn(loop.now_s + 0.1)
    timer.begin(2.0)
    assert len([each for each in loop.handles if not each.cancelled]) == 1
    for _ in range(300):
        loop.turn(loop.now_s + 0.01)
    assert len(calls) == 1
    assert not timer.runs
