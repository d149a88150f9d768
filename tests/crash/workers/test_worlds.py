"""Epochs of a world with real workers: each end of a member, and what callers and operators see of it."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp.operator.pool_status import WorldStatus
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.messages.devices import WorldState
from tests.support import ACTORS, DEADLINE_S, PROBE, Ledger, open_descriptors, settled
from tests.worlds import on_host

pytestmark = on_host

RANKED: Final = f"{ACTORS}/ranked.py:Ranked"

TP: Final[dict[str, Any]] = {
    "worlds": {"tp": {"devices": [0, 1], "actors": ["Ranked"]}},
    "max_restarts": 1000,
    "max_replays": 10,
    "backoff_initial_s": 0.1,
}


def world_of(pool: atomr_mp.Pool) -> WorldStatus:
    """Return the state of the world."""
    (world,) = pool.status().worlds
    return world


def wait_ready(pool: atomr_mp.Pool, epoch: int) -> None:
    """Wait until an epoch is ready and each device has its standby, if the pool has them."""

    def well() -> bool:
        status = pool.status()
        standbys = [each.standby for each in status.devices]
        there = all(each is None or each.mode != "hot" or each.state == "ready" for each in standbys)
        (world,) = status.worlds
        return there and world.state is WorldState.READY and world.epoch >= epoch

    assert settled(well)


def kinds(pid: int) -> Counter[str]:
    """Return how many descriptors of each kind a process has."""
    return Counter(re.sub(r"[0-9]+", "", name) for name in open_descriptors(pid).values())


def pid_of(pool: atomr_mp.Pool, device: int) -> int:
    """Return the process of a device."""
    found = pool.status().devices[device].pid
    assert found is not None
    return found


@pytest.mark.parametrize("standby", ["hot", "none"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_member_costs_an_epoch_and_no_call(ledger: Ledger, standby: str, rank: int) -> None:
    """Idempotent calls of two threads are answered on, each right; the survivor's process is the same."""
    with ledger.start(RANKED, PROBE, gpus=2, standby=standby, **TP) as pool:
        tp = pool.world("tp")
        wait_ready(pool, 1)
        survivor = pid_of(pool, 1 - rank)
        stop, wrong = threading.Event(), list[Any]()

        def call(number: int) -> None:
            while not stop.is_set():
                found = tp.call("Ranked.summed", np.full(3, float(number))).result(DEADLINE_S)
                if not np.array_equal(found, np.full(3, 3.0 * number)):
                    wrong.append(found)

        threads = [threading.Thread(target=call, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for epoch in (2, 3, 4):
            os.kill(pid_of(pool, rank), signal.SIGKILL)
            wait_ready(pool, epoch)
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong
        members = tp.call("Ranked.who", each=True).result(DEADLINE_S)
        assert [each[:2] for each in members] == [[0, 4], [1, 4]]
        assert members[1 - rank][2] == survivor == pid_of(pool, 1 - rank)
    events = list(read_events(ledger.run_dir() / "events.jsonl"))
    broken = [event for event in events if event["event"] == "world_broken"]
    assert [(event["world"], event["epoch"], event["rank"]) for event in broken] == [
        ("tp", epoch, rank) for epoch in (1, 2, 3)
    ]
    assert {event["cause"] for event in broken} <= {"killed by SIGKILL", "ended"}
    assert [event["epoch"] for event in events if event["event"] == "world_ready"] == [1, 2, 3, 4]


def test_ends_of_members_leave_no_descriptor(ledger: Ledger) -> None:
    """In the supervisor and in the survivor: those of a process go with it, or with the next one."""
    with ledger.start(RANKED, PROBE, gpus=2, standby="hot", **TP) as pool:
        supervisor, survivor = pool.status().supervisor_pid, pid_of(pool, 0)
        assert supervisor is not None
        kept = list[Counter[str]]()
        for epoch in (1, 2, 3, 4, 5):
            wait_ready(pool, epoch)
            assert pool.world("tp").call("Ranked.summed", 1.0).result(DEADLINE_S) == 3.0
            if epoch == 2:  # a member keeps the memory of the former process of each other one
                kept = [kinds(supervisor), kinds(survivor)]
            if epoch < 5:
                os.kill(pid_of(pool, 1), signal.SIGKILL)

        def more() -> list[Counter[str]]:
            """Return what they have beyond that; one that was open for a moment then is not missed."""
            return [kinds(pid) - before for pid, before in zip((supervisor, survivor), kept, strict=True)]

        assert settled(lambda: not any(more())), more()


def test_a_restart_and_a_stop_end_an_epoch_in_order(ledger: Ledger) -> None:
    """No process is killed for it, and nothing is counted as an end."""
    with ledger.start(RANKED, PROBE, gpus=2, **TP) as pool:
        tp = pool.world("tp")
        first = tp.call("Ranked.who", each=True).result(DEADLINE_S)
        with OperatorSession(ledger.run_dir() / "session.sock") as operator:
            operator.restart(0)
        wait_ready(pool, 2)
        second = tp.call("Ranked.who", each=True).result(DEADLINE_S)
        assert [each[1] for each in second] == [2, 2]
        assert second[1][2] == first[1][2]
        assert second[0][2] != first[0][2]
        assert [each.restarts for each in pool.status().devices] == [0, 0]
    kinds_of_events = [event["event"] for event in read_events(ledger.run_dir() / "events.jsonl")]
    assert "end" not in kinds_of_events
    assert kinds_of_events[-1] == "pool_end"


def test_a_world_waits_with_the_reason_while_a_device_is_out_of_use(ledger: Ledger) -> None:
    """It says which rank and device it lacks; an operator's restart brings it back."""
    settings = {**TP, "max_restarts": 0, "give_up": True}
    with ledger.start(RANKED, PROBE, gpus=2, **settings) as pool:
        wait_ready(pool, 1)
        os.kill(pid_of(pool, 1), signal.SIGKILL)
        assert settled(lambda: "is stopped" in world_of(pool).reason)
        assert world_of(pool).state is WorldState.WAITING
        assert world_of(pool).reason.startswith("rank 1 (device 1) is stopped: ")
        with OperatorSession(ledger.run_dir() / "session.sock") as operator:
            operator.restart(1)
        wait_ready(pool, 2)
        assert pool.world("tp").call("Ranked.summed", 2.0).result(DEADLINE_S) == 6.0
