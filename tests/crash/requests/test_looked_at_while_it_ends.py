from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, Ledger, in_loop

STREAMER = f"{ACTORS}/streaming.py:Streamer"


@pytest.mark.parametrize("way", ["done", "has_part", "text"])
def test_a_loop_that_looks_learns_of_a_worker_s_end(ledger: Ledger, way: str) -> None:
    """The look that hears of it takes the news in: the loop stands still at no lock of its own, and the reply ends."""

    async def looked(pool: atomr_mp.Pool) -> None:
        stream = pool.stream("Streamer.count", 10**6, ahead=4)
        await anext(stream)
        looks: dict[str, Callable[[], object]] = {
            "done": lambda: stream.done,
            "has_part": lambda: stream.has_part,
            "text": lambda: repr(stream),
        }
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        while pool.devices[0].generation == 1 or not stream.done:
            looks[way]()
            await asyncio.sleep(0)  # `in_loop` ends what does not come
        with pytest.raises(errors.WorkerLost):
            [part async for part in stream]

    with ledger.start(STREAMER) as pool:
        in_loop(lambda: looked(pool))
