"""Streams: the first part, further parts, steps over many streams, and how long a resumed one stands still."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes
from benchmarks.standalone.remote_clients import served

if TYPE_CHECKING:
    from atomr_mp import Pool

STREAMS: Final = 64
"""Streams that run together."""

AHEADS: Final = (16, 256)
"""Parts that may be unread, few and many."""

STEPS: Final = 150
TICKS: Final = 60
"""Parts of a stream whose worker is killed in between, one each millisecond."""


def streams(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Measure a contestant that streams."""
    pool: Pool | None = contestant.streaming("none")
    if pool is None:
        return {}
    found: dict[str, float] = {}
    found["call_p50"], found["first_p50"] = _short(pool, sizes)
    found["first_ratio"] = found["first_p50"] / found["call_p50"]
    for ahead in AHEADS:
        found[f"part_{ahead}"], found[f"cpu_{ahead}"] = _part_us(pool, sizes.flight_calls, ahead)
    with served() as (_, far):
        call_us, first_us = _short(far, sizes)
        found["remote_first_ratio"] = first_us / call_us
        for ahead in AHEADS:
            found[f"remote_{ahead}"], _ = _part_us(far, sizes.flight_calls, ahead)
    alone_s = pool.call("Engine.alone", STEPS).result()
    found["steps"] = 100 * alone_s / asyncio.run(_together(pool))
    found["gather"] = 100 * asyncio.run(_gathered(pool)) / _mapped(pool)
    pool = contestant.streaming("hot")
    assert pool is not None
    found["gap_p50"] = statistics.median([_longest_gap(pool) for _ in range(sizes.kills)]) * 1e3
    return found


def _short(pool: Pool, sizes: Sizes) -> tuple[float, float]:
    """Return how long an empty call on the thread takes, and the first part of a stream, in microseconds."""
    stream, calls, firsts = pool.actor("Stream"), [], []
    for _ in range(sizes.warm_up):
        stream.empty().result()
    for _ in range(sizes.calls // 4):  # in turns: what disturbs one disturbs the other
        calls.append(_timed(lambda: stream.empty().result()))
        firsts.append(_timed(lambda: next(stream.count(1))))
    return statistics.median(calls) * 1e6, statistics.median(firsts) * 1e6


def _part_us(pool: Pool, parts: int, ahead: int) -> tuple[float, float]:
    """Return how long a part of a quick stream takes, and the processor time of client and worker for it."""
    worker = psutil.Process(pool.devices[0].pid)
    before = worker.cpu_times()
    begun, begun_cpu = perf_counter(), process_time()
    count = sum(1 for _ in pool.stream("Stream.count", parts, ahead=ahead))
    took, cpu, after = perf_counter() - begun, process_time() - begun_cpu, worker.cpu_times()
    cpu += after.user + after.system - before.user - before.system
    return took / count * 1e6, cpu / count * 1e6


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
