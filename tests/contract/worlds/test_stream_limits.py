"""Streams of a world at their limits: too many of them, one without a reader, and the end of the pool."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.worlds import on_host, start

STREAMING = f"{ACTORS}/streaming_worldly.py:Streaming"

pytestmark = on_host


def test_a_stream_beyond_the_limit_is_refused_or_waits(ledger: Ledger) -> None:
    """With `wait` it is opened once another one has ended on all ranks."""
    with start(ledger, STREAMING, max_streams=1) as pool:
        world = pool.world("tp")
        first = world.stream("Streaming.numbers", 5, ahead=1)
        with pytest.raises(errors.Overloaded, match="opened on no rank"):
            world.stream("Streaming.numbers", 5)
        found: list[list[float]] = []
        waiting = threading.Thread(
            target=lambda: found.append(list(world.stream("Streaming.numbers", 3, wait=True, deadline_s=DEADLINE_S)))
        )
        waiting.start()
        assert list(first) == [3.0 * number for number in range(5)]
        waiting.join(DEADLINE_S)
        assert found == [[0.0, 3.0, 6.0]]


def test_a_limit_that_one_rank_alone_has_reached_ends_the_stream_on_all(ledger: Ledger) -> None:
    """Other clients' streams count there too."""
    with start(ledger, STREAMING, max_streams=1) as pool, atomr_mp.connect(run_dir=pool.run_dir) as other:
        world = pool.world("tp")
        first = world.stream("Streaming.numbers", 5, ahead=1)
        assert next(first) == 0.0
        with pytest.raises(errors.Overloaded, match="max_streams"):
            list(other.world("tp").stream("Streaming.count", "refused", 5))
        assert list(first) == [3.0 * number for number in range(1, 5)]
        assert list(other.world("tp").stream("Streaming.numbers", 3)) == [0.0, 3.0, 6.0]


def test_a_stream_that_nobody_reads_is_ended_on_all_ranks(ledger: Ledger) -> None:
    """After `stall_s`; its parts can still be read."""
    with start(ledger, STREAMING, stall_s=1.0) as pool:
        world = pool.world("tp")
        stream = world.stream("Streaming.count", "stalled", 100, ahead=3)
        assert settled(lambda: all(["stalled", "closed"] in log for log in noted(world)))
        seen: list[float] = []
        with pytest.raises(errors.DeadlineExceeded, match="stall_s"):
            seen.extend(stream)
        assert seen == [0.0, 3.0, 6.0]


def test_a_pool_that_closes_ends_its_streams(ledger: Ledger) -> None:
    """Their readers get `PoolLost` at once."""
    pool = start(ledger, STREAMING)
    stream = pool.world("tp").stream("Streaming.count", "closing", 1000, ahead=2)
    assert next(stream) == 0.0
    pool.close()
    with pytest.raises(errors.PoolLost):
        list(stream)


def test_a_world_that_is_not_ready_lets_a_stream_wait(ledger: Ledger) -> None:
    """It is read once there is an epoch, and a deadline says why it was not."""
    worlds = {"tp": {"devices": [0, 1], "actors": ["Streaming"]}}
    with ledger.start(STREAMING, gpus=2, worlds=worlds) as pool:
        assert list(pool.world("tp").stream("Streaming.numbers", 3, first_s=DEADLINE_S)) == [0.0, 3.0, 6.0]


def noted(world: Any) -> list[list[Any]]:
    """Return what the ranks have noted, by rank."""
    found: list[list[Any]] = world.call("Streaming.noted", each=True, deadline_s=DEADLINE_S).result()
    return found
