"""The time of an empty call, one after another."""

from __future__ import annotations

import asyncio
import statistics
from time import perf_counter_ns

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes


def latency(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Measure a blocking client, then an asyncio client if there is one."""
    contestant.start(1)
    empty = contestant.connect().empty
    for _ in range(sizes.warm_up):
        empty()
    times_ns = []
    for _ in range(sizes.calls):
        begun_ns = perf_counter_ns()
        empty()
        times_ns.append(perf_counter_ns() - begun_ns)
    found = _percentiles("empty", times_ns)
    times_ns = asyncio.run(_asyncio_times_ns(contestant, sizes))
    return found | _percentiles("async", times_ns) if times_ns else found


async def _asyncio_times_ns(contestant: Contestant, sizes: Sizes) -> list[int]:
    client = contestant.connect_async()
    if client is None:
        return []
    empty = client.empty
    for _ in range(sizes.warm_up):
        await empty()
    times_ns = []
    for _ in range(sizes.calls):
        begun_ns = perf_counter_ns()
        await empty()
        times_ns.append(perf_counter_ns() - begun_ns)
    return times_ns


def _percentiles(name: str, times_ns: list[int]) -> dict[str, float]:
    percentiles = statistics.quantiles(times_ns, n=100)
    return {f"{name}_p50": percentiles[49] / 1e3, f"{name}_p99": percentiles[98] / 1e3}
