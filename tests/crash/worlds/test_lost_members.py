"""A world loses members in every way: its callers are answered once and truthfully, and the others stay."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from tests.support import ACTORS, DEADLINE_S, settled
from tests.worlds import pools_that_recover, ready_world

WORLDLY = f"{ACTORS}/worldly.py:Worldly"

pool = pools_that_recover(WORLDLY)


@pytest.fixture
def world(pool: atomr_mp.Pool) -> Any:
    """The world, ready."""
    return ready_world(pool)


def pids(pool: atomr_mp.Pool) -> list[int | None]:
    """Return the processes of the ranks."""
    return [device.pid for device in pool.devices]


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("how", ["killed", "exits", "hangs"])
def test_a_member_that_ends_amid_a_call_costs_a_delay(
    pool: atomr_mp.Pool, world: Any, tmp_path: Path, rank: int, how: str
) -> None:
    """An idempotent call is sent again; the other processes stay."""
    before = pids(pool)
    found = world.call("Worldly.end", rank, how, str(tmp_path / "once"), deadline_s=DEADLINE_S).result(DEADLINE_S)
    assert found == world.size
    after = pids(pool)
    assert [pid for at, pid in enumerate(after) if at != rank] == [pid for at, pid in enumerate(before) if at != rank]
    assert after[rank] != before[rank]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_call_that_may_not_run_twice_ends_typed(pool: atomr_mp.Pool, world: Any, rank: int) -> None:
    """While others of its client are answered after the loss."""
    replies = [world.call("Worldly.add_once", float(n)) for n in range(50)]
    os.kill(pool.devices[rank].pid or 0, signal.SIGKILL)
    outcomes = [reply.exception(DEADLINE_S) for reply in replies]
    assert all(error is None or isinstance(error, errors.CollectiveAborted | errors.WorkerLost) for error in outcomes)
    assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result(DEADLINE_S) == 6.0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_that_is_stopped_is_replaced(pool: atomr_mp.Pool, world: Any, rank: int) -> None:
    """Once it has not begun a call in time."""
    pid = pool.devices[rank].pid or 0
    os.kill(pid, signal.SIGSTOP)
    assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result(DEADLINE_S) == 6.0
    assert pool.devices[rank].pid != pid
    faults = [each for each in read_events(pool.run_dir / "events.jsonl") if each["event"] == "fault"]
    assert faults[-1]["code"] == "sigstop", "one cause, whoever has noticed it"
    assert "its worker was stopped by a signal (SIGSTOP) (world " in str(faults[-1]["text"])


@pytest.mark.parametrize("how", ["writes over its lines", "forks"])
def test_a_member_that_misbehaves_holds_nobody_up(world: Any, how: str) -> None:
    """The call ends, typed or well, and the next one is answered."""
    error = world.call("Worldly.misbehave", how, deadline_s=DEADLINE_S).exception(DEADLINE_S)
    assert error is None or isinstance(error, errors.CollectiveAborted | errors.WorkerLost)
    assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result(DEADLINE_S) == 6.0


def test_a_call_that_meets_for_ever_hangs(pool: atomr_mp.Pool, world: Any) -> None:
    """Though each of its waits is short."""
    error = world.call("Worldly.meet_for_ever", deadline_s=DEADLINE_S).exception(DEADLINE_S)
    assert isinstance(error, errors.WorkerHung | errors.CollectiveAborted), error
    assert settled(lambda: any(each["event"] == "hung" for each in read_events(pool.run_dir / "events.jsonl")))
    assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result(DEADLINE_S) == 6.0


def test_a_member_that_is_stopped_amid_a_call_holds_nobody_up_for_ever(
    pool: atomr_mp.Pool, world: Any, tmp_path: Path
) -> None:
    """The others have waited for too long; it cannot leave the epoch, and is replaced."""
    pid, once = pool.devices[1].pid, str(tmp_path / "once")
    assert world.call("Worldly.end", 1, "stops", once, deadline_s=2 * DEADLINE_S).result(2 * DEADLINE_S) == world.size
    assert pool.devices[1].pid != pid


def test_a_member_that_is_stopped_while_nobody_waits_for_it_is_replaced(pool: atomr_mp.Pool, world: Any) -> None:
    """It runs a call, so it is not late to begin one; and it reads no parts of the next."""
    pid = pool.devices[1].pid or 0
    reply = world.call("Worldly.wait_on", 1, 100.0, deadline_s=DEADLINE_S)
    assert settled(lambda: pool.status().worlds[0].members[1].doing.startswith("runs call"))
    os.kill(pid, signal.SIGSTOP)
    assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result(DEADLINE_S) == 6.0
    assert pool.devices[1].pid != pid
    assert isinstance(reply.exception(DEADLINE_S), errors.CollectiveAborted | errors.WorkerLost)


def test_two_members_at_once(pool: atomr_mp.Pool, world: Any) -> None:
    """And the third one stays."""
    stays = pool.devices[1].pid
    for rank in (0, 2):
        os.kill(pool.devices[rank].pid or 0, signal.SIGKILL)
    assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result(DEADLINE_S) == 6.0
    assert pool.devices[1].pid == stays


def test_a_restart_and_a_reload_of_members(pool: atomr_mp.Pool, world: Any) -> None:
    """Calls wait for the next epoch."""
    epoch = world.epoch
    pool.restart(1)
    assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result(DEADLINE_S) == 6.0
    assert world.epoch > epoch


def test_random_kills_under_load(pool: atomr_mp.Pool, world: Any) -> None:
    """Each idempotent call is answered rightly; each other one at most once."""
    chosen = random.Random(1)
    until_s = time.monotonic() + 6
    seen = 0
    while time.monotonic() < until_s:
        replies = [world.call("Worldly.add", np.full(10, n), deadline_s=DEADLINE_S) for n in range(20)]
        victim = pool.devices[chosen.randrange(3)].pid
        if victim and chosen.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):  # without a standby it may be dead still
                os.kill(victim, signal.SIGKILL)
        for n, reply in enumerate(replies):
            np.testing.assert_array_equal(reply.result(DEADLINE_S), np.full(10, 6 * n))
        seen += len(replies)
    logs = world.call("Worldly.noted", each=True, deadline_s=DEADLINE_S).result(DEADLINE_S)
    assert len(logs) == world.size
    assert seen
