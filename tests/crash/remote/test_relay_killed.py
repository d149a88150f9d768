"""A relay that dies loses no session: refs, arrays and calls of its clients go on with the next one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Self

import numpy as np
import psutil
import pytest

import atomr_mp
from atomr_mp import errors
from tests import remote as served
from tests.support import ACTORS, DEADLINE_S, KEEPER, PROBE, Ledger, settled

NOTING = f"{ACTORS}/noting.py:Noting"
COUNTING = f"{ACTORS}/counting.py:Counting"
KILLS = 10
SHARED = np.arange(100_000)


@pytest.fixture
def serving(ledger: Ledger) -> Iterator[served.Served]:
    """A pool behind a relay."""
    found = served.serve(ledger, PROBE, KEEPER, NOTING, COUNTING, gpus=2)
    with found.pool:
        yield found


def kill_relay(found: served.Served) -> None:
    """Kill the relay that listens, and wait for another to listen."""
    pid = found.pid
    os.kill(pid, signal.SIGKILL)

    def another() -> bool:
        remote = found.pool.status().remote
        assert remote is not None
        return remote.listening and remote.pid not in {0, pid}

    assert settled(another, DEADLINE_S)


def test_refs_survive_the_relay(serving: served.Served) -> None:
    """Arrays and large results of before are read and used after it."""
    content = np.arange(300_000, dtype="float64")
    with serving.connect() as pool:
        ref = pool.device(1).put(content)
        made = pool.call("Keeper.make", content * 2, device=1).result()
        np.testing.assert_array_equal(made.numpy(), content * 2)  # its slab is open
        unread = pool.call("Probe.echo", content + 5)
        assert settled(lambda: unread.done, DEADLINE_S)
        for number in range(2):
            kill_relay(serving)
            np.testing.assert_array_equal(ref.numpy(), content)
            np.testing.assert_array_equal(made.numpy(), content * 2)
            np.testing.assert_array_equal(pool.call("Keeper.double", ref).result(), content * 2)
            np.testing.assert_array_equal(pool.call("Probe.echo", content + number).result(), content + number)
        np.testing.assert_array_equal(unread.result(), content + 5)
        assert pool.lost is None


def test_a_loop_goes_on_though_no_thread_reads(serving: served.Served) -> None:
    """Releases go by the threads' lane, and are lost there with the relay: they are repeated all the same."""

    async def use(pool: atomr_mp.Pool) -> None:
        for turn in range(3):
            content = np.full(300_000, turn)
            held = await pool.call("Probe.echo", content, device=0)
            pid = serving.pid
            os.kill(pid, signal.SIGKILL)
            del held
            with contextlib.suppress(errors.ConnectionLost):  # unless the loop has heard of it before
                await pool.call("Probe.echo", turn, device=0)
            async with asyncio.timeout(DEADLINE_S):
                assert await pool.call("Probe.echo", turn, device=0) == turn
            assert await asyncio.to_thread(settled, lambda: serving.pid not in {0, pid}, DEADLINE_S)  # noqa: B023

    with serving.connect() as pool:
        pool.wait_ready()
        asyncio.run(use(pool))
        assert settled(lambda: pool.device(0).statistics()["leases"] == 0, DEADLINE_S)


class Load:
    """Threads that use a pool, and what came of it.

    Args:
        pool: The pool.
        arrays: Whether they use its memory and streams too, which a worker's end takes along.
    """

    def __init__(self, pool: atomr_mp.Pool, *, arrays: bool) -> None:
        self._pool = pool
        self._over = threading.Event()
        self.failed: list[BaseException] = []
        self.answered: set[str] = set()
        self.lost: dict[str, errors.ConnectionLost | errors.WorkerLost] = {}
        self._ref = pool.device(0).put(SHARED)
        jobs = [self._counted, self._counted, *([self._arrays, self._streams] if arrays else [])]
        self._threads = [threading.Thread(target=self._run, args=each) for each in enumerate(jobs)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def go_on(self, calls: int) -> None:
        """Wait until so many further calls were answered."""
        enough = len(self.answered) + calls
        assert settled(lambda: len(self.answered) > enough or bool(self.failed), DEADLINE_S)
        assert self.failed == []

    def _run(self, number: int, job: Callable[[int, int], None]) -> None:
        turns = itertools.count()
        try:
            while not self._over.is_set():
                job(number, next(turns))
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.failed.append(error)

    def _counted(self, thread: int, turn: int) -> None:
        tag = f"{thread}-{turn}"
        try:
            assert self._pool.call("Noting.once", tag).result(DEADLINE_S) == tag
            self.answered.add(tag)
        except (errors.ConnectionLost, errors.WorkerLost) as error:
            self.lost[tag] = error

    def _arrays(self, thread: int, turn: int) -> None:
        content = np.full(200_000, turn, "int64")
        np.testing.assert_array_equal(self._pool.call("Noting.same", content).result(DEADLINE_S), content)
        held = self._pool.device(thread % 2).put(content)
        np.testing.assert_array_equal(held.numpy(), content)
        np.testing.assert_array_equal(self._ref.numpy(), SHARED)

    def _streams(self, _thread: int, _turn: int) -> None:
        assert list(self._pool.stream("Counting.start", 200, deadline_s=DEADLINE_S)) == list(range(200))


def test_nothing_runs_twice_and_nothing_is_lost_under_kills(serving: served.Served, ledger: Ledger) -> None:
    """Counted calls, arrays, streams, puts and reads on threads, while one relay after another is killed.

    What may have run says so, and all else is answered. The supervisor keeps nothing of the sessions of dead relays.
    """
    supervisor = psutil.Process(serving.pool.supervisor_pid)
    with serving.connect(max_replays=KILLS) as pool:
        pool.wait_ready()
        with Load(pool, arrays=True) as load:
            load.go_on(10)
            descriptors, nbytes = supervisor.num_fds(), supervisor.memory_info().rss
            for _ in range(KILLS):
                kill_relay(serving)
                load.go_on(10)
        assert load.failed == []
        assert pool.lost is None
    ran = Counter(ledger.runs())
    assert max(ran.values()) == 1
    assert load.answered <= set(ran)
    assert all(error.maybe_executed for error in load.lost.values())
    assert supervisor.memory_info().rss < nbytes + 2**24
    assert settled(lambda: supervisor.num_fds() <= descriptors + 2, DEADLINE_S)


@pytest.mark.parametrize("first", ["relay", "worker"])
def test_a_relay_and_a_worker_may_be_killed_together(ledger: Ledger, first: str) -> None:
    """No call waits for ever, runs twice, or counts as unstarted that ran."""
    found = served.serve(ledger, NOTING, gpus=2, max_restarts=100, backoff_initial_s=0.01)
    with found.pool, found.connect(max_replays=KILLS) as pool:
        pool.wait_ready()
        with Load(pool, arrays=False) as load:
            for kill in range(KILLS // 2):
                load.go_on(10)
                victims = [found.pid, found.pool.devices[kill % 2].pid]
                for pid in victims if first == "relay" else reversed(victims):
                    os.kill(pid, signal.SIGKILL)
                assert settled(lambda: found.pid not in {0, victims[0]}, DEADLINE_S)  # noqa: B023 - called at once
                found.pool.wait_ready()
            load.go_on(10)
        assert load.failed == []
        assert pool.lost is None
    ran = Counter(ledger.runs())
    assert max(ran.values()) == 1
    assert load.answered <= set(ran)
    assert not {tag for tag, error in load.lost.items() if not error.maybe_executed} & set(ran)
