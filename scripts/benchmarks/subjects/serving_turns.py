"""A call over HTTP beside its two halves: the same server without a pool, and a call of the pool; in turns.

The server's cost is its call beside both halves one after the other. The sum of the halves, each in a loop of its own,
is smaller, because the processor's caches keep so short a loop: it is measured too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from benchmarks.base import Base
from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes
from benchmarks.subjects.serving import HttpClient

TURN_CALLS: Final = 100
"""Calls of one kind, before it is the next one's turn: the machine's other work meets all alike."""


def serve_turns(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Measure a server and its halves, if the contestant has one whose pool can be called beside it."""
    serving = contestant.serving()
    if serving is None or serving.pool_call is None:
        return {}
    call = serving.pool_call
    with Base(contestant.directory) as base:
        served, bare = HttpClient(serving), HttpClient(base.bare_server())

        def halves() -> None:
            bare.call()
            call()

        kinds: dict[str, Callable[[], object]] = {
            "served": served.call,
            "halves": halves,
            "bare": bare.call,
            "pool": call,
        }
        for ask in kinds.values():
            _median_us(ask, sizes.warm_up)
        turns = max(1, sizes.calls // TURN_CALLS)
        rounds = [{kind: _median_us(ask, TURN_CALLS) for kind, ask in kinds.items()} for _ in range(turns)]
    medians = {kind: statistics.median([turn[kind] for turn in rounds]) for kind in kinds}
    return {
        **medians,
        "to_halves": statistics.median([turn["served"] / turn["halves"] for turn in rounds]),
        "to_sum": statistics.median([turn["served"] / (turn["bare"] + turn["pool"]) for turn in rounds]),
    }


def _median_us(ask: Callable[[], object], calls: int) -> float:
    times_ns = []
    for _ in range(calls):
        begun_ns = perf_counter_ns()
        ask()
        times_ns.append(perf_counter_ns() - begun_ns)
    return statistics.median(times_ns) / 1e3
