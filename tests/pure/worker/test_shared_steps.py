"""Rank 0's decisions about streams of a world that run together: which take part in a step, and which are gone."""

from __future__ import annotations

import itertools
from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.world import MemberReader, MemberWriter, Outcome, WorldPageDamagedError, line_bytes
from atomr_mp.protocol.world.page import MAX_STEPPED
from atomr_mp_workers.worlds.order.shared_steps import (
    Role,
    SharedStep,
    SharedSteps,
    SteppedPart,
    StreamRole,
    judge_stream,
    pack_roles,
    unpack_roles,
)
from atomr_mp_workers.worlds.order.steps import UNWANTED, Ending, PartKey, StreamEnd

RANKS = 3
LIVE = 2
ON, ENDED, FAILED, LEFT = Outcome.GOES_ON, Outcome.ENDED, Outcome.FAILED, Outcome.LEFT


class World:
    """An order of shared steps, and the ranks' outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[list[Outcome]] = []
        readers = [
            SimpleNamespace(step_outcomes=lambda _number, count, rank=rank: self._outcomes(rank, count))
            for rank in range(RANKS)
        ]
        self.order = SharedSteps(cast("list[MemberReader]", readers))
        self.sequence = 0

    def come(self, *keys: PartKey, method: str = "A.run", has_room: bool = True, is_resumable: bool = False) -> None:
        """Have streams come to all members."""
        for key in keys:
            self.order.know(key, SteppedPart(method, LIVE, is_resumable), has_room=has_room)
            assert self.order.add(key)

    def step(self) -> SharedStep:
        """Publish the next step."""
        step = self.order.next()
        assert step is not None
        self.sequence += 1
        self.order.published(step, self.sequence)
        return step

    def end_step(self, *outcomes: list[Outcome], method: str = "A.run", room: list[PartKey] | None = None) -> None:
        """Have all ranks end what is published, with the outcomes of each stream by rank; rank 0 says who has room."""
        self.outcomes = list(outcomes)
        self.order.settle(self.sequence)
        for key in room or []:
            self.order.set_room(key, has_room=True)
        self.order.rested(method)

    def _outcomes(self, rank: int, count: int) -> list[Outcome]:
        assert len(self.outcomes) == count
        return [each[rank] for each in self.outcomes]


A, B, C = (7, 1), (7, 2), (8, 3)
ALL_ON = [ON] * RANKS


def roles(step: SharedStep) -> dict[PartKey, Role]:
    """Return how the streams of a step stand."""
    return {key: role.role for key, role in zip(step.keys, step.roles, strict=True)}


def test_a_place_is_given_in_the_order_of_arrival() -> None:
    """As many are live as may; the next one follows when one has ended on all ranks."""
    world = World()
    world.come(A, B, C)
    assert roles(world.step()) == {A: Role.READY, B: Role.READY}
    assert world.order.next() is None
    assert world.order.waits
    world.end_step([ENDED, FAILED, ENDED], ALL_ON)
    assert roles(world.step()) == {B: Role.HELD, C: Role.READY}
    assert len(world.order) == 2


def test_a_step_needs_the_last_one_back_on_all_ranks_and_on_rank_0() -> None:
    """And then room at some reader, a new stream, or one that is gone."""
    world = World()
    world.come(A)
    world.step()
    world.order.set_room(A, has_room=True)
    assert world.order.next() is None
    world.outcomes = [ALL_ON]
    world.order.settle(0)
    assert world.order.next() is None
    world.order.settle(1)
    assert world.order.next() is None, "rank 0 has yet to say which readers have room"
    world.order.rested("A.run")
    assert roles(world.step()) == {A: Role.READY}
    world.end_step(ALL_ON)
    assert world.order.next() is None, "the step has taken the room"
    assert not world.order.waits
    world.come(B, has_room=False)
    assert roles(world.step()) == {A: Role.HELD, B: Role.HELD}


@pytest.mark.parametrize("outcomes", list(itertools.product(Outcome, repeat=RANKS)))
def test_what_a_step_comes_to(outcomes: tuple[Outcome, ...]) -> None:
    """A stream goes on where all ranks do, is forgotten where the method has ended it on all, and is gone else."""
    world = World()
    world.come(A)
    world.step()
    world.end_step(list(outcomes), room=[A])
    end = judge_stream(outcomes)
    if set(outcomes) == {ON}:
        assert roles(world.step()) == {A: Role.READY}
    elif set(outcomes) <= {ENDED, FAILED}:
        assert world.order.next() is None
        assert A not in world.order
        assert not len(world.order)
    else:
        assert end is not None
        fails = [rank for rank, each in enumerate(outcomes) if each in {FAILED, LEFT}]
        assert end.ending is (Ending.FAILED if fails else Ending.DIVERGED)
        assert end.rank == (fails[0] if fails else outcomes.index(ENDED))
        step = world.step()
        assert step.roles == [StreamRole(Role.GONE, end)]
        assert A not in world.order


def test_an_unwanted_stream_is_gone_or_never_begins() -> None:
    """One that waits is declined by all ranks; one that has not come to all is known to be unwanted when it has."""
    world = World()
    world.come(A, B, C)
    world.step()
    assert not world.order.end(A)
    assert world.order.end(C)
    world.end_step(ALL_ON, ALL_ON)
    assert world.step().roles == [StreamRole(Role.HELD), StreamRole(Role.GONE, UNWANTED)]
    early = (9, 9)
    world.order.know(early, SteppedPart("A.run", LIVE, is_resumable=False), has_room=True)
    assert not world.order.end(early)
    assert world.order.is_unwanted(early)
    world.order.forget(early)
    assert not world.order.end(early), "it is forgotten"


def test_a_session_takes_its_streams_with_it() -> None:
    """Its waiting streams are dropped, and its live ones are gone in the next step. Nothing else of it is kept."""
    world = World()
    world.come(A, C)
    world.step()
    world.come(B)
    world.order.know((7, 9), SteppedPart("A.run", LIVE, is_resumable=False), has_room=True)
    assert world.order.end_session(7) == [B]
    assert (7, 9) not in world.order
    world.end_step(ALL_ON, ALL_ON)
    assert roles(world.step()) == {C: Role.HELD, A: Role.GONE}


def test_a_planned_end_moves_resumable_streams_alone() -> None:
    """The others go on; what has not begun is forgotten, since it goes to the next epoch."""
    world = World()
    world.come(A, is_resumable=True)
    world.come(B, C)
    world.step()
    world.order.close()
    assert C not in world.order
    world.end_step(ALL_ON, ALL_ON, room=[B])
    step = world.step()
    assert step.roles == [StreamRole(Role.READY), StreamRole(Role.GONE, StreamEnd(Ending.MOVED))]
    world.end_step([ENDED] * RANKS)
    assert not len(world.order)


def test_methods_take_turns() -> None:
    """The one that has stepped last is last."""
    world = World()
    world.come(A)
    world.come(B, method="B.run")
    world.come(C)
    assert world.step().method == "A.run"
    assert world.step().method == "B.run"
    assert world.order.next() is None


@given(st.lists(st.tuples(st.sampled_from(Role), st.sampled_from(Ending), st.integers(0, RANKS - 1)), max_size=60))
def test_roles_survive_the_ring(drawn: list[tuple[Role, Ending, int]]) -> None:
    """As the data of an entry."""
    found = [StreamRole(role, StreamEnd(end, rank) if role is Role.GONE else None) for role, end, rank in drawn]
    assert unpack_roles(pack_roles(found), len(found), RANKS) == found


@pytest.mark.parametrize("data", [b"", b"\0", b"\3\0", b"\2\xff", b"\0\0\0\0"])
def test_roles_that_cannot_be_are_damage(data: bytes) -> None:
    """Of another number of streams, of no role, or of a rank that does not exist."""
    with pytest.raises(WorldPageDamagedError):
        unpack_roles(data, 1, RANKS)
    with pytest.raises(WorldPageDamagedError):
        unpack_roles(bytes(2 * (MAX_STEPPED + 1)), MAX_STEPPED + 1, RANKS)


def lines() -> tuple[memoryview, MemberWriter, MemberReader]:
    """Return a member's lines with their writer and reader."""
    words = memoryview(array("Q", bytes(line_bytes(3))))
    return words, MemberWriter(words, 1), MemberReader(words, 1)


@given(st.lists(st.lists(st.sampled_from(Outcome), max_size=MAX_STEPPED), min_size=1, max_size=5))
def test_outcomes_of_steps_survive_the_lines(steps: list[list[Outcome]]) -> None:
    """Of the latest entries, in any order."""
    _, writer, reader = lines()
    for number, outcomes in enumerate(steps, 1):
        writer.begin(number)
        writer.end_steps(number, outcomes)
    for number, outcomes in enumerate(steps, 1):
        assert reader.step_outcomes(number, len(outcomes)) == outcomes


def test_a_step_that_did_not_run_has_left_all_streams() -> None:
    """Its entry was passed over."""
    _, writer, reader = lines()
    writer.begin(1)
    writer.end(1, FAILED)
    assert reader.step_outcomes(1, 3) == [LEFT] * 3


def test_what_only_a_stream_of_many_comes_to_is_no_outcome_of_an_entry() -> None:
    """So who judges single streams never sees it."""
    _, writer, reader = lines()
    writer.begin(1)
    writer.end(1, LEFT)
    with pytest.raises(WorldPageDamagedError):
        reader.outcome(1)


def test_more_outcomes_than_have_room_are_refused() -> None:
    """Before anything is written."""
    _, writer, _ = lines()
    with pytest.raises(ValueError, match="65 streams"):
        writer.end_steps(1, [ON] * 65)


@given(st.data())
def test_damaged_outcomes_of_a_step_are_noticed(data: Any) -> None:
    """Whichever word is changed, the outcomes are the true ones or the error says that they are not."""
    words, writer, reader = lines()
    outcomes = [ON, LEFT, ENDED]
    writer.begin(1)
    writer.end_steps(1, outcomes)
    at = data.draw(st.integers(0, len(words) - 1))
    words[at] ^= data.draw(st.integers(1, 2**64 - 1))
    try:
        found = reader.step_outcomes(1, 3)
    except WorldPageDamagedError:
        return
    assert found in (outcomes, [LEFT] * 3), "or its entry was not run, for all that its word says"


class Walk:
    """Any use of the order of one method's streams, and what holds at each step.

    Args:
        draw: Draws what happens.
    """

    keys = (*((1, number) for number in range(5)), *((2, number) for number in range(3)))

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self._world = World()
        self._order = self._world.order
        self._unborn = list(self.keys)
        self._live: set[PartKey] = set()
        self._over: set[PartKey] = set()
        """Streams that must not take a step again."""
        self._under_way: SharedStep | None = None

    def come(self, _key: PartKey) -> None:
        """Have a stream come to all ranks."""
        if self._unborn:
            self._world.come(self._unborn.pop(), has_room=self._draw(st.booleans()))

    def give_room(self, key: PartKey) -> None:
        """Change whether a reader has room."""
        self._order.set_room(key, has_room=self._draw(st.booleans()))

    def end(self, key: PartKey) -> None:
        """Have a stream end."""
        if self._order.end(key):
            self._over.add(key)

    def end_session(self, key: PartKey) -> None:
        """Have a session end."""
        self._over.update(self._order.end_session(key[0]))

    def step(self, _key: PartKey) -> None:
        """Take the next step."""
        step = self._order.next()
        if step is None:
            return
        assert self._under_way is None
        assert len(step.live) <= LIVE
        assert self._live >= {*step.gone}
        assert self._live - {*step.gone} <= {*step.live}
        assert self._over.isdisjoint(step.live)
        self._live, self._under_way = {*step.live}, step
        self._over.update(step.gone)
        self._world.step()

    def settle(self, _key: PartKey) -> None:
        """Have all ranks end it."""
        if self._under_way is not None:
            drawn = st.lists(st.sampled_from(Outcome), min_size=RANKS, max_size=RANKS)
            outcomes = {key: self._draw(drawn) for key in self._under_way.live}
            self._under_way = None
            self._world.end_step(*outcomes.values())
            ended = {key for key, each in outcomes.items() if {*each} <= {ENDED, FAILED}}
            self._live -= ended
            self._over |= ended

    def end_all(self) -> None:
        """End both sessions; nothing is left then."""
        for session in (1, 2):
            self._order.end_session(session)
        for _ in range(2):
            self.settle(self.keys[0])
            self.step(self.keys[0])
        assert not len(self._order)
        assert all(key not in self._order for key in self.keys)


@given(st.data())
def test_any_walk_keeps_all_ranks_together(data: Any) -> None:
    """One step at a time, with as many streams as may be; each stream that has begun is gone once, or ended on all."""
    walk = Walk(data.draw)
    ways = [walk.come, walk.give_room, walk.step, walk.settle, walk.end, walk.end_session]
    for way, key in data.draw(st.lists(st.tuples(st.sampled_from(ways), st.sampled_from(walk.keys)), max_size=60)):
        way(key)
    walk.end_all()
