"""The cost of metrics and spans: empty calls with each and without, in turns, by one client.

Calls come one after the other, and one each millisecond: then work between calls delays none, but caches are cold.
"""

from __future__ import annotations

import statistics
import time
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Final

from benchmarks.contestant import Contestant, Signals
from benchmarks.sizes import Sizes

OFF: Final = "off"
"""Nothing is on: what the others are compared with."""

PAUSES_S: Final = {"": 0.0, "_paced": 0.001}
"""How long the client does nothing after a call, by what the figure's name ends in."""

TURNS: Final = 4
"""Each other one in reverse, so that none always comes after the same."""


def signals(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the median of an empty call without signals, and how much more it is with each signal, in µs."""
    ways = contestant.signals()
    if ways is None:
        return {}
    return {
        f"{name}{ending}": value
        for ending, pause_s in PAUSES_S.items()
        for name, value in _in_turns(ways, sizes.signal_s, pause_s).items()
    }


def _in_turns(ways: Signals, seconds: float, pause_s: float) -> dict[str, float]:
    turns: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name in reversed(ways) if turn % 2 else ways:
            found = _median_us(ways[name](), seconds, pause_s)
            if turn:  # the first is for warming up
                turns[name].append(found)
    off = turns.pop(OFF)
    more = {name: [one - other for one, other in zip(found, off, strict=True)] for name, found in turns.items()}
    return {OFF: statistics.median(off)} | {name: statistics.median(found) for name, found in more.items()}


def _median_us(switched_on: AbstractContextManager[object], seconds: float, pause_s: float) -> float:
    """Call for so long."""
    times_ns = []
    with switched_on as empty:
        assert callable(empty)
        ended_ns = perf_counter_ns()
        until_ns = ended_ns + int(seconds * 1e9)
        while ended_ns < until_ns:
            if pause_s:
                time.sleep(pause_s)
            begun_ns = perf_counter_ns()
            empty()
            ended_ns = perf_counter_ns()
            times_ns.append(ended_ns - begun_ns)
    return statistics.median(times_ns) / 1e3
