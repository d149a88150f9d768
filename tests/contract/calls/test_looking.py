"""Contract of looking: whoever asks sees what has arrived, without waiting for it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests import remote
from tests.support import ACTORS, PROBE, Ledger, hurry, in_loop, settled

STREAMER = f"{ACTORS}/streaming.py:Streamer"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """Lend a pool that all tests of this file share."""
    with Ledger() as ledger, ledger.start(PROBE, STREAMER) as pool:
        pool.wait_ready()
        yield ledger, pool


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> atomr_mp.Pool:
    """Return the shared pool."""
    return shared[1]


def test_a_reply_is_done_once_its_answer_has_come_though_nobody_waits(pool: atomr_mp.Pool) -> None:
    """Also those of libraries, and many at a time; their text says so too."""
    device = pool.device(0)
    square = device.put(np.eye(3))
    replies = [pool.call("Probe.echo", n) for n in range(40)] + [device.blas.gemm(square, square)]
    assert settled(lambda: all(reply.done for reply in replies))
    single = pool.call("Probe.echo", 1)
    assert settled(lambda: repr(single).endswith(": done>"))


def test_a_thread_that_looks_wakes_those_that_wait(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Who looks may receive the answers of all; callbacks run, too."""
    called: list[int] = []
    with notes.gate("looked") as gate:
        held = pool.call("Probe.hold", gate.path)
        gate.wait()
        held.add_done_callback(lambda reply: called.append(reply.id))
        assert not held.done
        gate.open()
        assert settled(lambda: held.done and bool(called))


def test_a_reply_of_an_event_loop_is_done_though_the_loop_does_not_turn(pool: atomr_mp.Pool) -> None:
    """In the loop's own thread, which holds the loop up; and while it turns for others."""

    async def use() -> None:
        replies = [pool.call("Probe.echo", n) for n in range(20)]
        assert settled(lambda: all(reply.done for reply in replies))
        last = pool.call("Probe.echo", -1)
        while not last.done:  # noqa: ASYNC110 - asking again and again is what is tested
            await asyncio.sleep(0)
        assert [await reply for reply in replies] == list(range(20))

    in_loop(use)


def test_a_wait_of_no_time_is_a_look(pool: atomr_mp.Pool) -> None:
    """`result` and `exception` take in what has arrived, before they say that nothing has."""
    replies = [pool.call("Probe.echo", n) for n in range(3)]

    def answered(ask: Callable[[], object]) -> bool:
        try:
            ask()
        except TimeoutError:
            return False
        return True

    assert settled(lambda: answered(lambda: replies[0].result(0)))
    assert settled(lambda: answered(lambda: replies[1].exception(0)))
    stream = pool.stream("Streamer.count", 0)
    assert settled(lambda: answered(lambda: stream.result(0)))


def test_a_reply_that_is_late_is_done_by_its_deadline(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """It takes no waiting."""
    with notes.gate("late") as gate:
        held = pool.call("Probe.hold", gate.path)
        gate.wait()
        late = pool.call("Probe.echo", 1)
        assert not late.done
        hurry(late)
        assert settled(lambda: late.done)
        assert isinstance(late.exception(0), errors.DeadlineExceeded)
        gate.open()
        assert held.result() == 1


def test_a_stream_shows_its_parts_and_its_end(pool: atomr_mp.Pool) -> None:
    """Before anybody reads it."""
    stream = pool.stream("Streamer.count", 3)
    assert settled(lambda: stream.has_part)
    assert settled(lambda: stream.done)
    assert list(stream) == [0, 1, 2]


def test_devices_and_the_pool_show_what_the_supervisor_has_told(ledger: Ledger) -> None:
    """A device's text, after its worker has ended, and the pool's end, after its supervisor has."""
    with ledger.start() as pool:
        device = pool.device(0)
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        assert settled(lambda: "ready, generation 2" in repr(device))
        assert pool.lost is None
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        assert settled(lambda: pool.lost is not None)
        with pytest.raises(errors.PoolLost):
            pool.call("Probe.missing")
    ledger.start().close()  # the next start removes what a killed supervisor has left


def test_a_remote_client_s_reply_is_done_once_its_answer_has_come(ledger: Ledger) -> None:
    """By a look, and by its deadline."""
    serving = remote.serve(ledger)
    with serving.pool, serving.connect() as pool:
        pool.wait_ready()
        reply = pool.call("Probe.echo", 1)
        assert settled(lambda: reply.done)
        with ledger.gate("held") as gate:
            held = pool.call("Probe.hold", gate.path)
            gate.wait()
            late = pool.call("Probe.echo", 2)
            hurry(late)
            assert settled(lambda: late.done)
            assert not held.done
            gate.open()
            assert settled(lambda: held.done)
