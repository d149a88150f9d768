"""Members of a world by NCCL that die at any point: the others leave in time, and go on with another process."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.nccl_ranks import NcclProcess, NcclWorld
from tests.support import DEADLINE_S, settled

SUM: Final = "world.all_reduce(cp.arange(4.0) + rank)"


@pytest.fixture(params=[2, 3])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NcclWorld]:
    """Yield a world of so many ranks."""
    with NcclWorld(request.param, stand_in=tmp_path) as made:
        yield made


def right(world: NcclWorld) -> None:
    """Assert that all ranks have the right sum."""
    expected = sum(np.arange(4.0) + rank for rank in range(world.size))
    for each in world.call(SUM):
        np.testing.assert_array_equal(each, expected)


def come_back(world: NcclWorld, dead: NcclProcess) -> None:
    """Have the others leave, and all join the next epoch with another process."""
    survivors = [each for each in world.all if each is not dead]
    assert world.leave(*survivors) == ["left: "] * len(survivors)
    world.replace(dead, world.start(dead.rank, dead.generation + 1))
    world.join()
    right(world)
    for each in survivors:
        assert not each.do("nccl.poisoned")
        assert settled(lambda each=each: each.do("nccl.aborts") >= 1)  # type: ignore[misc]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_while_others_wait_on_their_devices(world: NcclWorld, victim: int) -> None:
    """It dies behind the meeting, before its part is put, and NCCL is silent; the end of the epoch ends their calls."""
    world.join()
    right(world)
    dead = world.all[victim]
    dead.do("setattr(nccl, 'blocks_in_calls', True)")
    for each in world.all:
        each.call(SUM)
    for each in world.all:
        if each is not dead:
            assert not _is_answered(each)
    dead.kill()
    world.stop()
    for each in world.all:
        if each is not dead:
            assert each.get(DEADLINE_S).startswith("CollectiveAborted: epoch 1 of the world 'tp' is over")
    come_back(world, dead)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_before_a_meeting(world: NcclWorld, victim: int) -> None:
    """The others wait on the host."""
    world.join()
    dead = world.all[victim]
    for each in world.all:
        if each is not dead:
            each.call(SUM)
    dead.kill()
    world.stop()
    for each in world.all:
        if each is not dead:
            assert each.get(DEADLINE_S).startswith("CollectiveAborted")
    come_back(world, dead)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_while_they_form(world: NcclWorld, victim: int) -> None:
    """It is never reported by NCCL; the order to leave ends the forming of the others."""
    dead = world.all[victim]
    dead.do("setattr(nccl, 'hangs_in_init', True)")
    world.ask_to_join()
    for each in world.all:
        assert settled(lambda each=each: each.do("len(nccl._comms)") == 1)  # type: ignore[misc]
    dead.kill()
    for each in world.all:
        if each is not dead:
            assert each.do("member.state.name") in {"FORMING", "JOINED"}
    world.stop()
    come_back(world, dead)


def test_a_death_between_calls(world: NcclWorld) -> None:
    """Nothing waits; a call that comes behind the end is refused at the gate."""
    world.join()
    dead = world.all[1]
    dead.kill()
    world.stop()
    first = world.all[0]
    first.call(SUM)
    assert first.get().startswith("CollectiveAborted")
    come_back(world, dead)


def test_an_end_behind_a_meeting_enqueues_nothing(world: NcclWorld) -> None:
    """The gate is shut by then, and the rank that has passed the meeting raises."""
    world.join()
    first = world.all[0]
    before = first.do("len(nccl.enqueued)")
    first.do("engine._forming.communicator.close()")
    found = world.all
    for each in found:
        each.call(SUM)
    assert "its communicator was closed" in first.get()
    world.stop()
    for each in found[1:]:
        assert each.get().startswith("CollectiveAborted")
    assert first.do("len(nccl.enqueued)") == before
    assert not first.do("nccl.poisoned")


def test_an_init_that_fails_ends_the_epoch_and_in_the_end_the_process(tmp_path: Path) -> None:
    """The next epoch may be better, twice."""
    with NcclWorld(1, stand_in=tmp_path) as world:
        (one,) = world.all
        one.do("setattr(nccl, 'init_status', 2)")
        why = "could not form a communicator: NCCL could not form a communicator: NCCL_SYSTEM_ERROR"
        for how in ("left", "left", "left unfit"):
            world.ask_to_join()
            assert one.do(f"joined({world.epoch})").startswith(f"{how}: {why}")
        one.do("setattr(nccl, 'init_status', 0)")
        world.join()
        right(world)


def test_a_call_that_fails_ends_the_epoch(world: NcclWorld) -> None:
    """For the others have put theirs."""
    world.join()
    first = world.all[0]
    first.do("setattr(nccl, 'call_status', 4)")
    for each in world.all:
        each.call(SUM)
    assert "NCCL could not put all_reduce on a stream: NCCL_INVALID_ARGUMENT" in first.get()
    found = settled(lambda: any(getattr(each, "rank", None) == 0 for each in first.do("[*sent]")))
    assert found, "the supervisor is told"
    world.stop()
    for each in world.all[1:]:
        assert each.get().startswith("CollectiveAborted")


def test_an_abort_that_does_not_return_keeps_no_epoch_from_its_end(world: NcclWorld) -> None:
    """The process leaves; it asks for another one, and the next forming does not wait for ever."""
    world.join()
    first = world.all[0]
    first.do("setattr(nccl, 'hangs_in_abort', True)")
    first.do("from atomr_mp_workers.worlds.nccl import communicator; communicator.ABORT_S = 0.2")
    world.stop()
    assert world.leave(*world.all) == ["left: "] * world.size
    world.ask_to_join()
    assert settled(
        lambda: any("has not returned within" in getattr(each, "reason", "") for each in first.do("[*sent]"))
    )


def test_twenty_deaths_leave_nothing(tmp_path: Path) -> None:
    """No thread, no descriptor, no mapping grows on the survivor."""
    with NcclWorld(2, stand_in=tmp_path) as world:
        facts: list[Any] = []
        began = time.monotonic()
        for turn in range(20):
            world.join()
            right(world)
            dead = world.all[1]
            dead.process.send_signal((signal.SIGKILL, signal.SIGSEGV)[turn % 2])
            dead.process.wait()
            world.stop()
            assert world.leave(world.all[0]) == ["left: "]
            world.replace(dead, world.start(1, dead.generation + 1))
            assert settled(lambda: world.all[0].do("__import__('threading').active_count()") <= 12)
            facts.append(world.all[0].do("(len(__import__('os').listdir('/proc/self/fd')), len(engine._pages))"))
        assert facts[-1] == facts[2]
        assert time.monotonic() - began < 20 * DEADLINE_S


def _is_answered(process: NcclProcess) -> bool:
    try:
        process.get(0.05)
    except TimeoutError:
        return False
    return True


@pytest.fixture(params=[2, 3])
def spared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NcclWorld]:
    """Yield a world of so many ranks that form communicators with standbys ahead."""
    with NcclWorld(request.param, stand_in=tmp_path, spares=True) as made:
        yield made


def spare_is_ready(members: list[NcclProcess], rank: int, name: str) -> bool:
    """Wait until all of these say that the spare for a standby of a rank is ready."""
    from atomr_mp_workers.worlds.nccl.page import READY_AT

    return settled(lambda: all(each.do(f"engine._words[{READY_AT + rank}]") == int(name) for each in members))


def stand_by(world: NcclWorld, rank: int, generation: int) -> NcclProcess:
    """Start a standby, and wait until its spare is ready everywhere."""
    from atomr_mp_workers.worlds.nccl.page import name_of

    standby = world.start(rank, generation)
    standby.do("member.mailbox_came()")
    generations = world.generations
    generations[rank] = generation
    members = [each for each in world.all if each.rank != rank] + [standby]
    assert spare_is_ready(members, rank, str(name_of(generations)))
    return standby


def each_has(processes: Sequence[Any]) -> list[int]:
    """Return how many communicators processes have, in rising order."""
    return sorted(each.do("len(nccl._comms)") for each in processes)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_standby_takes_over_by_what_it_has_formed_ahead(spared: NcclWorld, victim: int) -> None:
    """Nothing is formed then; and the next one is formed ahead again."""
    spared.join()
    right(spared)
    for generation in (2, 3):
        standby = stand_by(spared, victim, generation)
        dead = spared.all[victim]
        survivors = [each for each in spared.all if each is not dead]
        made = [each.do("len(nccl._comms)") for each in [*survivors, standby]]
        dead.kill()
        spared.stop()
        assert spared.leave(*survivors) == ["left: "] * len(survivors)
        spared.replace(dead, standby)
        spared.join()
        right(spared)
        assert spared.each("engine._forming.uses_spare") == [True] * spared.size
        now = functools.partial(each_has, spared.all)
        assert settled(lambda now=now, made=made: now() == sorted(made)), (now(), made)  # type: ignore[misc]
        assert not any(spared.each("nccl.poisoned"))


def test_where_a_spare_is_not_ready_on_all_a_new_one_is_formed(spared: NcclWorld) -> None:
    """Rank 0 decides it for all."""
    spared.join()
    standby = stand_by(spared, 1, 2)
    last = spared.all[-1] if spared.size > 2 else standby
    last.do("engine._page.show_ready(1, 0)")
    dead = spared.all[1]
    survivors = [each for each in spared.all if each is not dead]
    dead.kill()
    spared.stop()
    spared.leave(*survivors)
    spared.replace(dead, standby)
    spared.join()
    right(spared)
    assert spared.each("engine._forming.uses_spare") == [False] * spared.size


def test_a_standby_that_dies_takes_its_spare_with_it(spared: NcclWorld) -> None:
    """Ready or forming; the members go on, and form one with the next standby."""
    spared.join()
    lost = spared.start(1, 2)
    lost.do("setattr(nccl, 'hangs_in_init', True)")
    lost.do("member.mailbox_came()")
    for each in spared.all:
        if each.rank != 1:
            assert settled(lambda each=each: each.do("[*engine._spares._made]") == [1])  # type: ignore[misc]
    lost.kill()
    for each in spared.all:
        if each.rank != 1:
            each.do("member.incarnation_over(1, 2)")
            assert settled(lambda each=each: each.do("nccl.aborts") == 1)  # type: ignore[misc]
    right(spared)
    stand_by(spared, 1, 3)
    right(spared)


def test_two_deaths_at_once_form_a_new_one(spared: NcclWorld) -> None:
    """No spare is of these processes."""
    spared.join()
    standbys = [stand_by(spared, rank, 2) for rank in range(2)]
    for each in spared.all[:2]:
        each.kill()
    spared.stop()
    rest = spared.all[2:]
    assert spared.leave(*rest) == ["left: "] * len(rest)
    for dead, standby in zip(spared.all[:2], standbys, strict=True):
        spared.replace(dead, standby)
    spared.join()
    right(spared)
