"""The epochs of a world, walked in a model of its processes, their messages, and what the supervisor learns of them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from enum import StrEnum, auto
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.messages.devices import WorldState
from atomr_mp.supervision import world_epochs
from atomr_mp.supervision.world_epochs import (
    TRANSITIONS,
    UnexpectedWorldEventError,
    WorldAction,
    WorldEvent,
    world_step,
)
from atomr_mp.supervision.world_members import (
    FinishEpoch,
    FormEpoch,
    FreeWorld,
    LeaveEpoch,
    PublishEpoch,
    RefuseEpoch,
    ReplaceMembers,
    StopEpoch,
    WorldMember,
    WorldMembers,
    WorldOrder,
)

Choose = Callable[[list[Any]], Any]


class Health(StrEnum):
    """How a process is."""

    STARTING = auto()
    WELL = auto()
    STUCK = auto()
    """It answers nothing."""
    DEAD = auto()
    GONE = auto()
    """It is dead, and the supervisor knows it."""


class Process:
    """One incarnation of a rank."""

    def __init__(self, member: WorldMember, code: str) -> None:
        self.member = member
        self.code = code
        self.health = Health.STARTING
        self.received: deque[FormEpoch | FinishEpoch | LeaveEpoch] = deque()
        self.sent: deque[tuple[str, int]] = deque()
        """Messages that the supervisor has not read: "joined", "left" or "gave up", and the epoch."""
        self.told_lost = False
        """The supervisor has taken in that it is poisoned, drains, is replaced or has ended."""
        self.is_condemned = False
        """Its device's life is ending it."""
        self.is_replaced = False
        self.inside = 0
        """The epoch whose memory it may map; 0 for none."""
        self.closes = 0
        """The latest epoch whose last entry it has published, as rank 0."""
        self.asked = 0
        """The latest epoch that it was asked to join."""
        self.has_left: set[int] = set()
        """Epochs that the supervisor knows it has left."""

    def become(self, health: Health) -> None:
        """Fall ill, or die."""
        self.health = health
        if health is Health.DEAD:
            self.inside = 0

    def read(self) -> None:
        """Do what the supervisor has asked."""
        order = self.received.popleft()
        if isinstance(order, FormEpoch):
            self.inside = order.epoch
            self.sent.append(("joined", order.epoch))
        elif isinstance(order, FinishEpoch):
            self.closes = order.epoch
        elif self.inside == order.epoch:
            self.leave()

    def leave(self, how: str = "left") -> None:
        """Leave, asked or not; a process leaves an epoch once."""
        self.sent.append((how, self.inside))
        self.inside = 0

    def asked_in(self) -> bool:
        """Return whether the world waits for it, and so finds out that it is stuck."""
        return self.asked not in {0, *self.has_left}

    def is_leaving(self, epoch: int) -> bool:
        """Return whether it has left, and the supervisor does not know it yet."""
        return ("left", epoch) in self.sent or ("gave up", epoch) in self.sent


class Walk:
    """A world, its processes, and what was promised of it.

    Args:
        size: How many ranks it has.
        choose: Picks one of several things.
    """

    def __init__(self, size: int, choose: Choose) -> None:
        self.choose = choose
        self.world = WorldMembers(size)
        self.code = "old"
        self.next_incarnation = 1
        self.processes: list[Process] = []
        self.active: list[Process | None] = [None] * size
        """The process of each rank that is, or is to be, its active one."""
        self.formed: list[FormEpoch] = []
        self.published: list[int] = []
        self.refused: list[int] = []
        self.stopped: list[int] = []
        self.closed: list[int] = []
        self.is_closed = False
        self.frees = 0
        self.timers: set[tuple[str, int]] = set()

    # The supervisor's side.

    def obey(self, orders: list[WorldOrder]) -> None:  # noqa: C901, PLR0912 - one case for each order
        """Carry orders out, and check each of them."""
        for order in orders:
            assert not self.frees, "an order after all was given back"
            match order:
                case FormEpoch(epoch, members):
                    self._form(order)
                    for member in members:
                        process = self.process(member)
                        process.asked = epoch
                        process.received.append(order)
                    self.timers.add(("join", epoch))
                case PublishEpoch(epoch, members):
                    self._publish(epoch, members)
                case StopEpoch(epoch):
                    assert epoch == self.formed[-1].epoch
                    assert epoch not in self.stopped
                    self.stopped.append(epoch)
                case RefuseEpoch(epoch, _):
                    closes = self.world.state in {WorldState.CLOSING, WorldState.ENDING}
                    assert closes or self.stopped[-1] == epoch, "clients were told before waits ended"
                    assert epoch == self.published[-1]
                    assert epoch not in self.refused, "refused twice"
                    self.refused.append(epoch)
                case FinishEpoch(epoch, members):
                    assert epoch == self.refused[-1], "clients send calls still"
                    assert epoch not in self.closed
                    assert epoch not in self.stopped
                    assert members == self.formed[-1].members
                    self.closed.append(epoch)
                    for member in members:
                        self.process(member).received.append(order)
                    self.timers.add(("close", epoch))
                case LeaveEpoch(epoch, members):
                    assert self.stopped[-1] == epoch
                    for member in members:
                        assert self.process(member).asked == epoch
                        self.process(member).received.append(order)
                    self.timers.add(("leave", epoch))
                case ReplaceMembers(epoch, members):
                    assert members
                    for member in members:
                        process = self.process(member)
                        assert process.asked == epoch
                        assert not process.is_replaced, "replaced twice"
                        process.is_replaced = process.is_condemned = process.told_lost = True
                case FreeWorld():
                    self.frees += 1
                    assert self.is_closed
                    assert not self.still_inside(), "somebody still maps it"

    def _form(self, order: FormEpoch) -> None:
        assert not self.is_closed, "formed after the end"
        assert not self.formed or order.epoch > self.formed[-1].epoch, "a number was used again"
        assert not self.still_inside(), "somebody is still in the epoch before"
        assert set(self.published) == set(self.refused), "the epoch before was not refused"
        assert [member.rank for member in order.members] == list(range(len(self.active)))
        processes = [self.process(member) for member in order.members]
        assert not any(process.told_lost for process in processes)
        assert len({process.code for process in processes}) == 1, "members with different code"
        self.formed.append(order)

    def _publish(self, epoch: int, members: tuple[WorldMember, ...]) -> None:
        assert not self.is_closed, "published after the end"
        assert epoch == self.formed[-1].epoch
        assert members == self.formed[-1].members
        assert epoch not in self.published
        assert epoch not in self.stopped
        for member in members:
            process = self.process(member)
            assert ("joined", epoch) not in process.sent, "its word has not come yet"
            assert process.inside == epoch or process.health in {Health.DEAD, Health.GONE} or process.is_leaving(epoch)
            assert not process.told_lost, "its member was lost"
        self.published.append(epoch)

    def still_inside(self) -> list[Process]:
        """Return the processes that were asked to join an epoch, and have not left or ended as far as is known."""
        return [
            each
            for each in self.processes
            if each.asked and each.health is not Health.GONE and each.asked not in each.has_left
        ]

    def process(self, member: WorldMember) -> Process:
        """Return a member's process."""
        return next(each for each in reversed(self.processes) if each.member == member)

    # What can happen.

    def step(self) -> None:
        """Let one thing happen."""
        self.choose(self.possible())()
        self.check()

    def possible(self) -> list[Callable[[], None]]:
        """Return what can happen now: mostly what leads to an epoch."""
        good: list[Callable[[], None]] = [self.tell_stale]
        for rank, process in enumerate(self.active):
            if process is None or process.told_lost:
                good.append(lambda rank=rank: self.start(rank))  # type: ignore[misc]
        for process in self.processes:
            good += self._possible_good(process)
        if self.choose([True] * 7 + [False]):
            return good
        mishaps: list[Callable[[], None]] = [self.change_code]
        mishaps += [lambda rank=rank: self.start(rank) for rank in range(len(self.active))]  # type: ignore[misc]
        mishaps += [lambda timer=timer: self.expire(timer) for timer in sorted(self.timers)]  # type: ignore[misc]
        for process in self.processes:
            mishaps += self._possible_mishaps(process)
        if self.formed:
            mishaps.append(self.break_epoch)
        if not self.is_closed and self.choose([False] * 99 + [True]):
            mishaps.append(self.close)
        return mishaps

    def _possible_good(self, process: Process) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = [lambda: self.hear(process)] * bool(process.sent)
        if process.health is Health.STARTING:
            found.append(lambda: self.get_ready(process))
        elif process.health is Health.WELL and process.received:
            found.append(process.read)
        elif process.health is Health.WELL and self.sees_last(process):
            found.append(process.leave)
        elif process.health is Health.DEAD:
            found.append(lambda: self.bury(process))
        elif process.is_condemned and process.health is Health.STUCK:
            found.append(lambda: process.become(Health.DEAD))
        return found

    def _possible_mishaps(self, process: Process) -> list[Callable[[], None]]:
        if process.health in {Health.DEAD, Health.GONE}:
            return []
        found: list[Callable[[], None]] = [lambda: process.become(Health.DEAD)]
        if process.health is Health.WELL:
            found.append(lambda: process.become(Health.STUCK))
            found += [lambda: process.leave("gave up")] * bool(process.inside)
        if process.health in {Health.WELL, Health.STUCK} and not process.told_lost:
            found += [lambda: self.lose(process, "poisoned"), lambda: self.lose(process, "drains")]
        return found

    def sees_last(self, process: Process) -> bool:
        """Return whether rank 0 has published the last entry of the epoch that a process is in."""
        if not process.inside or process.inside != self.formed[-1].epoch:
            return False
        return self.process(self.formed[-1].members[0]).closes == process.inside

    def start(self, rank: int) -> None:
        """Start a process that takes the place of another when it is ready, whether or not that one is lost."""
        process = Process(WorldMember(rank, self.next_incarnation), self.code)
        self.next_incarnation += 1
        self.processes.append(process)
        self.active[rank] = process

    def change_code(self) -> None:
        """Have later processes run other code; those that run it are replaced as others are."""
        self.code = "new" if self.code == "old" else "old"

    def get_ready(self, process: Process) -> None:
        """Have a process be set up."""
        process.health = Health.WELL
        if self.active[process.member.rank] is process:
            for other in self.processes:
                other.told_lost |= other.member.rank == process.member.rank and other is not process
            self.obey(self.world.ready(*process.member, process.code))

    def lose(self, process: Process, how: str) -> None:
        """Have a process be poisoned, or drain."""
        process.told_lost = True
        process.is_condemned = True
        if how == "poisoned":
            process.health = Health.STUCK
            self.obey(self.world.poisoned(*process.member))
        else:
            self.obey(self.world.drains(*process.member))

    def bury(self, process: Process) -> None:
        """Have the supervisor learn of a process's end, maybe before it has read what that has sent."""
        process.health = Health.GONE
        process.told_lost = True
        process.received.clear()
        self.obey(self.world.ended(*process.member))

    def hear(self, process: Process) -> None:
        """Have the supervisor read a message, maybe after the end of the process that has sent it."""
        what, epoch = process.sent.popleft()
        if what == "joined":
            self.obey(self.world.joined(*process.member, epoch))
        else:
            process.has_left.add(epoch)
            self.obey(self.world.left(*process.member, epoch, "a page is damaged" if what == "gave up" else ""))

    def expire(self, timer: tuple[str, int]) -> None:
        """Have a timer ring, maybe long after what it was for."""
        self.timers.discard(timer)
        what, epoch = timer
        late = {"join": self.world.join_late, "close": self.world.close_late, "leave": self.world.leave_late}
        self.obey(late[what](epoch))

    def break_epoch(self) -> None:
        """Have a rank raise while others wait for it."""
        self.obey(self.world.broken(self.formed[-1].epoch, "raised", 0))

    def close(self) -> None:
        """Close the world."""
        self.is_closed = True
        self.obey(self.world.close())

    def tell_stale(self) -> None:
        """Tell facts about former epochs and incarnations: they change nothing."""
        before = self.snapshot()
        epoch = self.world.epoch - self.choose([1, 2])
        orders: list[WorldOrder] = [*self.world.broken(epoch, "raised", 0)]
        orders += [*self.world.join_late(epoch), *self.world.close_late(epoch), *self.world.leave_late(epoch)]
        for process in self.processes[-6:]:
            orders += [*self.world.joined(*process.member, epoch), *self.world.left(*process.member, epoch)]
            if process.health is Health.GONE:
                orders += [*self.world.ready(*process.member, process.code), *self.world.ended(*process.member)]
                orders += [*self.world.poisoned(*process.member), *self.world.drains(*process.member)]
                orders += self.world.joined(*process.member, self.world.epoch)
                orders += self.world.left(*process.member, self.world.epoch)
        orders += self.world.close() if self.is_closed else []
        assert not orders
        assert self.snapshot() == before

    def snapshot(self) -> Any:
        """Return all that the world knows."""
        return copy.deepcopy(vars(self.world))

    def check(self) -> None:
        """Check what holds at any time."""
        assert set(self.refused) <= set(self.published)
        open_epochs = set(self.published) - set(self.refused)
        is_ready = self.world.state is WorldState.READY
        assert open_epochs == ({self.world.epoch} if is_ready else set()), "a published epoch is over, and unrefused"
        assert {member for each in self.still_inside() for member in [each.member]} == self.world.inside
        assert self.is_closed == (self.world.state in {WorldState.ENDING, WorldState.ENDED})
        if len(self.processes) > 40 * len(self.active):
            del self.processes[: sum(1 for _ in self._prefix_gone())]

    def _prefix_gone(self) -> Any:
        for process in self.processes:
            if process.health is not Health.GONE or process.sent or process in self.active:
                return
            yield process

    def finish(self) -> None:
        """Let all that was begun end, and all members become ready; check that the world does too."""
        for _ in range(1000):
            if not self._go_on():
                waiting = [timer for timer in self.timers if timer[1] == self.world.epoch]
                if not waiting or self.world.state is WorldState.READY:
                    break
                self.expire(min(waiting))
            self.check()
        if self.is_closed:
            assert self.frees == 1, "not given back"
        else:
            assert self.world.state is WorldState.READY, "all members are ready, and the world is not"

    def _go_on(self) -> bool:
        """Let each process do what it has begun, and each device replace what is lost; return whether any did."""
        moved = False
        for process in list(self.processes):
            if process.health is Health.STUCK and not process.is_condemned and not process.asked_in():
                process.is_condemned = process.told_lost = True  # its device finds it hung
                self.obey(self.world.poisoned(*process.member, "hung"))
            moved |= self._say_all(process)
            # One that drains leaves its epoch first.
            done = process.health is Health.STUCK or process.is_replaced or not process.inside
            if process.is_condemned and process.health not in {Health.DEAD, Health.GONE} and done:
                process.become(Health.DEAD)
                moved = True
        for rank, active in enumerate(self.active):
            if active is None or active.told_lost or active.code != self.code:
                if active is not None and not active.told_lost:
                    self.lose(active, "drains")
                self.start(rank)
                moved = True
        for process in [each for each in self.active if each is not None and each.health is Health.STARTING]:
            self.get_ready(process)
            moved = True
        return moved

    def _say_all(self, process: Process) -> bool:
        moved = bool(process.sent)
        while process.received and process.health is Health.WELL:
            process.read()
            moved = True
        if process.health is Health.WELL and self.sees_last(process):
            process.leave()
            moved = True
        while process.sent:
            self.hear(process)
        if process.health is Health.DEAD:
            self.bury(process)
            moved = True
        return moved


@given(size=st.integers(1, 4), steps=st.integers(1, 200), random=st.randoms(use_true_random=False))
def test_every_walk_keeps_the_promises(size: int, steps: int, random: Any) -> None:
    """Numbers only rise; an epoch is published when all have joined it, and refused once; none forms too early.

    What is stale changes nothing; nothing forms after the end, and what was mapped is given back behind the last.
    """
    walk = Walk(size, random.choice)
    for _ in range(steps):
        walk.step()
    if random.choice([True, False]) and not walk.is_closed:
        walk.close()
    walk.finish()


def test_what_is_not_in_the_table_is_an_error() -> None:
    """No pair is passed over in silence."""
    for state in WorldState:
        for event in WorldEvent:
            if (state, event) not in TRANSITIONS:
                with pytest.raises(UnexpectedWorldEventError, match=event):
                    world_step(state, event)


def test_every_way_out_of_an_epoch_stops_it_before_anybody_is_told_or_closes_it() -> None:
    """Only what clients know is refused to them, and memory is given back by the last action alone."""
    closing = {WorldState.CLOSING, WorldState.ENDING}
    for (state, event), move in TRANSITIONS.items():
        closes = state is WorldState.READY and move.state in closing
        goes_on = move.state in {WorldState.READY, *closing} or (state in closing and event is WorldEvent.LEFT)
        stops = state in {WorldState.FORMING, WorldState.READY, *closing} and not goes_on
        assert (WorldAction.STOP in move.actions) == stops
        assert (move.actions[:1] == (WorldAction.STOP,)) == stops
        assert (move.actions == (WorldAction.REFUSE, WorldAction.CLOSE)) == closes
        assert (WorldAction.CLOSE in move.actions) == closes
        assert (WorldAction.REFUSE in move.actions) == (closes or (stops and state is WorldState.READY))
        assert WorldAction.FREE not in move.actions or move == (WorldState.ENDED, (WorldAction.FREE,))


def test_the_diagram_has_every_state() -> None:
    """It is drawn from the table."""
    drawn = world_epochs.diagram()
    assert all(f" {state}" in drawn for state in WorldState)


def test_a_rank_that_raises_costs_no_process() -> None:
    """The same incarnations form the next epoch once all have left the one before."""
    world = WorldMembers(2)
    world.ready(0, 5)
    (formed,) = world.ready(1, 7)
    assert formed == FormEpoch(1, (WorldMember(0, 5), WorldMember(1, 7)))
    world.joined(0, 5, 1)
    assert world.joined(1, 7, 1) == [PublishEpoch(1, formed.members)]
    stop, refuse, leave = world.broken(1, "raised", 1)
    assert stop == StopEpoch(1)
    assert isinstance(refuse, RefuseEpoch)
    assert (refuse.cause.reason, refuse.cause.rank) == ("raised", 1)
    assert leave == LeaveEpoch(1, formed.members)
    assert world.left(0, 5, 1) == []
    assert world.left(1, 7, 1) == [FormEpoch(2, formed.members)]


def test_who_does_not_join_is_replaced_and_the_others_leave() -> None:
    """The next epoch has the new incarnation, once the old one's process has ended."""
    world = WorldMembers(2)
    world.ready(0, 1)
    world.ready(1, 2)
    world.joined(0, 1, 1)
    late, punctual = WorldMember(1, 2), WorldMember(0, 1)
    assert world.join_late(1) == [StopEpoch(1), ReplaceMembers(1, (late,)), LeaveEpoch(1, (punctual,))]
    assert world.left(0, 1, 1) == []
    assert world.ready(1, 3) == []
    assert world.leave_late(1) == []
    assert world.ended(1, 2) == [FormEpoch(2, (punctual, WorldMember(1, 3)))]


def test_what_is_mapped_is_given_back_behind_the_last_member() -> None:
    """Closing a world waits for all who are inside; those who do not leave are replaced."""
    world = WorldMembers(2)
    world.ready(0, 1)
    world.ready(1, 2)
    assert world.close() == [StopEpoch(1), LeaveEpoch(1, (WorldMember(0, 1), WorldMember(1, 2)))]
    assert world.left(0, 1, 1) == []
    assert world.leave_late(1) == [ReplaceMembers(1, (WorldMember(1, 2),))]
    assert world.ready(1, 3) == []
    assert world.ended(1, 2) == [FreeWorld()]
    assert world.close() == []


def test_members_with_different_code_form_no_epoch() -> None:
    """A world that reloads goes on when the last member runs the new code."""
    world = WorldMembers(2)
    assert world.ready(0, 1, "old") == []
    assert world.ready(1, 2, "new") == []
    assert world.missing == []
    assert world.drains(0, 1) == []
    assert world.missing == [0]
    assert world.ready(0, 3, "new") == [FormEpoch(1, (WorldMember(0, 3), WorldMember(1, 2)))]


def ready_pair() -> tuple[WorldMembers, tuple[WorldMember, ...]]:
    """Return a world of two that is ready, and its members."""
    world = WorldMembers(2)
    world.ready(0, 1)
    world.ready(1, 2)
    world.joined(0, 1, 1)
    world.joined(1, 2, 1)
    return world, world.members


@pytest.mark.parametrize("first", [0, 1])
def test_a_planned_end_stops_nobody(first: int) -> None:
    """Clients hold their calls, all leave by themselves, and the standby that takes over meanwhile is in the next."""
    world, members = ready_pair()
    refuse, close = world.drains(0, 1, "restart")
    assert isinstance(refuse, RefuseEpoch)
    assert (refuse.cause.reason, refuse.cause.rank) == ("restart", 0)
    assert close == FinishEpoch(1, members)
    assert world.state is WorldState.CLOSING
    assert world.drains(1, 2, "restart") == []
    assert world.ready(0, 3) == []
    assert world.left(*members[first], 1) == []
    assert world.ready(1, 4) == []
    assert world.left(*members[1 - first], 1) == [FormEpoch(2, (WorldMember(0, 3), WorldMember(1, 4)))]
    assert world.close_late(1) == []


@pytest.mark.parametrize(
    ("what", "rank"), [("ended", 1), ("poisoned", 1), ("gave up", 1), ("broken", 1), ("late", 0), ("was replaced", 1)]
)
def test_an_unplanned_end_stops_what_is_closed(what: str, rank: int) -> None:
    """All waits end, and who is inside is asked to leave; clients hold their calls already."""
    world, (first, second) = ready_pair()
    world.drains(*first)
    orders = {
        "ended": lambda: world.ended(*second),
        "poisoned": lambda: world.poisoned(*second),
        "gave up": lambda: world.left(*second, 1, "a page is damaged"),
        "broken": lambda: world.broken(1, "raised", 1),
        "late": lambda: world.close_late(1),
        "was replaced": lambda: world.ready(1, 7),
    }[what]()
    inside = (first,) if what in {"ended", "poisoned", "gave up"} else (first, second)
    assert orders == [StopEpoch(1), LeaveEpoch(1, inside)]
    assert world.state is WorldState.ABORTING
    assert world.cause.rank == rank


def test_a_world_that_is_closed_runs_what_was_published() -> None:
    """Clients send nothing more; what is mapped is given back behind the last member, or once it is stopped."""
    world, (first, second) = ready_pair()
    refuse, close = world.close()
    assert isinstance(refuse, RefuseEpoch)
    assert close == FinishEpoch(1, (first, second))
    assert world.drains(*first) == world.close() == world.left(*first, 1) == []
    assert world.left(*second, 1) == [FreeWorld()]
    world, (first, second) = ready_pair()
    world.drains(*first)
    assert world.close() == []
    assert world.state is WorldState.ENDING
    assert world.ended(*second) == [StopEpoch(1), LeaveEpoch(1, (first,))]
    assert world.left(*first, 1) == [FreeWorld()]
