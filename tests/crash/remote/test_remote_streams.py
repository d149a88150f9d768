"""Remote streams through cuts and kills: parts are delivered in order, once; then the end, or a typed error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.tunnel.client import CarriedClient
from tests import remote as served
from tests.crash.remote.test_remote_lost import connect, through
from tests.crash.requests.test_resume import RESUMER, TEXT, spelled
from tests.support import ACTORS, DEADLINE_S, Ledger, local_client, parts_of, settled
from tests.tcp_proxy import Proxy

STREAMER = f"{ACTORS}/streaming.py:Streamer"
CREW = f"{ACTORS}/streaming.py:Crew"
ROUNDS = int(os.environ.get("ATOMR_MP_TEST_ROUNDS", "3"))
"""Rounds of the test under cuts; hours by a larger number."""

PARTS = 500


def test_cuts_at_any_byte_lose_and_repeat_nothing(ledger: Ledger) -> None:
    """While many streams are read at different speeds; and each ends."""
    rng = random.Random(25)
    found = served.serve(ledger, STREAMER)
    cuts = 0

    async def one(pool: atomr_mp.Pool, ahead: int) -> list[int]:
        stream = pool.stream("Streamer.count", PARTS, ahead=ahead, between_s=DEADLINE_S)
        parts = [part async for part in stream]
        assert await stream == sum(range(PARTS))
        return parts

    async def use(pool: atomr_mp.Pool, proxy: Proxy) -> None:
        nonlocal cuts
        tasks = [asyncio.create_task(one(pool, ahead)) for ahead in (1, 7, 16, 300)]
        reading = set(tasks)
        while reading:
            if proxy.cut_after is None:
                proxy.cut_after, cuts = rng.randrange(1, 30_000), cuts + 1
            _, reading = await asyncio.wait(reading, timeout=0.01)
        assert [task.result() for task in tasks] == [list(range(PARTS))] * 4

    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        pool.wait_ready()
        for _ in range(ROUNDS):
            asyncio.run(asyncio.wait_for(use(pool, proxy), 2 * DEADLINE_S))
            proxy.heal()
        assert pool.call("Streamer.one").result(DEADLINE_S) == 1
        remote = found.pool.status().remote
        assert remote is not None
        assert remote.restarts == 0
        assert cuts > ROUNDS
        assert settled(lambda: [each.kept_bytes < 2**20 for each in found.sessions] == [True], DEADLINE_S)


def test_large_parts_and_refs_survive_cuts(ledger: Ledger) -> None:
    """Parts in chunks keep their places among others, and each ref is there once and is freed."""
    found = served.serve(ledger, STREAMER)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        pool.wait_ready()
        for number, part in enumerate(pool.stream("Streamer.arrays", 20, 200_000, ahead=6)):
            np.testing.assert_array_equal(part, np.full(200_000, number, np.float32))
            if number % 4 == 1:
                proxy.cut_after = 300_000
            if number % 4 == 3:
                proxy.cut()
        array = np.arange(1000, dtype=np.float32)
        ref = pool.device().put(array)
        for number, each in enumerate(pool.stream("Streamer.refs", ref, 12, ahead=3)):
            if number % 3 == 1:
                proxy.cut()
            np.testing.assert_array_equal(each.numpy(), array + number)
            each.free()
        ref.free()
        assert settled(lambda: found.pool.status().devices[0].leases == 0, DEADLINE_S)


@pytest.mark.parametrize("lost", [{"up", "down"}, {"down"}, set()], ids=["both ways", "parts", "nothing"])
def test_the_leases_of_parts_on_their_way_are_freed_with_their_stream(ledger: Ledger, lost: set[str]) -> None:
    """Whether the client's word that it gives the stream up arrives before a cut, and whether the parts come late."""
    found = served.serve(ledger, STREAMER)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        pool.wait_ready()
        array = np.arange(1000, dtype=np.float32)
        ref = pool.device().put(array)
        proxy.stalled = {"down"}
        stream = pool.stream("Streamer.refs", ref, 12, ahead=3)
        assert settled(lambda: _leases(found) == 4, DEADLINE_S)
        proxy.stalled |= lost
        stream.close()
        if lost:
            proxy.cut()
        proxy.heal()
        other = pool.device().put(array)
        np.testing.assert_array_equal(ref.numpy(), array)
        assert settled(lambda: _leases(found) == 2, DEADLINE_S)
        other.free()
        ref.free()
        assert settled(lambda: found.pool.status().devices[0].leases == 0, DEADLINE_S)


def test_a_stream_outlives_the_relay_if_it_can(ledger: Ledger) -> None:
    """A resumable stream goes on; others get an exact error."""
    found = served.serve(ledger, STREAMER, RESUMER)
    with found.pool, found.connect() as pool, ledger.gate("gate") as gate:
        pool.wait_ready()
        begun = pool.stream("Streamer.count", 1000, ahead=8)
        counted = pool.stream("Resumer.count", 40, -1, "", ahead=4)
        said = pool.stream("Resumer.spell", TEXT, -1, "", ahead=4)
        wide = pool.stream("Resumer.count", 30, -1, "x" * 200_000, ahead=4)
        large = pool.stream("Resumer.large", 8, 100_000, -1, ahead=2)
        assert [next(wide) for _ in range(5)] == list(range(5))
        assert [next(large) for _ in range(4)] == [bytes(100_000)] * 4
        assert [next(begun) for _ in range(3)] == [0, 1, 2]
        assert [next(counted) for _ in range(5)] == list(range(5))
        assert [next(said) for _ in range(5)] == spelled(TEXT)[:5]
        held = pool.stream("Streamer.held", gate.path, 0)
        gate.wait()  # the streamer's thread is busy from now on
        os.kill(found.pid, signal.SIGKILL)
        parts, error = parts_of(begun)
        assert parts == list(range(3, 3 + len(parts)))
        assert isinstance(error, errors.ConnectionLost)
        assert (error.maybe_executed, error.parts) == (True, 3 + len(parts))
        gate.open()
        parts, error = parts_of(held)
        assert parts == []
        assert isinstance(error, errors.ConnectionLost)
        assert error.maybe_executed
        assert parts_of(counted) == (list(range(5, 40)), None)
        assert counted.result() == 40
        assert parts_of(said) == (spelled(TEXT)[5:], None)
        assert parts_of(wide) == (list(range(5, 30)), None)
        assert parts_of(large) == ([bytes(100_000)] * 4, None)
        assert local_client(pool).sent_room._bytes == 0
    withs = [line for line in ledger.runs() if line.startswith(("with-", "from-"))]
    assert len(withs) == 6
    assert {"with-0", "from-0"} <= set(withs)


@pytest.mark.parametrize("known", [True, False])
def test_a_client_that_is_away_does_not_hold_up_the_pool_s_stop(ledger: Ledger, *, known: bool) -> None:
    """Its streams end, whether the relay knows before that it is away, or finds out meanwhile."""
    found = served.serve(ledger, STREAMER, drain_timeout_s=20 * DEADLINE_S)
    with contextlib.ExitStack() as way, connect(found, way.enter_context(through(found))) as pool:
        stream = pool.stream("Streamer.endless", "x", ahead=2)
        assert next(stream) == 0
        way.close()  # nobody can connect any more
        if known:
            assert settled(lambda: [each.connected for each in found.sessions] == [False], DEADLINE_S)
        stopping = threading.Thread(target=found.pool.close)
        stopping.start()
        stopping.join(DEADLINE_S)
        assert not stopping.is_alive()


def test_a_worker_s_death_is_the_relay_s_matter(ledger: Ledger) -> None:
    """As for a local client: a resumable stream goes on, another ends with a typed error."""
    found = served.serve(ledger, STREAMER, RESUMER)
    with found.pool, found.connect() as pool:
        pool.wait_ready()
        said = pool.stream("Resumer.spell", TEXT, 9, "kill", ahead=5)
        begun = pool.stream("Streamer.endless", "x", ahead=3)
        assert next(begun) == 0
        assert parts_of(said) == (spelled(TEXT), None)
        parts, error = parts_of(begun)
        assert parts == list(range(1, 1 + len(parts)))
        assert type(error) is errors.WorkerLost
        assert error.parts == 1 + len(parts)
        assert said.generation == 2


def test_a_cut_behind_the_end_loses_nothing(ledger: Ledger) -> None:
    """The relay keeps the last parts and the end until the client has them, and a client that is back gets them."""
    found = served.serve(ledger, STREAMER)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool, ledger.gate("end") as gate:
        pool.wait_ready()
        stream = pool.stream("Streamer.held", gate.path, 4)
        assert [next(stream) for _ in range(4)] == [0, 1, 2, 3]
        gate.wait()
        proxy.stalled = {"down"}
        gate.open()
        assert settled(lambda: "over" in ledger.runs())
        assert settled(lambda: found.pool.status().devices[0].queue_depth == 0, DEADLINE_S)
        proxy.heal()
        proxy.cut()
        assert parts_of(stream) == ([4], None)
        assert stream.result() is None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_reader_s_generator_is_closed(ledger: Ledger, how: signal.Signals) -> None:
    """Once its grace time is over; until then it waits for credit, and costs its granted credit."""
    found = served.serve(ledger, STREAMER, remote_grace_s=0.5)
    code = (
        "import sys, signal, atomr_mp\n"
        "pool = atomr_mp.connect(sys.argv[1], keys=sys.argv[2])\n"
        "stream = pool.stream('Streamer.endless', 'dead', 1000)\n"
        "print(len(next(stream)), flush=True)\n"
        "signal.pause()\n"
    )
    with found.pool, served.client_process(found, code, "1000") as client:
        client.send_signal(how)
        assert settled(lambda: bool(ledger.runs()), DEADLINE_S)
        assert ledger.runs()[0].startswith("dead-closed-True")


@pytest.mark.parametrize("how", ["short", "cut"])
def test_a_relay_that_stands_still_in_the_midst_costs_time_only(ledger: Ledger, how: str) -> None:
    """Also if both ends take its silence for a cut: afterwards each stream goes on with the part that comes next."""
    found = served.serve(ledger, STREAMER, CREW, RESUMER)
    with found.pool, found.connect() as pool, ledger.gate("gate") as gate:
        pool.wait_ready()
        client, pid = pool._client, found.pid
        assert isinstance(client, CarriedClient)
        begun = pool.stream("Crew.count", 1000, ahead=8)
        said = pool.stream("Resumer.spell", TEXT, -1, "", ahead=3)
        held = pool.stream("Streamer.held", gate.path, 2)
        assert [next(begun) for _ in range(20)] == list(range(20))
        assert [next(said) for _ in range(5)] == spelled(TEXT)[:5]
        assert [next(held), next(held)] == [0, 1]
        gate.wait()
        os.kill(pid, signal.SIGSTOP)
        try:
            gate.open()
            assert settled(lambda: "over" in ledger.runs())  # the worker goes on; the end is on its way
            assert not held.done
            if how == "cut":
                assert settled(lambda: not client.connected, DEADLINE_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert parts_of(held) == ([2], None)
        assert parts_of(begun) == (list(range(20, 1000)), None)
        assert parts_of(said) == (spelled(TEXT)[5:], None)
        remote = found.pool.status().remote
        assert remote is not None
        assert (remote.pid, remote.restarts) == (pid, 0)
    assert [line for line in ledger.runs() if line.startswith("with-")] == ["with-0"]


def test_a_remote_stream_that_nobody_reads_ends(ledger: Ledger) -> None:
    """The pool's `stall_s` ends it, after the parts that have arrived; a stream that is read slowly goes on."""
    found = served.serve(ledger, STREAMER, stall_s=0.3)
    with found.pool, found.connect() as pool:
        pool.wait_ready()
        stream = pool.stream("Streamer.endless", "stalled", ahead=3)
        assert settled(lambda: any(line.startswith("stalled-closed") for line in ledger.runs()))
        parts, error = parts_of(stream)
        assert parts == [0, 1, 2]
        assert isinstance(error, errors.DeadlineExceeded)
        assert "stall_s" in str(error)
        assert error.parts == 3
        busy = pool.stream("Streamer.slow", 8, 0.1, ahead=8)
        assert parts_of(busy) == (list(range(8)), None)


def _leases(found: served.Served) -> int:
    return found.pool.status().devices[0].leases
