"""Asynchronous methods whose worker, loop or reader ends: errors, suspects and hangs."""

from __future__ import annotations

import os
import signal
import time

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, wait_generation

AWAITER = f"{ACTORS}/awaiting.py:Awaiter"


def test_calls_that_awaited_when_their_worker_was_killed_are_lost_or_sent_again(ledger: Ledger) -> None:
    """Idempotent calls run again; streams end after the parts that have arrived, and go on if they are resumable."""
    with ledger.start(AWAITER) as pool, ledger.gate("gate") as gate:
        lost = [pool.call("Awaiter.wait", f"w{n}") for n in range(3)]
        again = pool.call("Awaiter.die", "kill", gate.path, True)
        stream = pool.stream("Awaiter.endless", "s", 2)
        assert [next(stream), next(stream)] == [0, 1]
        gate.wait()
        gate.open()
        for each in lost:
            error = each.exception(DEADLINE_S)
            assert isinstance(error, errors.WorkerLost)
            assert (error.was_running, error.maybe_executed) == (True, True)
        assert again.result(DEADLINE_S) == 2
        with pytest.raises(errors.WorkerLost) as caught:
            next(stream)
        assert caught.value.parts == 2
        assert list(pool.stream("Awaiter.count", 5)) == list(range(5))
        assert pool.call("Awaiter.add", 1, 1).result(DEADLINE_S) == 2


def test_a_resumable_stream_goes_on_on_the_next_loop(ledger: Ledger) -> None:
    """It goes on behind the parts that arrived; an idempotent stream without parts begins again."""
    with ledger.start(AWAITER) as pool:
        assert list(pool.stream("Awaiter.resumed", 40, 20)) == list(range(40))
        wait_generation(pool, 2)
    with ledger.start(AWAITER, run_dir="again") as pool:
        parts = list(pool.stream("Awaiter.again", 10, 0, "segv"))
        assert [n for _, n in parts] == list(range(10))
        assert {pid for pid, _ in parts} == {pool.devices[0].pid}


def test_a_resumable_stream_moves_on_before_a_restart_waits_for_it(ledger: Ledger) -> None:
    """Even while it awaits: its task is cancelled, and its reader notices nothing."""
    with ledger.start(AWAITER, drain_timeout_s=DEADLINE_S) as pool:
        stream = pool.stream("Awaiter.resumed", 30, -1, 0.02, ahead=4)
        assert [next(stream) for _ in range(10)] == list(range(10))
        pool.restart(0)
        assert list(stream) == list(range(10, 30))
        assert stream.generation == 2


def test_what_ends_workers_is_condemned_alone(ledger: Ledger) -> None:
    """All requests that ran with it are suspects, run alone, and are acquitted."""
    with ledger.start(AWAITER, max_suspicions=1, max_restarts=20) as pool, ledger.gate("gate") as gate:
        beside = [pool.call("Awaiter.die", "kill", gate.path, True) for _ in range(3)]
        gate.wait(3)
        deadly = pool.call("Awaiter.die", "segv")
        assert isinstance(deadly.exception(DEADLINE_S), errors.PoisonRequest)
        gate.open(3)
        assert all(each.result(DEADLINE_S) > 1 for each in beside)
        assert {each.request.method for each in pool.status().quarantined} == {"Awaiter.die"}
        assert len(pool.status().quarantined) == 1


def hang(pool: atomr_mp.Pool, how: str) -> None:
    """Hold up the loop by a call, or by a stream behind three parts."""
    if how == "block":
        pool.call("Awaiter.block").result(DEADLINE_S)
    else:
        list(pool.stream("Awaiter.blocking", 3))


@pytest.mark.parametrize("how", ["block", "blocking"])
def test_a_loop_that_stands_still_hangs(ledger: Ledger, how: str) -> None:
    """The method's own limit decides, and the error has the stack. A request that awaits does not hang."""
    with ledger.start(AWAITER) as pool:
        waits = pool.call("Awaiter.wait", "w")
        assert settled(lambda: "w-begun" in ledger.runs())
        time.sleep(1.5)  # more than its limit, in which its loop turns
        assert not waits.done
        with pytest.raises(errors.WorkerHung) as caught:
            hang(pool, how)
        assert caught.value.was_running
        assert how in caught.value.stack
        assert isinstance(waits.exception(DEADLINE_S), errors.WorkerHung)
        assert pool.call("Awaiter.add", 1, 1).result(DEADLINE_S) == 2


def test_a_task_that_does_not_end_though_it_was_told_to_hangs(ledger: Ledger) -> None:
    """Its limit counts from then on; otherwise it would keep its place for ever."""
    with ledger.start(AWAITER) as pool:
        deaf = pool.call("Awaiter.deaf", "d")
        assert settled(lambda: "d-begun" in ledger.runs())
        time.sleep(1.5)  # more than its limit: nobody has told it yet
        assert pool.devices[0].generation == 1
        deaf.cancel()
        wait_generation(pool, 2)
        assert isinstance(deaf.exception(DEADLINE_S), errors.Cancelled | errors.WorkerHung)
        late = pool.call("Awaiter.deaf", "l", deadline_s=3.0)  # within which it has to begin
        assert isinstance(late.exception(DEADLINE_S), errors.DeadlineExceeded)
        wait_generation(pool, 3)
        assert "l-deaf" in ledger.runs()


def test_a_client_that_is_killed_cancels_its_tasks(ledger: Ledger) -> None:
    """Calls and streams; their places are free again."""
    with ledger.start(AWAITER) as pool, ledger.program("awaiting_client", pool.run_dir) as client:
        assert client.hear() == ["reads"]
        assert settled(lambda: {"call-begun", "stream-waits"} <= set(ledger.runs()))
        os.kill(client.pid, signal.SIGKILL)
        assert settled(lambda: {"call-cancelled", "stream-cancelled"} <= set(ledger.runs()))
        assert settled(lambda: pool.status().devices[0].queue_depth == 0)


def test_a_restart_lets_calls_and_streams_end(ledger: Ledger) -> None:
    """The worker leaves when they have ended; then its own tasks are cancelled, and its `teardown` awaits."""
    with ledger.start(AWAITER, drain_timeout_s=DEADLINE_S) as pool:
        call, stream = pool.call("Awaiter.wait", "w", 0.5), pool.stream("Awaiter.count", 20, 0.02)
        assert next(stream) == 0
        pool.restart(0)
        assert call.result(DEADLINE_S) == "w"
        assert list(stream) == list(range(1, 20))
        wait_generation(pool, 2)
        assert settled(lambda: {"down-True", "engine-over"} <= set(ledger.runs()))
