"""A member ends at each point of a gang call's way, and of an epoch's: all callers are answered, truthfully."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import atomr_mp
from atomr_mp import errors, testing
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger, settled
from tests.worlds import on_host

pytestmark = on_host

OF_CALLS = ("world_note", "world_publish", "world_meet")
OF_EPOCHS = ("world_join", "world_leave")
FAULTS = (testing.Kill(), testing.Kill(signal.SIGSEGV), testing.Exit(), testing.Fail())


def _settings(size: int) -> dict[str, Any]:
    worlds = {"tp": {"devices": list(range(size)), "actors": ["Counted"]}}
    return {"worlds": worlds, "standby": "hot", "max_restarts": 1000, "backoff_initial_s": 0.0, "max_suspicions": 0}


@pytest.fixture(scope="module", params=[2, 3])
def pool(request: pytest.FixtureRequest) -> Iterator[atomr_mp.Pool]:
    """A pool with a world of so many ranks, whose processes look for faults."""
    with Ledger() as ledger:
        started = testing.start(
            actors=[f"{ACTORS}/counted.py:Counted"],
            gpus=request.param,
            backend=BACKEND,
            run_dir=ledger.run_dir(),
            **_settings(request.param),
        )
        with started as pool:
            pool.world("tp").wait_ready(DEADLINE_S)
            yield pool


def ranks(pool: atomr_mp.Pool) -> list[int]:
    """Return all ranks."""
    return list(range(len(pool.devices)))


def counts(folder: Path, name: str) -> list[int]:
    """Return how often a call has begun, by rank."""
    lines = (folder / name).read_text().split() if (folder / name).exists() else []
    return [lines.count(str(rank)) for rank in range(3)]


def whole(pool: atomr_mp.Pool) -> bool:
    """Whether all devices have their standbys."""
    return all(each.standby is not None for each in pool.devices)


def test_all_points_of_worlds_are_tried() -> None:
    """A new one has to be listed here."""
    assert {each for each in get_args(testing.Point) if each.startswith("world_")} == {*OF_CALLS, *OF_EPOCHS}


@pytest.mark.parametrize(
    ("point", "fault"),
    # What fails while it meets is the method, and no process ends.
    [(point, fault) for point in OF_CALLS for fault in FAULTS if (point, fault) != ("world_meet", testing.Fail())],
)
def test_a_member_ends_on_a_call_s_way(
    pool: atomr_mp.Pool, tmp_path: Path, point: testing.Point, fault: testing.Fault
) -> None:
    """An idempotent call is answered; any other runs once at most, and its error says whether it may have."""
    world = pool.world("tp")
    for rank in ranks(pool):
        if point == "world_publish" and rank:
            continue  # rank 0's alone
        for idempotent in (True, False):
            assert settled(lambda: whole(pool))
            name = f"{rank}-{idempotent}"
            method = "Counted.again" if idempotent else "Counted.once"
            with testing.inject(pool, at=point, fault=fault, device=rank) as injected:
                reply = world.call(method, str(tmp_path / name), deadline_s=DEADLINE_S)
                error = reply.exception(DEADLINE_S)
                assert len(injected.wait()) == 1
            ran = counts(tmp_path, name)
            if error is None:
                assert reply.result() == world.size
                assert set(ran[: world.size]) == {1} or idempotent
            else:
                assert not idempotent
                assert isinstance(error, errors.RequestError)
                assert max(ran) <= 1
                assert error.maybe_executed or max(ran) == 0
            assert world.call("Counted.again", str(tmp_path / "next"), deadline_s=DEADLINE_S).result() == world.size


@pytest.mark.parametrize("fault", [testing.Kill(), testing.Fail()], ids=repr)
@pytest.mark.parametrize("point", [*OF_EPOCHS, "promotion"])
def test_a_member_ends_while_an_epoch_does(
    pool: atomr_mp.Pool, tmp_path: Path, point: testing.Point, fault: testing.Fault
) -> None:
    """In the fall of another member: the epoch after that is formed without it."""
    world = pool.world("tp")
    for rank in ranks(pool):
        for lost in ranks(pool):
            if (point == "promotion" and lost != rank) or (point == "world_leave" and lost == rank):
                continue  # the process that is lost is not asked to leave
            assert settled(lambda: whole(pool))
            with testing.inject(pool, at=point, fault=fault, device=rank) as injected:
                os.kill(pool.devices[lost].pid or 0, signal.SIGKILL)
                found = world.call("Counted.again", str(tmp_path / "calls"), deadline_s=DEADLINE_S).result(DEADLINE_S)
                assert found == world.size
                injected.wait()


def test_the_supervisor_ends_amid_calls(ledger: Ledger, tmp_path: Path) -> None:
    """Each caller has an error that says whether its call may have run."""
    with ledger.start(f"{ACTORS}/counted.py:Counted", gpus=3, **_settings(3)) as pool:
        world = pool.world("tp")
        replies = [world.call("Counted.once", str(tmp_path / str(number))) for number in range(40)]
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        errors_of = [reply.exception(DEADLINE_S) for reply in replies]
        assert any(errors_of)
        for number, error in enumerate(errors_of):
            ran = counts(tmp_path, str(number))
            assert max(ran) <= 1
            if error is None:
                assert ran == [1, 1, 1]
            else:
                assert isinstance(error, errors.PoolLost | errors.CollectiveAborted | errors.WorkerLost)
                assert error.maybe_executed or max(ran) == 0
    with ledger.start():
        """The next start removes what the killed one has left."""
