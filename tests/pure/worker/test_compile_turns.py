"""The turns of the compiler's callers, and their room: walks over whatever may happen."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp import errors
from atomr_mp_workers.compiling import turns
from atomr_mp_workers.compiling.turns import MAX_JOBS, MAX_JOBS_BYTES, CompileWork, Waiter, WorkStage, WorkTurns

OWNERS = "abcd"
MIB = 2**20


class Walk(RuleBasedStateMachine):
    """Callers come and leave; works are taken, missed, and done; all is checked against lists."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: WorkTurns[str] = WorkTurns()
        self.waiters: list[Waiter] = []
        self.taken: list[CompileWork[str]] = []
        self.passed: dict[Any, int] = {}
        """How many works were taken, none of its own, since an owner waits for a process and none of its works runs."""

    def at(self, stage: WorkStage) -> list[Waiter]:
        """Return who waits for works of a stage, in the order of their coming."""
        return [each for each in self.waiters if each.work.stage is stage]

    @rule(
        key=st.sampled_from("12345678"), owner=st.sampled_from(OWNERS), size=st.integers(0, 40), late=st.integers(0, 9)
    )
    def comes(self, key: str, owner: str, size: int, late: int) -> None:
        """A caller comes; one with nothing there gets in if there is any room."""
        own = [each for each in self.waiters if each.owner == owner]
        free = MAX_JOBS_BYTES - sum(each.size for each in self.waiters)
        try:
            self.turns.check_room(owner, size * MIB)
        except errors.Overloaded as error:
            refused = error.message
        else:
            refused = ""
        if refused:
            assert own or size * MIB > free
            assert f"{len(own)} source" in refused
            return
        self.waiters.append(self.turns.add(key, f"job {key}", owner, float(late), size * MIB, None))
        assert sum(each.size for each in self.waiters if each.owner == owner) <= max(
            size * MIB, MAX_JOBS_BYTES - sum(each.size for each in self.waiters)
        )

    @precondition(lambda self: self.waiters)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        """A caller leaves, twice; the last one of a work that runs has it stopped."""
        waiter = data.draw(st.sampled_from(self.waiters))
        self.waiters.remove(waiter)
        others = [each for each in self.waiters if each.work is waiter.work]
        runs = waiter.work.stage is WorkStage.RUNNING
        assert self.turns.leave(waiter) == (runs and not others)
        assert (waiter.work.stage is WorkStage.OVER) == (not others)
        assert not self.turns.leave(waiter)

    @rule(stage=st.sampled_from([WorkStage.NEW, WorkStage.WAITING]))
    def take(self, stage: WorkStage) -> None:
        """The next is the oldest of an owner that has not been served for longest, and none of whose works runs."""
        waiting = self.at(stage)
        charged = {each.work.charged for each in self.at(WorkStage.RUNNING)}
        work = self.turns.take(stage)
        may = waiting if stage is WorkStage.NEW else [each for each in waiting if each.owner not in charged]
        assert (work is None) == (not may)
        if work is None:
            return
        assert stage is WorkStage.NEW or work.charged not in charged
        assert work.charged in {each.owner for each in work.waiters}
        assert all(each.key != work.key for each in self.taken if each.stage is not WorkStage.OVER)
        assert work.waiters == [each for each in waiting if each.work is work]
        self.taken.append(work)
        if stage is WorkStage.WAITING:
            running = {each.work.charged for each in self.at(WorkStage.RUNNING)}
            for owner in {each.owner for each in waiting}:
                self.passed[owner] = 0 if owner in running else self.passed.get(owner, 0) + 1

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), missed=st.booleans())
    def goes_on(self, data: st.DataObject, missed: bool) -> None:  # noqa: FBT001 - drawn
        """A work that was taken is missed or done; one that was dropped has no caller to be answered."""
        work = data.draw(st.sampled_from(self.taken))
        self.taken.remove(work)
        waiting = [each for each in self.waiters if each.work is work]
        if missed and work.stage is not WorkStage.RUNNING:
            self.turns.missed(work)
            assert work.stage is (WorkStage.WAITING if waiting else WorkStage.OVER)
            return
        assert self.turns.end(work) == waiting
        self.waiters = [each for each in self.waiters if each.work is not work]

    @invariant()
    def nothing_is_lost(self) -> None:
        """Those who wait are those who came and neither left nor were answered; what has gone takes no room."""
        assert sorted(map(id, self.turns.waiters())) == sorted(map(id, self.waiters))
        assert len(self.turns) == len(self.waiters) <= MAX_JOBS
        assert self.turns.nbytes == sum(each.size for each in self.waiters) <= MAX_JOBS_BYTES
        assert self.turns.due_s() == min((each.deadline_s for each in self.waiters), default=None)
        keys = [each.key for each in {id(each.work): each.work for each in self.waiters}.values()]
        assert len(keys) == len(set(keys)), "equal jobs are one work"

    @invariant()
    def owners_take_turns(self) -> None:
        """While an owner waits for a process and none of its works runs, each other one is served once."""
        waiting = {each.owner for each in self.at(WorkStage.WAITING)}
        self.passed = {owner: count for owner, count in self.passed.items() if owner in waiting}
        assert all(count < len(OWNERS) for count in self.passed.values())


TestWalk = Walk.TestCase


def fill(found: WorkTurns[str], owner: str) -> int:
    """Let an owner come as often as it may; return how often that is."""
    for count in itertools.count():
        try:
            found.check_room(owner, 1)
        except errors.Overloaded:
            return count
        found.add(f"{owner} {count}", "", owner, 0.0, 1, None)
    raise AssertionError


@pytest.mark.parametrize("way", ["ends", "leaves", "is charged to another"])
def test_who_comes_while_others_are_served_is_next(way: str) -> None:
    """One whose turn it was, and who has more, comes after all who came while that ran, however it ends for it."""
    found: WorkTurns[str] = WorkTurns()

    def come(key: str, owner: str) -> Waiter:
        waiter = found.add(key, "", owner, 0.0, 1, None)
        if waiter.work.stage is WorkStage.NEW:
            work = found.take(WorkStage.NEW)
            assert work is not None
            found.missed(work)
        return waiter

    first = [come(f"{owner} {number}", owner) for owner in "ab" for number in range(3)][::3]
    works = [found.take(WorkStage.WAITING) for _ in "ab"]
    assert [each.charged for each in works if each] == ["a", "b"]
    come("c", "c")
    if way == "is charged to another":
        found.add("a 0", "", "d", 0.0, 1, None)
    if way == "ends":
        assert works[0] is not None
        found.end(works[0])
    else:
        assert found.leave(first[0]) == (way == "leaves")
    taken = []
    while work := found.take(WorkStage.WAITING):
        taken.append(work.charged)
    assert taken == ["c", "a"]


def test_whoever_asks_for_all_leaves_room_for_others() -> None:
    """It gets half of the free places; one after the other, and again when others have gone."""
    found: WorkTurns[str] = WorkTurns()
    assert [fill(found, owner) for owner in "abcdefgh"] == [64, 32, 16, 8, 4, 2, 1, 1]
    assert fill(found, "i") == fill(found, "a") == 0
    for waiter in list(found.waiters()):
        if waiter.owner != "a":
            found.leave(waiter)
    assert fill(found, "a") == 0
    assert fill(found, "b") == 32


def test_a_large_job_fits_if_nobody_else_has_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what there is, and of whom."""
    monkeypatch.setattr(turns, "MAX_JOBS_BYTES", 4 * MIB)
    found: WorkTurns[str] = WorkTurns()
    found.check_room("a", 4 * MIB)
    with pytest.raises(errors.Overloaded, match="0 sources of this client with 0 MiB, and 0 of others with 0 MiB"):
        found.check_room("a", 4 * MIB + 1)
    found.add("x", "", "a", 0.0, 2 * MIB, None)
    with pytest.raises(errors.Overloaded, match="1 source of this client with 2 MiB"):
        found.check_room("a", 1)
    found.check_room("b", 2 * MIB)


def test_the_table_is_whole() -> None:
    """Each stage but the last ends, whatever happens; and a work that is over stays so."""
    stages: dict[WorkStage, set[Any]] = {stage: set() for stage in WorkStage}
    for stage, event in turns.TRANSITIONS:
        stages[stage].add(event)
    assert stages.pop(WorkStage.OVER) == set()
    assert all(turns.WorkEvent.DESERTED in each for each in stages.values())
