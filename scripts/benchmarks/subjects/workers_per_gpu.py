"""A small model in one, two and four workers of one GPU: calls a second, and the others' calls while one fails over.

On the host backend what stands for a GPU is the machine's cores, and the gain is theirs. As many calls are in flight
for each worker, however many there are.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
from collections.abc import Iterable
from time import perf_counter
from typing import Final

from benchmarks.contestant import Contestant, SharedGpu
from benchmarks.sizes import Sizes

COUNTS: Final = (1, 2, 4)
IN_FLIGHT: Final = 2
"""Calls in flight for each worker: one that runs, and one that is there when it has ended."""
LOOK_S: Final = 0.002
"""Interval of looks whether a standby is ready again, which no event tells here."""
READY_S: Final = 60.0
"""How long the standbys may take."""


def workers_per_gpu(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the figures of each number of workers, if the contestant has several on a GPU."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a worker is one core's, on the host
    found: dict[str, float] = {}
    for count in COUNTS:
        shared = contestant.shared_gpu(count, sizes.backend)
        if shared is not None:
            found |= asyncio.run(_figures(shared, count, sizes))
            found[f"gain_{count}"] = found[f"rate_{count}"] / found["rate_1"]
    found.pop("gain_1", None)
    return found


async def _figures(shared: SharedGpu, count: int, sizes: Sizes) -> dict[str, float]:
    await _until_whole(shared)
    await _load(shared, [None] * count, sizes.clients_s / 4)
    begun = perf_counter()
    taken = await _load(shared, [None] * count, 2 * sizes.clients_s)
    times = [end - start for start, end in taken]
    found = {
        f"rate_{count}": len(taken) / (perf_counter() - begun),
        f"p50_{count}": statistics.median(times) * 1e3,
        f"p99_{count}": _p99(times),
    }
    failovers, failing = [], []
    for _ in range(sizes.kills):
        away_s, others = await _kill(shared, count)
        failovers.append(away_s)
        failing += others
    found[f"failover_{count}"] = statistics.median(failovers) * 1e3
    if count > 1:
        found[f"failing_p99_{count}"] = _p99(failing)
    return found


async def _kill(shared: SharedGpu, count: int) -> tuple[float, list[float]]:
    """Kill worker 0 while the others are at work.

    Returns:
        Seconds until it has answered again, and those of the others' calls that were under way from the kill until its
        next standby was ready, whose start uses the GPU too.
    """
    await _until_whole(shared)
    over = asyncio.Event()
    others = [asyncio.create_task(_call(shared, device, over)) for device in range(1, count) for _ in range(IN_FLIGHT)]
    try:
        await asyncio.sleep(0.1)
        killed = perf_counter()
        os.kill(shared.pid(0), signal.SIGKILL)
        await shared.call(0)
        away_s = perf_counter() - killed
        await _until_whole(shared)
    finally:
        over.set()
        taken = [each for calls in await asyncio.gather(*others) for each in calls]
    return away_s, [end - start for start, end in taken if end > killed]


async def _load(shared: SharedGpu, devices: Iterable[int | None], seconds: float) -> list[tuple[float, float]]:
    """Call for a time, with `IN_FLIGHT` calls for each device; return when each call began and ended."""
    over = asyncio.Event()
    callers = [asyncio.create_task(_call(shared, device, over)) for device in devices for _ in range(IN_FLIGHT)]
    await asyncio.sleep(seconds)
    over.set()
    return [each for calls in await asyncio.gather(*callers) for each in calls]


async def _call(shared: SharedGpu, device: int | None, over: asyncio.Event) -> list[tuple[float, float]]:
    taken = []
    while not over.is_set():
        begun = perf_counter()
        await shared.call(device)
        taken.append((begun, perf_counter()))
    return taken


async def _until_whole(shared: SharedGpu) -> None:
    until = perf_counter() + READY_S
    while not shared.is_whole():
        if perf_counter() > until:
            raise TimeoutError(f"not all workers have a standby within {READY_S:g} s")
        await asyncio.sleep(LOOK_S)


def _p99(seconds: list[float]) -> float:
    """Return the 99th percentile, in milliseconds."""
    return sorted(seconds)[len(seconds) * 99 // 100] * 1e3
