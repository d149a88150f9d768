"""Small echoes with a window of calls in flight: a new one is sent when the oldest is answered."""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Any

from benchmarks.contestant import AsyncClient, Client, Contestant
from benchmarks.sizes import Sizes


def throughput(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Measure a blocking client, then an asyncio client if there is one."""
    contestant.start(1)
    client = contestant.connect()
    payload = bytes(sizes.payload_bytes)
    flood(client, payload, sizes.warm_up, sizes.window)
    begun = perf_counter()
    flood(client, payload, sizes.flight_calls, sizes.window)
    found = {"flight": sizes.flight_calls / (perf_counter() - begun)}
    rate = asyncio.run(_asyncio_rate(contestant, payload, sizes))
    return found | {"async_flight": rate} if rate else found


def flood(client: Client, payload: bytes, calls: int, window: int) -> None:
    """Have so many calls answered."""
    submit, take = client.submit, client.take
    flight: deque[Any] = deque()
    for _ in range(calls):
        if len(flight) >= window:
            take(flight.popleft())
        flight.append(submit(payload))
    while flight:
        take(flight.popleft())


async def _asyncio_rate(contestant: Contestant, payload: bytes, sizes: Sizes) -> float:
    client = contestant.connect_async()
    if client is None:
        return 0.0
    await _asyncio_flood(client, payload, sizes.warm_up, sizes.window)
    begun = perf_counter()
    calls = await _asyncio_flood(client, payload, sizes.flight_calls, sizes.window)
    return calls / (perf_counter() - begun)


async def _asyncio_flood(client: AsyncClient, payload: bytes, calls: int, window: int) -> int:
    """Have about so many calls answered, by as many tasks as the window is large; return how many it were."""

    async def task() -> None:
        for _ in range(each):
            await client.echo(payload)

    each = max(1, calls // window)
    async with asyncio.TaskGroup() as group:
        for _ in range(window):
            group.create_task(task())
    return each * window
