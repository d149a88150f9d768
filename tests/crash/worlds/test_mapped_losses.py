"""A map over a world that loses members: each item has one outcome, and none that must not runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Iterator

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.mapping.run import Failure, Progress
from tests.support import ACTORS, DEADLINE_S, Ledger
from tests.worlds import on_host

WORLDLY = f"{ACTORS}/worldly.py:Worldly"
SIZE = 2
SUM = sum(range(1, SIZE + 1))
ITEMS = 600
KILL_EVERY = 100

pytestmark = on_host


@pytest.fixture(scope="module", params=["hot", "none"])
def pool(request: pytest.FixtureRequest) -> Iterator[atomr_mp.Pool]:
    """A pool with a world whose members come back at once."""
    worlds = {"tp": {"devices": [0, 1], "actors": ["Worldly"], "begin_timeout_s": 1.0}}
    with (
        Ledger() as ledger,
        ledger.start(
            WORLDLY, gpus=SIZE, worlds=worlds, standby=request.param, max_restarts=1000, backoff_initial_s=0.0
        ) as started,
    ):
        yield started


class Killer:
    """Yields items, and kills a member now and then."""

    def __init__(self, pool: atomr_mp.Pool) -> None:
        self._pool = pool
        self._chance = random.Random(3)
        self.kills = 0

    def __iter__(self) -> Iterator[int]:
        for n in range(ITEMS):
            if n % KILL_EVERY == KILL_EVERY - 1:
                pid = self._pool.devices[self._chance.randrange(SIZE)].pid
                if pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.kills += 1
            yield n


def test_items_of_an_idempotent_method_are_sent_again(pool: atomr_mp.Pool) -> None:
    """So that only the restarts show."""
    seen: list[Progress] = []
    items = Killer(pool)
    found = list(pool.map("Worldly.add", items, attempts=10, deadline_s=DEADLINE_S, on_progress=seen.append))
    assert found == [n * SUM for n in range(ITEMS)]
    assert items.kills
    assert seen[-1].restarts >= 1
    assert seen[-1].failed == 0


def test_items_that_must_not_run_twice_fail_in_their_place(pool: atomr_mp.Pool) -> None:
    """If they may have run; all others are sent again."""
    found = list(pool.map("Worldly.add_once", Killer(pool), deadline_s=DEADLINE_S, return_failures=True))
    assert len(found) == ITEMS
    for n, outcome in enumerate(found):
        if isinstance(outcome, Failure):
            assert outcome.index == n
            error = outcome.error
            assert isinstance(error, errors.CollectiveAborted | errors.WorkerLost), error
            assert error.maybe_executed
        else:
            assert outcome == n * SUM
    assert sum(isinstance(outcome, Failure) for outcome in found) < ITEMS // 4


def test_an_event_loop_s_map_goes_on(pool: atomr_mp.Pool) -> None:
    """As its single calls do, up to `max_replays` times each."""

    async def use() -> list[float]:
        found = pool.amap("Worldly.add", Killer(pool), deadline_s=DEADLINE_S, return_failures=True)
        return [n async for n in found]

    found = asyncio.run(use())
    for n, outcome in enumerate(found):
        if isinstance(outcome, Failure):
            assert isinstance(outcome.error, errors.CollectiveAborted | errors.WorkerLost)
        else:
            assert outcome == n * SUM


def test_a_planned_end_costs_no_attempt(pool: atomr_mp.Pool) -> None:
    """Items that have begun nowhere go to the next epoch, whatever their method."""

    def items() -> Iterator[int]:
        for n in range(ITEMS):
            if n == ITEMS // 2:
                pool.restart(1)
            yield n

    assert list(pool.map("Worldly.add_once", items(), deadline_s=DEADLINE_S)) == [n * SUM for n in range(ITEMS)]
