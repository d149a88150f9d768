"""Streams whose worker, reader or pool ends: what arrived is delivered, in order, once; then the end is reported."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, local_client, parts_of, settled, wait_generation, wait_until

STREAMER = f"{ACTORS}/streaming.py:Streamer"


@pytest.mark.parametrize(("how", "standby"), [("kill", "none"), ("exit", "hot"), ("segv", "hot")])
def test_before_its_first_part_an_idempotent_stream_is_sent_again(ledger: Ledger, how: str, standby: str) -> None:
    """Unnoticed by its reader, to the next worker or the standby; all parts are of one of them."""
    with ledger.start(STREAMER, standby=standby) as pool:
        if standby == "hot":
            assert settled(lambda: pool.devices[0].standby is not None)
        parts, error = parts_of(pool.stream("Streamer.again", 20, "a", "", 0, how))
        assert error is None
        assert [n for _, n in parts] == list(range(20))
        assert len({pid for pid, _ in parts}) == 1
    assert ledger.runs() == ["a-begun", "a-begun"]


@pytest.mark.parametrize(("how", "at"), [("kill", 1), ("segv", 5), ("exit", 19)])
def test_between_parts_a_worker_s_end_is_told_after_what_arrived(ledger: Ledger, how: str, at: int) -> None:
    """It is never sent again, though it is idempotent: whoever has a part would get it twice."""
    with ledger.start(STREAMER) as pool, ledger.gate("gate") as gate:
        stream = pool.stream("Streamer.again", 20, "a", gate.path, at, how, ahead=20)
        gate.wait()
        # Those that were yielded before a long step arrive while it goes on.
        assert [next(stream)[1] for _ in range(at)] == list(range(at))
        gate.open()
        parts, error = parts_of(stream)
        assert parts == []
        assert isinstance(error, errors.WorkerLost)
        assert (error.parts, error.maybe_executed, error.was_running) == (at, True, True)
        assert parts_of(pool.stream("Streamer.count", 3)) == ([0, 1, 2], None)
    assert ledger.runs() == ["a-begun"]


def test_a_stream_that_stands_still_is_no_suspect(ledger: Ledger) -> None:
    """Between steps nothing of it runs; what ran is suspected alone."""
    with ledger.start(STREAMER, max_suspicions=1) as pool:
        stream = pool.stream("Streamer.endless", "still", ahead=4)
        assert next(stream) == 0
        doomed = pool.stream("Streamer.doomed", 1, 0, "segv")
        assert isinstance(parts_of(doomed)[1], errors.PoisonRequest | errors.WorkerLost)
        parts, error = parts_of(stream)
        assert parts == [1, 2, 3, 4][: len(parts)]
        assert isinstance(error, errors.WorkerLost)
        assert (error.maybe_executed, error.was_running) == (True, False)
        assert error.parts == 1 + len(parts)
        assert {each.request.method for each in pool.status().quarantined} <= {"Streamer.doomed"}


@pytest.mark.parametrize("how", ["exit", "segv"])
def test_what_ends_workers_before_its_first_part_is_poison(ledger: Ledger, how: str) -> None:
    """It is condemned when it has died alone; other streams are served meanwhile."""
    with ledger.start(STREAMER, max_suspicions=2) as pool:
        parts, error = parts_of(pool.stream("Streamer.deadly", how))
        assert (parts, type(error)) == ([], errors.PoisonRequest)
        assert error is not None
        assert error.parts == 0
        with pytest.raises(errors.PoisonRequest):
            pool.stream("Streamer.deadly", how)
        assert parts_of(pool.stream("Streamer.count", 3)) == ([0, 1, 2], None)
        assert parts_of(pool.stream("Streamer.again", 3, "ok"))[1] is None


def test_a_suspect_stream_is_acquitted_by_its_first_part(ledger: Ledger) -> None:
    """Though it goes on for long: while it runs alone others pause, and then all go on."""
    with ledger.start(STREAMER, max_suspicions=2) as pool, ledger.gate("gate") as gate:
        stream = pool.stream("Streamer.again", 50, "a", gate.path, 0, "kill", ahead=4)
        gate.wait()
        gate.open()
        assert next(stream)[1] == 0
        beside = pool.stream("Streamer.count", 50, ahead=4)
        for n in range(49):
            assert next(beside) == n
            assert next(stream)[1] == n + 1
        assert pool.call("Streamer.where").result(DEADLINE_S) == pool.devices[0].pid
        wait_until(pool, lambda: not local_client(pool).suspicions.methods)


def test_begun_streams_pause_while_a_suspect_runs_alone(ledger: Ledger) -> None:
    """They go on afterwards, none the worse."""
    with ledger.start(STREAMER, max_suspicions=2) as pool, ledger.gate("gate") as gate:
        stream = pool.stream("Streamer.again", 5, "a", gate.path, 0, "segv")
        gate.wait()
        beside = [pool.stream("Streamer.endless", f"{n}", ahead=2) for n in range(3)]
        gate.open()
        assert parts_of(stream)[1] is None
        later = [pool.stream("Streamer.endless", f"{n}", ahead=2) for n in range(3)]
        for each in later:
            assert [next(each) for _ in range(10)] == list(range(10))
        for each in (*beside, *later):
            each.close()


def test_a_hang_in_a_step_ends_the_stream_after_what_arrived(ledger: Ledger) -> None:
    """The error has the stack; a stream that waits for its reader does not hang."""
    with ledger.start(STREAMER) as pool:
        still = pool.stream("Streamer.endless", "still", ahead=2)
        assert next(still) == 0
        parts, error = parts_of(pool.stream("Streamer.hanging", 7))
        assert parts == list(range(7))
        assert isinstance(error, errors.WorkerHung)
        assert (error.parts, error.was_running) == (7, True)
        assert "hanging" in error.stack
        ended = parts_of(still)[1]
        assert isinstance(ended, errors.WorkerHung)
        assert not ended.was_running


def test_a_stream_without_credit_is_not_taken_for_hung(ledger: Ledger) -> None:
    """However long its reader lets it wait, beside the limit of its method."""
    with ledger.start(STREAMER) as pool:
        stream = pool.stream("Streamer.hanging", 100, ahead=4)
        assert next(stream) == 0
        pid = pool.devices[0].pid
        time.sleep(2.5)  # more than twice the method's limit
        assert next(stream) == 1
        assert pool.devices[0].pid == pid
        stream.close()


@pytest.mark.parametrize("how", ["kill", "close"])
def test_the_streams_of_a_client_that_ends_are_closed(ledger: Ledger, how: str) -> None:
    """Their generators are closed, whatever credit they had, and their memory is free."""
    program = textwrap.dedent(
        f"""
        import os, sys, atomr_mp
        pool = atomr_mp.connect(run_dir=sys.argv[1])
        pool.wait_ready()
        streams = [pool.stream("Streamer.endless", str(n), ahead=1 + n) for n in range(20)]
        print(*[next(stream) for stream in streams], flush=True)
        sys.stdin.readline()
        pool.close() if {how == "close"} else os.kill(os.getpid(), 9)
        """
    )
    with ledger.start(STREAMER) as pool:
        with subprocess.Popen(
            [sys.executable, "-c", program, str(pool.run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            assert client.stdout.readline().split() == ["0"] * 20
            client.stdin.write("\n")
            client.stdin.flush()
            client.wait(DEADLINE_S)
        assert settled(lambda: len(ledger.runs()) == 20)
        assert all("closed-True" in line for line in ledger.runs())
        assert parts_of(pool.stream("Streamer.count", 3)) == ([0, 1, 2], None)


def test_a_supervisor_s_end_is_told_after_what_arrived(ledger: Ledger) -> None:
    """It is reported as the end of the pool."""
    with ledger.start(STREAMER) as pool, ledger.gate("gate") as gate:
        stream = pool.stream("Streamer.held", gate.path, 3)
        gate.wait()
        assert [next(stream) for _ in range(3)] == [0, 1, 2]
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        parts, error = parts_of(stream)
        assert parts == []
        assert isinstance(error, errors.PoolLost)
        assert error.parts == 3
    with ledger.start(STREAMER) as pool:  # which cleans up
        assert parts_of(pool.stream("Streamer.count", 3)) == ([0, 1, 2], None)


def test_streams_in_an_event_loop_end_with_their_worker(ledger: Ledger) -> None:
    """A hundred of them, each after its own parts; and a hundred new ones are served at once."""

    async def one(pool: atomr_mp.Pool, number: int) -> tuple[list[int], errors.AtomrError | None]:
        parts: list[int] = []
        try:
            async with pool.stream("Streamer.endless", f"{number}", ahead=2) as stream:
                async for part in stream:
                    parts.append(part)
                    if part == 5:
                        started.add(number)
                        if len(started) == 100:
                            all_started.set()
        except errors.AtomrError as error:
            return parts, error
        return parts, None

    async def use() -> None:
        tasks = [asyncio.create_task(one(pool, number)) for number in range(100)]
        await asyncio.wait_for(all_started.wait(), DEADLINE_S)
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        for parts, error in await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S):
            assert parts == list(range(len(parts)))
            assert isinstance(error, errors.WorkerLost)
            assert error.parts == len(parts)
        streams = [pool.stream("Streamer.count", 5) for _ in range(100)]
        assert [[part async for part in stream] for stream in streams] == [list(range(5))] * 100

    started: set[int] = set()
    all_started = asyncio.Event()
    with ledger.start(STREAMER) as pool:
        asyncio.run(use())


def test_a_stream_ends_on_time_where_its_worker_is_stopped(ledger: Ledger) -> None:
    """Nothing answers, and the reader's own deadlines hold."""
    with ledger.start(STREAMER) as pool:
        stream = pool.stream("Streamer.slow", 100, 0.01, between_s=0.3)
        assert next(stream) == 0
        pid = pool.devices[0].pid
        os.kill(pid, signal.SIGSTOP)
        parts, error = parts_of(stream)
        assert isinstance(error, errors.DeadlineExceeded)
        assert error.parts == 1 + len(parts)
        os.kill(pid, signal.SIGCONT)
        assert parts_of(pool.stream("Streamer.count", 3)) == ([0, 1, 2], None)


def test_a_planned_end_that_takes_too_long_ends_streams(ledger: Ledger) -> None:
    """They end after the time that a worker has to finish."""
    with ledger.start(STREAMER, drain_timeout_s=0.5) as pool:
        stream = pool.stream("Streamer.endless", "x", ahead=2)
        assert next(stream) == 0
        generation = pool.devices[0].generation
        pool.restart(0)
        wait_generation(pool, generation + 1)
        parts, error = parts_of(stream)
        assert isinstance(error, errors.WorkerLost)
        assert error.parts == 1 + len(parts)
