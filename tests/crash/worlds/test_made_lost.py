"""Worlds of sessions lose members and sessions: each collective ends once and truthfully, and refs tell their state."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors, testing
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, shared_devices

EXCHANGING = f"{ACTORS}/exchanging.py:Exchanging"
LOST = (errors.CollectiveAborted, errors.WorkerLost, errors.GpuRefStale, errors.GpuRefUndefined)


@pytest.fixture(scope="module", params=["hot", "none"])
def books(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Counts what is left; knows whether processes stand by."""
    with Ledger() as ledger:
        ledger.standby = request.param  # type: ignore[attr-defined]
        yield ledger


@pytest.fixture(scope="module")
def pool(books: Any) -> Iterator[atomr_mp.Pool]:
    """A pool of three devices."""
    settings: dict[str, Any] = {"standby": books.standby, "max_restarts": 1000, "backoff_initial_s": 0.0}
    with books.start(EXCHANGING, **shared_devices(3), **settings) as started:
        yield started


def ready(pool: atomr_mp.Pool) -> None:
    """Wait for all devices."""
    pool.wait_ready(DEADLINE_S)


def put(pool: atomr_mp.Pool, values: list[float], count: int = 1000) -> list[Any]:
    """Return a ref for each device."""
    return [pool.device(device).put(np.full(count, value)) for device, value in enumerate(values)]


@pytest.mark.parametrize("method", ["fill", "add"])
def test_a_suspect_behind_a_collective_lets_that_begin(ledger: Ledger, method: str) -> None:
    """The collective waits for another rank, and the suspect for the collective: neither waits for the other's end."""
    with (
        ledger.gate("gate") as gate,
        ledger.start(EXCHANGING, **shared_devices(2), faults=[], max_suspicions=3, backoff_initial_s=0.0) as pool,
        pool.world([0, 1]) as world,
    ):

        def suspect(ref: Any) -> Any:
            return pool.device(0).memory.fill(ref, 2.0) if method == "fill" else pool.call("Exchanging.add", ref, 1.0)

        name = "memory.fill" if method == "fill" else "Exchanging.add"
        with testing.inject(pool, at="enqueue", fault=testing.Kill(), of=name):
            assert isinstance(suspect(put(pool, [1.0, 1.0])[0]).exception(DEADLINE_S), errors.WorkerLost)
        ready(pool)
        world.wait_ready(DEADLINE_S)
        refs = put(pool, [1.0, 1.0])
        held = pool.call("Exchanging.hold", refs[1], gate.path, 3.0)
        gate.wait()
        sums, late = world.all_reduce(refs, out=refs), suspect(refs[0])
        assert settled(lambda: pool.status().devices[0].queue_depth == 2), "the collective's part and the suspect"
        gate.open()
        assert held.result(DEADLINE_S) is None
        sums.result(DEADLINE_S)
        assert late.exception(DEADLINE_S) is None
        assert refs[1].numpy()[0] == 5.0
        assert refs[0].numpy()[0] == (2.0 if method == "fill" else 6.0)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_is_killed_amid_programs(pool: atomr_mp.Pool, rank: int) -> None:
    """What has ended is right everywhere, other outcomes typed; survivors' memory is whole or undefined."""
    ready(pool)
    with pool.world([0, 1, 2]) as world:
        refs, total = put(pool, [1.0, 2.0, 3.0]), 0.0
        with world.program() as p:
            x = p.input("x", 1000, "float64")
            summed = p.world.all_reduce(p.elementwise.multiply(x, p.refs(refs)))
            p.elementwise.add(p.refs(refs), summed, p.refs(refs))
            p.world.all_reduce(p.refs(refs), "max", out=p.refs(refs))
            p.returns(summed)
        replies = [p.run(x=np.full(1000, 1e-3)) for _ in range(30)]
        os.kill(pool.devices[rank].pid or 0, signal.SIGKILL)
        found = [reply.exception(DEADLINE_S) for reply in replies]
        assert all(error is None or isinstance(error, LOST) for error in found)
        done = found.index(next(error for error in found if error is not None)) if any(found) else len(found)
        assert all(found[done:]), "nothing has run behind one that was lost"
        ready(pool)
        world.wait_ready(DEADLINE_S)
        values = [1.0, 2.0, 3.0]
        for _ in range(done):
            total = sum(value * 1e-3 for value in values)
            values = [max(value + total for value in values)] * 3
        for at in range(3):
            if at != rank:
                with contextlib.suppress(errors.GpuRefUndefined):
                    now = pool.call("Exchanging.read", refs[at]).result(DEADLINE_S)
                    assert now == pytest.approx(values[at])
        with pytest.raises(errors.GpuRefStale) as stale:
            p.run(x=np.ones(1000)).result(DEADLINE_S)
        assert not stale.value.maybe_executed
        new = put(pool, [1.0, 2.0, 3.0])
        with world.program() as q:
            q.returns(q.world.all_reduce(q.refs(new)))
        for ref in q.run().result(DEADLINE_S):
            assert pool.call("Exchanging.read", ref).result(DEADLINE_S) == 6.0


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("count", [10, 200_000])
def test_a_rank_is_killed_amid_collectives(pool: atomr_mp.Pool, rank: int, count: int) -> None:
    """Results are right, other outcomes typed; memory is whole or undefined, and the other processes stay."""
    ready(pool)
    with pool.world([0, 1, 2]) as world:
        refs, kept = put(pool, [1.0, 2.0, 3.0], count), put(pool, [1.0, 2.0, 3.0], count)
        pids = [device.pid for device in pool.devices]
        replies = [world.all_reduce(refs, "max", out=refs) for _ in range(30)]
        os.kill(pids[rank] or 0, signal.SIGKILL)
        found = [reply.exception(DEADLINE_S) for reply in replies]
        assert all(error is None or isinstance(error, LOST) for error in found)
        failed = [error for error in found if error is not None]
        for at in range(3):
            if at == rank:
                with pytest.raises((errors.GpuRefStale, errors.WorkerLost)):
                    pool.call("Exchanging.read", refs[at], deadline_s=DEADLINE_S).result(DEADLINE_S)
                continue
            assert pool.call("Exchanging.read", kept[at]).result(DEADLINE_S) == at + 1
            with contextlib.suppress(errors.GpuRefUndefined):
                now = pool.call("Exchanging.read", refs[at]).result(DEADLINE_S)
                assert now == 3.0 or (now == at + 1 and len(failed) == len(found))
        ready(pool)
        world.wait_ready(DEADLINE_S)
        new = put(pool, [1.0, 2.0, 3.0], count)
        for ref in world.all_reduce(new).result(DEADLINE_S):
            assert np.all(ref.numpy() == 6.0)
        after = [device.pid for device in pool.devices]
        assert [pid for at, pid in enumerate(after) if at != rank] == [pid for at, pid in enumerate(pids) if at != rank]
    assert settled(lambda: not pool.status().worlds)


def test_what_an_aborted_collective_was_to_write_is_undefined(pool: atomr_mp.Pool, books: Ledger) -> None:
    """Until it is written anew; a call that waited behind a writer on the rank that dies has begun nowhere."""
    ready(pool)
    with pool.world([0, 1]) as world, books.gate(f"gate-{pool.devices[1].pid}") as gate:
        refs, idle = put(pool, [1.0, 2.0, 3.0]), put(pool, [1.0, 2.0, 3.0])
        pool.call("Exchanging.hold", refs[1], gate.path, 1.0)
        gate.wait()
        reduced = world.all_reduce(refs[:2], out=refs[:2])
        read = pool.call("Exchanging.read", refs[0])
        assert pool.call("Exchanging.read", idle[0]).result(DEADLINE_S) == 1.0
        os.kill(pool.devices[1].pid or 0, signal.SIGKILL)
        error = reduced.exception(DEADLINE_S)
        assert isinstance(error, LOST)
        assert not error.maybe_executed
        with pytest.raises(errors.GpuRefUndefined):
            read.result(DEADLINE_S)
        refs[0].fill(4.0)
        assert pool.call("Exchanging.read", refs[0]).result(DEADLINE_S) == 4.0
        ready(pool)


def test_a_device_is_restarted_as_planned(pool: atomr_mp.Pool) -> None:
    """Collectives before it are answered or have begun nowhere; the world goes on with its next epoch."""
    ready(pool)
    with pool.world([0, 1]) as world:
        refs = put(pool, [1.0, 2.0, 3.0])
        replies = [world.all_reduce(refs[:2], "max", out=refs[:2]) for _ in range(50)]
        pool.restart(1)
        found = [reply.exception(DEADLINE_S) for reply in replies]
        assert all(error is None or (isinstance(error, LOST) and not error.maybe_executed) for error in found)
        assert settled(lambda: world.epoch > 1)
        ready(pool)
        world.wait_ready(DEADLINE_S)
        new = put(pool, [1.0, 2.0, 3.0])
        assert np.all(world.all_reduce(new[:2]).result(DEADLINE_S)[1].numpy() == 3.0)


def test_a_client_is_killed_amid_collectives(pool: atomr_mp.Pool) -> None:
    """Its worlds end, and nothing of them is left; those of others go on."""
    ready(pool)
    with pool.world([0, 1]) as mine:
        for _ in range(3):
            client = subprocess.Popen(
                [sys.executable, "-c", CLIENT, str(pool.run_dir)], stdout=subprocess.PIPE, text=True
            )
            assert client.stdout is not None
            assert client.stdout.readline() == "runs\n"
            client.kill()
            client.wait(DEADLINE_S)
            client.stdout.close()
        assert settled(lambda: len(pool.status().worlds) == 1)
        assert mine.barrier().result(DEADLINE_S) == [None, None]
        assert mine.epoch == 1
    testing.assert_nothing_left(pool, DEADLINE_S)


def test_a_stopped_rank_is_replaced(pool: atomr_mp.Pool) -> None:
    """The others do not wait for it without bound."""
    ready(pool)
    with pool.world([0, 1]) as world:
        refs = put(pool, [1.0, 2.0, 3.0])
        pid = pool.devices[1].pid or 0
        os.kill(pid, signal.SIGSTOP)
        error = world.all_reduce(refs[:2]).exception(2 * DEADLINE_S)
        assert isinstance(error, LOST)
        ready(pool)
        world.wait_ready(DEADLINE_S)
        assert pool.devices[1].pid != pid
        assert world.barrier().result(DEADLINE_S) == [None, None]


def test_random_use_under_kills(pool: atomr_mp.Pool) -> None:  # noqa: C901 - threads beside kills
    """Threads use worlds of their own, made anew, while processes die: all replies end, and results are right."""
    ready(pool)
    choices, over = random.Random(3), threading.Event()
    wrong: list[object] = []
    right = [0]

    def gets_on(before: int) -> bool:
        return bool(wrong) or right[0] > before + 5

    def use(number: int) -> None:
        own = random.Random(number)
        while not over.is_set():
            devices = own.sample(range(3), own.randrange(1, 4))
            with contextlib.suppress(*LOST, errors.DeviceUnavailable, errors.Overloaded), pool.world(devices) as world:
                refs = [pool.device(device).put(np.full(500, 1.0)) for device in devices]
                for _ in range(own.randrange(1, 6)):
                    found = world.all_reduce(refs, deadline_s=DEADLINE_S).result(DEADLINE_S)
                    for ref in found:
                        array = ref.numpy()
                        if not np.all(array == len(devices)):
                            wrong.append(array)
                        right[0] += 1

    def guarded(number: int) -> None:
        try:
            use(number)
        except BaseException as error:  # noqa: BLE001 - the test says it
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        device = choices.randrange(3)
        before = right[0]
        assert settled(functools.partial(gets_on, before))
        if (pid := pool.devices[device].pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    over.set()
    for thread in threads:
        thread.join(2 * DEADLINE_S)
        assert not thread.is_alive()
    assert not wrong
    ready(pool)
    assert settled(lambda: not pool.status().worlds)
    testing.assert_nothing_left(pool, DEADLINE_S)


CLIENT = """
import sys
import numpy as np
import atomr_mp

with atomr_mp.connect(run_dir=sys.argv[1]) as pool:
    worlds = [pool.world([0, 1]), pool.world([2, 1, 0])]
    refs = [pool.device(device).put(np.ones(100_000)) for device in range(3)]
    for step in range(10**9):
        replies = [worlds[0].all_reduce(refs[:2], "max", out=refs[:2]), worlds[1].all_gather(refs[::-1])]
        if step == 20:
            print("runs", flush=True)
        for reply in replies:
            reply.result(30)
"""
