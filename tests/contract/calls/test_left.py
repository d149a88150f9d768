"""Contract of streams, loops and threads that have gone: those that come next find room."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, PROBE, Gate, Ledger, settled

STREAMER = f"{ACTORS}/streaming.py:Streamer"
WINDOW = 32

LEFT: list[object] = []
"""Names streams, as a variable of an application does: the collector does not end them."""


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """Lend a pool that all tests of this file share."""
    with Ledger() as ledger, ledger.start(PROBE, STREAMER, window_requests=WINDOW) as pool:
        pool.wait_ready()
        yield pool
        LEFT.clear()


async def by_break(pool: atomr_mp.Pool) -> None:
    """Leave a stream after its first part, and its loop."""
    stream = pool.stream("Streamer.count", 10_000)
    LEFT.append(stream)
    async for _ in stream:
        break


async def by_cancelling(pool: atomr_mp.Pool) -> None:
    """Cancel a task that reads."""
    stream = pool.stream("Streamer.count", 10_000)
    LEFT.append(stream)

    async def read() -> None:
        async for _ in stream:
            await asyncio.sleep(0)

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def unread(pool: atomr_mp.Pool) -> None:
    """Read nothing of a stream, and wait for no call."""
    LEFT.append(pool.stream("Streamer.count", 10_000))
    LEFT.append([pool.call("Probe.echo", n) for n in range(2 * WINDOW)])


def abandoned(pool: atomr_mp.Pool) -> None:
    """Leave an unclosed loop, with a thread that ends."""
    loop = asyncio.new_event_loop()
    LEFT.append(loop)
    loop.run_until_complete(by_break(pool))


def in_thread(pool: atomr_mp.Pool) -> None:
    """Leave a thread's stream after its first part."""
    stream = pool.stream("Streamer.count", 10_000)
    LEFT.append(stream)
    next(stream)
    stream.close()


WAYS = {
    "break": lambda pool: asyncio.run(by_break(pool)),
    "cancel": lambda pool: asyncio.run(by_cancelling(pool)),
    "unread": lambda pool: asyncio.run(unread(pool)),
    "abandoned": abandoned,
    "thread": in_thread,
}


async def echoed(pool: atomr_mp.Pool) -> int:
    """Make a call of a loop."""
    answer: int = await pool.call("Probe.echo", 1)
    return answer


def open_streams(pool: atomr_mp.Pool) -> int:
    """Return how many streams the worker has."""
    return sum(worker.queue_depth for worker in pool.status().devices)


@hypothesis.settings(max_examples=6)
@hypothesis.given(ways=st.lists(st.sampled_from(sorted(WAYS)), min_size=20, max_size=30))
def test_whatever_loops_and_threads_leave_the_next_ones_are_served(pool: atomr_mp.Pool, ways: list[str]) -> None:
    """However many there were; and the worker keeps nothing of it."""
    for way in ways:
        thread = threading.Thread(target=WAYS[way], args=(pool,))
        thread.start()
        thread.join(DEADLINE_S)
    assert asyncio.run(echoed(pool)) == pool.call("Probe.echo", 1).result() == 1
    assert settled(lambda: open_streams(pool) == 0)
    for loop in [each for each in LEFT if isinstance(each, asyncio.AbstractEventLoop)]:
        loop.close()
    LEFT.clear()


def test_replies_of_a_loop_that_was_closed_end(pool: atomr_mp.Pool, tmp_path: Path) -> None:
    """With an error that says why, for whoever still has them."""
    gate = Gate(tmp_path / "gate")

    async def use() -> list[atomr_mp.Reply]:
        return [pool.call("Probe.hold", gate.path), *(pool.call("Probe.echo", n) for n in range(2 * WINDOW))]

    with contextlib.closing(gate), gate:
        replies = asyncio.run(use())
        assert settled(lambda: all(reply.done for reply in replies))
    found = [reply.exception() for reply in replies]
    assert {type(error) for error in found} <= {errors.Cancelled, type(None)}
    assert any("the event loop" in str(error) for error in found)


def test_a_pool_whose_streams_were_left_closes_at_once(ledger: Ledger) -> None:
    """It does not wait for readers that have gone, as long as it would wait for requests."""
    with ledger.start(PROBE, STREAMER, drain_timeout_s=10 * DEADLINE_S) as pool:
        pool.wait_ready()
        for way in WAYS.values():
            thread = threading.Thread(target=way, args=(pool,))
            thread.start()
            thread.join(DEADLINE_S)
        asyncio.run(by_break(pool))
        until = time.monotonic() + DEADLINE_S
    assert time.monotonic() < until, "it has waited"
    for loop in [each for each in LEFT if isinstance(each, asyncio.AbstractEventLoop)]:
        loop.close()
    LEFT.clear()


def test_more_requests_of_a_library_than_the_window_holds_wait_here(pool: atomr_mp.Pool) -> None:
    """In a thread that reads no answers meanwhile, in their order; also when they are never waited for."""
    device = pool.device(0)
    total = device.zeros(1)
    one = device.full(1, 1.0)
    replies = [device.elementwise.add(total, one, out=total) for _ in range(10 * WINDOW)]
    assert settled(lambda: all(reply.done for reply in replies))
    assert [reply.exception() for reply in replies] == [None] * len(replies)
    np.testing.assert_array_equal(total.numpy(), [10.0 * WINDOW])


def test_answers_that_have_come_make_room_for_a_thread_s_calls(pool: atomr_mp.Pool) -> None:
    """It need not read them first."""
    for round_ in range(3):
        answered = pool.status().devices[0].completed + WINDOW
        replies = [pool.call("Probe.echo", n) for n in range(WINDOW)]
        assert settled(lambda due=answered: pool.status().devices[0].completed >= due)  # type: ignore[misc]
        assert pool.call("Probe.echo", round_).result() == round_
        assert all(reply.done for reply in replies)
