"""The compiler of a worker among several clients: they take turns, and whoever goes leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import atomr_mp
from atomr_mp import errors
from tests.actors.kerneled import NAMES, SOURCE
from tests.programs.compiles_for_ever import ENDLESS
from tests.support import ACTORS, DEADLINE_S, Ledger, settled

LONG_S = 600.0


@pytest.fixture
def pool(ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """A pool of its own: no compiler runs."""
    with ledger.start(f"{ACTORS}/kerneled.py:Kerneled") as pool:
        reached(pool)
        yield pool


def reached(client: atomr_mp.Pool) -> None:
    """Wait until a client has reached the worker: what it asks before is sent once it waits for something."""
    client.call("Kerneled.pid").result(DEADLINE_S)


def endless(client: atomr_mp.Pool, number: int) -> Any:
    """Ask for a source without end; those of different numbers differ."""
    return client.device(0).kernels.compile(ENDLESS + "//" * number, deadline_s=LONG_S)


def compilers(pool: atomr_mp.Pool) -> set[int]:
    """Return the pids of the compilers' processes."""
    return {each.pid for each in psutil.Process(pool.devices[0].pid).children()}


def test_a_client_waits_for_no_other_clients_sources(pool: atomr_mp.Pool) -> None:
    """While another has one that runs and 63 that wait; that one's next is refused, and says why."""
    with atomr_mp.connect(run_dir=pool.run_dir) as greedy:
        reached(greedy)
        running = endless(greedy, 0)
        assert settled(lambda: len(compilers(pool)) == 1)
        waiting = [endless(greedy, number) for number in range(1, 64)]
        refused = endless(greedy, 64).exception(DEADLINE_S)
        assert isinstance(refused, errors.Overloaded)
        assert "64 sources of this client" in refused.message
        small = pool.device(0).kernels.compile(SOURCE, names=NAMES)
        equal = endless(pool, 5)
        assert set(NAMES) <= set(small.result(DEADLINE_S))
        assert not any(each.done for each in (running, equal, *waiting))
        equal.cancel()
        assert isinstance(equal.exception(DEADLINE_S), errors.Cancelled)


def test_a_call_that_is_cancelled_and_a_client_that_goes_stop_their_jobs(pool: atomr_mp.Pool) -> None:
    """Those that run are killed, unless another client waits for an equal one."""
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        reached(other)
        mine = endless(pool, 0)
        assert settled(lambda: len(compilers(pool)) == 1)
        (shared,) = compilers(pool)
        theirs, alone = endless(other, 0), endless(other, 1)
        assert settled(lambda: len(compilers(pool)) == 2)
        queued = [endless(other, number) for number in range(2, 20)]
        mine.cancel()
        assert isinstance(mine.exception(DEADLINE_S), errors.Cancelled)
        assert not mine.exception().maybe_executed
        again = endless(pool, 0)
        other.call("Kerneled.pid").result(DEADLINE_S)
        assert shared in compilers(pool)
        assert not theirs.done
    assert settled(lambda: compilers(pool) == {shared})
    assert all(each.done for each in (theirs, alone, *queued))
    assert not again.done
    again.cancel()
    assert settled(lambda: not compilers(pool))
    assert "k" in pool.device(0).kernels.compile('extern "C" __global__ void k() {}').result(DEADLINE_S)
