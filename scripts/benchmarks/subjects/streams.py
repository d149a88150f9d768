"""Streams: the first part, further parts, steps over many streams, and how long a resumed one stands still."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes

if TYPE_CHECKING:
    from atomr_mp import Pool

STREAMS: Final = 64
"""Streams that run together."""

STEPS: Final = 150
TICKS: Final = 60
"""Parts of a stream whose worker is killed in between, one each millisecond."""


def streams(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Measure a contestant that streams."""
    pool: Pool | None = contestant.streaming("none")
    if pool is None:
        return {}
    stream, found = pool.actor("Stream"), {}
    calls, firsts = [], []
    for _ in range(sizes.warm_up):
        stream.empty().result()
    for _ in range(sizes.calls // 4):  # in turns: what disturbs one disturbs the other
        calls.append(_timed(lambda: stream.empty().result()))
        firsts.append(_timed(lambda: next(stream.count(1))))
    found["call_p50"] = statistics.median(calls) * 1e6
    found["first_p50"] = statistics.median(firsts) * 1e6
    for ahead in (16, 256):
        begun = perf_counter()
        count = sum(1 for _ in pool.stream("Stream.count", sizes.flight_calls, ahead=ahead))
        found[f"part_{ahead}"] = (perf_counter() - begun) / count * 1e6
    alone_s = pool.call("Engine.alone", STEPS).result()
    found["steps"] = 100 * alone_s / asyncio.run(_together(pool))
    found["gather"] = 100 * asyncio.run(_gathered(pool)) / _mapped(pool)
    pool = contestant.streaming("hot")
    assert pool is not None
    found["gap_p50"] = statistics.median([_longest_gap(pool) for _ in range(sizes.kills)]) * 1e3
    return found


def _timed(call: Any) -> float:
    begun = perf_counter()
    call()
    return perf_counter() - begun


async def _together(pool: Pool) -> float:
    """Return how long many streams take for as many steps."""

    async def one() -> None:
        async for _ in pool.stream("Engine.run", STEPS):
            pass

    begun = perf_counter()
    await asyncio.gather(*(one() for _ in range(STREAMS)))
    return perf_counter() - begun


GATHERED: Final = 10_000


async def _gathered(pool: Pool) -> float:
    """Return the rate of calls that are made at once."""
    begun = perf_counter()
    await asyncio.gather(*(pool.call("Echo.echo", b"x") for _ in range(GATHERED)))
    return GATHERED / (perf_counter() - begun)


def _mapped(pool: Pool) -> float:
    begun = perf_counter()
    for _ in pool.map("Echo.echo", (b"x" for _ in range(GATHERED))):
        pass
    return GATHERED / (perf_counter() - begun)


def _longest_gap(pool: Pool) -> float:
    """Kill the worker of a stream that is resumed; return the longest time without a part."""
    while pool.devices[0].standby is None:
        pool.wait_ready()
    ticks = pool.stream("Stream.tick", TICKS)
    before, longest = perf_counter(), 0.0
    for number in ticks:
        longest, before = max(longest, perf_counter() - before), perf_counter()
        if number == TICKS // 3:
            os.kill(pool.devices[0].pid, signal.SIGKILL)
    return longest
