"""A restart, a reload or a stop of members ends an epoch as planned: no caller notices, whatever the method."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from soaking.worlds import ACTORS as NOTING
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.worlds import start

WORLDLY: Final = f"{ACTORS}/worldly.py:Worldly"
CALLS: Final = 300
RESTARTS: Final = 5


@pytest.mark.parametrize("standby", ["hot", "none"])
@pytest.mark.parametrize("way", ["restart 0", "restart 1", "reload"])
def test_a_call_that_runs_ends_with_its_result(ledger: Ledger, tmp_path: Path, standby: str, way: str) -> None:
    """So do those behind it that have come to some of the ranks or to none, each once and in their order."""
    with start(ledger, WORLDLY, 2, standby=standby) as pool:
        world = pool.world("tp")
        before = world.call("Worldly.where", each=True).result(DEADLINE_S)
        slow = world.call("Worldly.wait_once", 1.0, str(tmp_path / "begun"), deadline_s=DEADLINE_S)
        assert settled((tmp_path / "begun").exists)
        behind = [world.call("Worldly.add_once", float(number), deadline_s=DEADLINE_S) for number in range(40)]
        if way == "reload":
            pool.reload(DEADLINE_S)
        else:
            pool.restart(int(way[-1]))
        later = [world.call("Worldly.add_once", float(number), deadline_s=DEADLINE_S) for number in range(40)]
        assert slow.result(DEADLINE_S) == 2.0
        assert [each.result(DEADLINE_S) for each in behind] == [3.0 * number for number in range(40)]
        assert [each.result(DEADLINE_S) for each in later] == [3.0 * number for number in range(40)]
        after = world.call("Worldly.where", each=True).result(DEADLINE_S)
    assert [rank[2] for rank in before] == [1, 1]
    assert [rank[2] for rank in after] == [2, 2], "a reload makes no epoch of members with old and new code"
    replaced = [old[3] != new[3] for old, new in zip(before, after, strict=True)]
    assert replaced == {"restart 0": [True, False], "restart 1": [False, True]}.get(way, [True, True])
    events = [event["event"] for event in read_events(ledger.run_dir() / "events.jsonl")]
    assert "world_broken" not in events


def test_a_reload_breaks_no_world_that_a_client_has_made(ledger: Ledger) -> None:
    """One device after the other is replaced, perhaps while the world forms its next epoch: that is planned, too."""
    with ledger.start(gpus=2, standby="none") as pool, pool.world([0, 1]) as world:
        world.wait_ready(DEADLINE_S)
        pool.reload(DEADLINE_S)
        assert settled(lambda: world.state == "ready" and [each.generation for each in pool.devices] == [2, 2])
        assert world.barrier().result(DEADLINE_S) == [None, None]
    events = [event["event"] for event in read_events(ledger.run_dir() / "events.jsonl")]
    assert "world_broken" not in events


def test_a_pool_that_stops_answers_the_call_that_runs(ledger: Ledger, tmp_path: Path) -> None:
    """Calls that come later are refused."""
    with start(ledger, WORLDLY, 2, standby="none") as pool, atomr_mp.connect(run_dir=pool.run_dir) as client:
        world = client.world("tp")
        slow = world.call("Worldly.wait_once", 1.0, str(tmp_path / "begun"))
        assert settled((tmp_path / "begun").exists)
        pool.close()
        assert slow.result(DEADLINE_S) == 2.0
        with pytest.raises((errors.DeviceUnavailable, errors.PoolLost)):
            world.call("Worldly.add_once", 1.0).result(DEADLINE_S)


def test_what_takes_longer_than_a_device_may_drain_is_aborted(ledger: Ledger, tmp_path: Path) -> None:
    """As by an end that was not planned."""
    with start(ledger, WORLDLY, 2, standby="none", drain_timeout_s=0.5) as pool:
        world = pool.world("tp")
        slow = world.call("Worldly.wait_once", 3.0, str(tmp_path / "begun"))
        assert settled((tmp_path / "begun").exists)
        pool.restart(1)
        with pytest.raises((errors.CollectiveAborted, errors.WorkerLost)) as raised:
            slow.result(DEADLINE_S)
        assert raised.value.maybe_executed
        assert world.call("Worldly.add_once", 1.0).result(DEADLINE_S) == 3.0


@pytest.mark.parametrize("standby", ["hot", "none"])
def test_restarts_cost_no_call_and_run_none_twice(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standby: str
) -> None:
    """Each call of two clients runs once on each rank, and all ranks have one order in each epoch."""
    chosen, size = random.Random(7), 3
    monkeypatch.setenv("WORLD_NOTES", str(tmp_path))
    pool = start(ledger, f"{NOTING}:Noting", size, standby=standby, max_replays=0)
    with pool, atomr_mp.connect(run_dir=pool.run_dir) as first, atomr_mp.connect(run_dir=pool.run_dir) as second:
        world, replies = pool.world("tp"), list[Any]()
        for epoch in range(1, RESTARTS + 1):
            assert settled(lambda epoch=epoch: world.epoch == epoch and world.state == "ready")  # type: ignore[misc]
            before = len(replies)
            for number in range(before, before + CALLS // RESTARTS):
                theirs = (first, second)[number % 2].world("tp")
                arguments = number, "late", number % size, [float(number)]
                replies.append(theirs.call("Noting.once", *arguments, deadline_s=DEADLINE_S))
            for reply in replies[before : before + 2]:  # some run, and the others are everywhere on their way
                reply.result(DEADLINE_S)
            pool.restart(chosen.randrange(size))
        for number, reply in enumerate(replies):
            assert reply.result(DEADLINE_S) == [float(number) * 6]
    by_epoch: list[dict[int, list[int]]] = []
    for rank in range(size):
        runs = [tuple(map(int, line.split())) for line in (tmp_path / f"tp-{rank}").read_text().splitlines()]
        assert Counter(number for number, _ in runs) == Counter(range(CALLS))
        by_epoch.append({})
        for number, epoch in runs:
            by_epoch[-1].setdefault(epoch, []).append(number)
    assert by_epoch == [by_epoch[0]] * size
    assert len(by_epoch[0]) > 2, f"calls of {len(by_epoch[0])} epochs"
