"""Callers of a world get the error that came first, not those that follow from it, and may call again at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.worlds.left_epochs import LeftEpochs
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.worlds import on_host, ready_world

HIDING = f"{ACTORS}/hiding.py:Hiding"
SIZE = 3

pytestmark = on_host


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool with a world of three ranks."""
    worlds = {"tp": {"devices": list(range(SIZE)), "actors": ["Hiding"]}}
    with Ledger() as ledger, ledger.start(HIDING, gpus=SIZE, worlds=worlds) as started:
        started.wait_ready(DEADLINE_S)
        yield started


@pytest.fixture
def world(pool: atomr_mp.Pool) -> Any:
    """The world, ready."""
    return ready_world(pool)


def logged(pool: atomr_mp.Pool, rank: int, text: str) -> bool:
    """Return whether the log of a rank's device has a text, and soon."""
    log = Path(pool.run_dir) / f"device-{rank}.log"
    return settled(lambda: text in log.read_text())


@pytest.mark.parametrize("where", ["others meet", "others differ", "others have ended"])
@pytest.mark.parametrize("rank", range(SIZE))
def test_a_collective_in_finally_hides_no_error_of_a_method(
    pool: atomr_mp.Pool, world: Any, rank: int, where: str
) -> None:
    """Whether it is aborted or finds a mismatch: the error is the caller's, with its traceback, and is in the log."""
    with pytest.raises(errors.ActorFailed, match=f"ValueError: layer 1 of rank {rank} is bad") as raised:
        world.call("Hiding.layers", rank, where).result(DEADLINE_S)
    assert (raised.value.rank, raised.value.exception) == (rank, "builtins.ValueError")
    assert "in layers" in raised.value.traceback_text
    assert logged(pool, rank, f"layer 1 of rank {rank} is bad")
    assert world.call("Hiding.epoch").result(DEADLINE_S) > 0


@pytest.mark.parametrize("rank", range(SIZE))
def test_a_collective_in_finally_hides_no_error_of_a_stream(pool: atomr_mp.Pool, world: Any, rank: int) -> None:
    """The others have ended the step, so the collective is aborted."""
    with pytest.raises(errors.ActorFailed, match=f"ValueError: token 2 of rank {rank} is bad") as raised:
        list(world.stream("Hiding.tokens", rank))
    assert (raised.value.rank, raised.value.exception) == (rank, "builtins.ValueError")
    assert logged(pool, rank, f"token 2 of rank {rank} is bad")
    assert world.call("Hiding.epoch").result(DEADLINE_S) > 0


def test_what_comes_behind_a_divergence_runs(world: Any) -> None:
    """Once on each rank, though the caller knows of the epoch's end before the supervisor says so."""
    before = world.call("Hiding.add", each=True).result(DEADLINE_S)
    for number in range(0, 60, 2):
        left = world.call("Hiding.leave", number % SIZE).exception(DEADLINE_S)
        assert isinstance(left, errors.CollectiveAborted)
        assert left.diverged
        counts = world.call("Hiding.add", each=True).result(DEADLINE_S)
        assert counts == [count + number + 1 for count in before]
        world.call("Hiding.leave", number % SIZE).exception(DEADLINE_S)
        assert list(world.stream("Hiding.added")) == [before[0] + number + 2]


def test_an_event_loop_s_calls_run_behind_a_divergence(world: Any) -> None:
    """Several that wait for the next epoch, too."""

    async def run() -> None:
        for number in range(20):
            with pytest.raises(errors.CollectiveAborted):
                await world.call("Hiding.leave", number % SIZE)
            first, *others = await asyncio.gather(*[world.call("Hiding.add") for _ in range(3)])
            assert others == [first + 1, first + 2]

    asyncio.run(run())


def hold_without_news(lane: Any, world: Any) -> None:
    """Have a lane take a member to have left the present epoch, though it has not."""
    with lane._lock:
        left = lane._gangs._left = LeftEpochs(hold_ns=200_000_000)
        left.note(world._number, world.epoch, time.monotonic_ns())


def test_calls_do_not_wait_for_ever_for_news_that_does_not_come(world: Any) -> None:
    """In threads and in event loops they are sent after a time, in the same epoch."""
    epoch = world.call("Hiding.epoch").result(DEADLINE_S)
    hold_without_news(world._client._blocking, world)
    replies = [world.call("Hiding.epoch") for _ in range(2)]
    assert world.call("Hiding.epoch").result(DEADLINE_S) == epoch
    assert [reply.result(DEADLINE_S) for reply in replies] == [epoch] * 2

    async def run() -> list[int]:
        await world.call("Hiding.epoch")
        hold_without_news(world._client._loops[asyncio.get_running_loop()], world)
        return list(await asyncio.gather(*[world.call("Hiding.epoch") for _ in range(2)]))

    assert asyncio.run(run()) == [epoch] * 2
