"""Rank 0's decisions about streams of a world: who takes a step, who ends, and why."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.world import MemberReader, Outcome, WorldPageDamagedError
from atomr_mp_workers.worlds.order.steps import UNWANTED, Ending, StepOrder, StreamEnd, judge_step

RANKS = 3
ON, ENDED, FAILED = Outcome.GOES_ON, Outcome.ENDED, Outcome.FAILED


class World:
    """A step order, the ranks' outcomes, and what each stream is allowed to do."""

    def __init__(self) -> None:
        self.outcomes: dict[int, list[Outcome]] = {}
        readers = [
            SimpleNamespace(outcome=lambda number, rank=rank: self.outcomes[number][rank]) for rank in range(RANKS)
        ]
        self.order = StepOrder(cast("list[MemberReader]", readers))
        self.sequence = 0

    def open(self, key: tuple[int, int], *, has_room: bool, is_resumable: bool = False) -> bool:
        """Begin a stream; return whether it takes its first step."""
        self.order.came(key, has_room=has_room, is_resumable=is_resumable)
        first = self.order.has_first_step(key)
        self.step(key)
        return first

    def step(self, key: tuple[int, int]) -> None:
        """Publish a step."""
        self.sequence += 1
        self.order.published(key, self.sequence)

    def end_step(self, *outcomes: Outcome) -> None:
        """Have all ranks end what is published."""
        self.outcomes[self.sequence] = list(outcomes) if len(outcomes) > 1 else list(outcomes) * RANKS
        self.order.settle(self.sequence)


KEY = (7, 1)


def test_a_step_needs_the_end_of_the_last_one_on_all_ranks_and_room() -> None:
    """Room alone is not enough, nor is the end."""
    world = World()
    assert world.open(KEY, has_room=True)
    world.order.set_room(KEY, has_room=True)
    assert world.order.next() is None
    assert world.order.waits
    world.outcomes[1] = [ON] * RANKS
    world.order.settle(0)
    assert world.order.next() is None
    world.order.settle(1)
    assert world.order.next() == (KEY, None)
    world.step(KEY)
    world.end_step(ON)
    assert world.order.next() is None, "the step has taken the room"
    assert bool(world.order.waits) is False
    world.order.set_room(KEY, has_room=True)
    assert world.order.next() == (KEY, None)
    world.order.set_room(KEY, has_room=False)
    assert world.order.next() is None


@pytest.mark.parametrize("outcomes", list(itertools.product((ON, ENDED, FAILED), repeat=RANKS)))
def test_what_a_step_comes_to(outcomes: tuple[Outcome, ...]) -> None:
    """It goes on where all do; it is over where none does; else the lowest failed rank ends it, or the first to end."""
    world = World()
    world.open(KEY, has_room=True)
    world.end_step(*outcomes)
    end = judge_step(outcomes)
    if ON not in outcomes:
        assert end is None
        assert not len(world.order)
        assert not world.order.waits
        return
    assert len(world.order) == 1
    if set(outcomes) == {ON}:
        assert world.order.next() is None
        return
    found = world.order.next()
    assert found == (KEY, end)
    assert end is not None
    assert end.ending is (Ending.FAILED if FAILED in outcomes else Ending.DIVERGED)
    assert end.rank == outcomes.index(FAILED if FAILED in outcomes else ENDED)
    world.order.published_end(KEY)
    assert not len(world.order)


def test_an_unwanted_stream_ends_after_its_step() -> None:
    """Whether it waits for room or not; one that has not begun takes no step."""
    world = World()
    world.open(KEY, has_room=True)
    world.order.end(KEY)
    assert world.order.next() is None
    world.end_step(ON)
    assert world.order.next() == (KEY, UNWANTED)
    world.order.published_end(KEY)
    early = (7, 2)
    world.order.came(early, has_room=True, is_resumable=False)
    world.order.end(early)
    assert not world.order.has_first_step(early)


def test_a_planned_end_moves_resumable_streams_alone() -> None:
    """The others go on to their ends."""
    world = World()
    moving, staying = (7, 1), (7, 2)
    world.open(moving, has_room=True, is_resumable=True)
    world.end_step(ON)
    world.open(staying, has_room=True)
    world.end_step(ON)
    world.order.close()
    assert world.order.next() == (moving, StreamEnd(Ending.MOVED))
    world.order.published_end(moving)
    assert world.order.next() is None
    assert len(world.order) == 1


def test_a_session_takes_its_streams_with_it() -> None:
    """Nothing of those that have not begun is kept."""
    world = World()
    world.open((7, 1), has_room=True)
    world.end_step(ON)
    world.order.came((7, 2), has_room=True, is_resumable=True)
    world.order.came((8, 3), has_room=True, is_resumable=False)
    world.order.end_session(7)
    assert world.order.next() == ((7, 1), UNWANTED)
    assert not world.order.has_first_step((7, 2))
    assert world.order.has_first_step((8, 3))


@given(st.sampled_from(Ending), st.integers(0, 63))
def test_an_end_survives_the_ring(ending: Ending, rank: int) -> None:
    """As the argument of an entry; a rank that does not exist is damage."""
    end = StreamEnd(ending, rank)
    assert StreamEnd.unpack(end.pack(), rank + 1) == end
    if rank:
        with pytest.raises(WorldPageDamagedError):
            StreamEnd.unpack(end.pack(), rank)


class Walk:
    """Any use of a step order, with what it may do.

    Args:
        data: Draws what happens.
    """

    keys = (*((1, number) for number in range(4)), *((2, number) for number in range(2)))

    def __init__(self, data: Any) -> None:
        self.draw = data.draw
        self.world = World()
        self.order = self.world.order
        self.unborn = list(self.keys)
        self.under_way: dict[tuple[int, int], int] = {}
        self.room = dict.fromkeys(self.keys, False)

    def open(self, _key: tuple[int, int]) -> None:
        """Begin a stream."""
        if self.unborn:
            key = self.unborn.pop()
            self.world.open(key, has_room=self.room[key])
            self._is_under_way(key)

    def give_room(self, key: tuple[int, int]) -> None:
        """Change whether a stream has room."""
        if key not in self.unborn:
            self.room[key] = self.draw(st.booleans())
            self.order.set_room(key, has_room=self.room[key])

    def publish(self, _key: tuple[int, int]) -> None:
        """Publish what is due."""
        found = self.order.next()
        if found is None:
            return
        key, end = found
        assert key not in self.under_way
        if end is None:
            assert self.room[key]
            self.world.step(key)
            self._is_under_way(key)
        else:
            self.order.published_end(key)

    def settle(self, _key: tuple[int, int]) -> None:
        """Have all ranks end an entry."""
        if self.under_way:
            key, sequence = next(iter(self.under_way.items()))
            drawn = st.lists(st.sampled_from((ON, ENDED, FAILED)), min_size=RANKS, max_size=RANKS)
            self.world.outcomes[sequence] = self.draw(drawn)
            self.order.settle(sequence)
            del self.under_way[key]

    def end(self, key: tuple[int, int]) -> None:
        """Have a stream end."""
        if key not in self.unborn:
            self.order.end(key)

    def end_session(self, key: tuple[int, int]) -> None:
        """Have a session end."""
        self.order.end_session(key[0])

    def close(self, _key: tuple[int, int]) -> None:
        """Have the epoch end as planned."""
        self.order.close()

    def _is_under_way(self, key: tuple[int, int]) -> None:
        self.under_way[key], self.room[key] = self.world.sequence, False


@given(st.data())
def test_any_walk_steps_streams_one_by_one_and_ends_all(data: Any) -> None:
    """No stream has two entries under way, none steps without room, and each is forgotten in the end."""
    walk = Walk(data)
    ways = [walk.open, walk.give_room, walk.publish, walk.settle, walk.end, walk.end_session, walk.close]
    for way, key in data.draw(st.lists(st.tuples(st.sampled_from(ways), st.sampled_from(walk.keys)), max_size=60)):
        way(key)
    for session in (1, 2):
        walk.order.end_session(session)
    while walk.under_way:
        walk.settle((1, 0))
    while (found := walk.order.next()) is not None:
        walk.order.published_end(found[0])
    assert not len(walk.order)
    assert not walk.order.waits
