"""Places in a world, in one process over real files: who begins what, in which order, and who is answered."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages import control, data
from atomr_mp.protocol.messages.control import WorldFileKind
from atomr_mp.protocol.world import store_stop
from atomr_mp_workers.requests.batches.former import NEVER_NS, BatchLimits
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.worlds.member_states import MemberState
from atomr_mp_workers.worlds.membership import Membership
from atomr_mp_workers.worlds.order import publisher
from atomr_mp_workers.worlds.order.batches import BatchedPart
from atomr_mp_workers.worlds.order.files import WorldFiles
from atomr_mp_workers.worlds.running.gang_queue import GangQueue
from atomr_mp_workers.worlds.running.world_thread import WorldThread
from tests.world_files import WorldSupply

WORLD = 1
TIMEOUT_S = 5.0
LIMITS = BatchLimits(4, None, 0)
SINGLE, BATCHED = (
    type("Method", (), {"batch": batch, "steps": None, "name": "A.run", "refused": None, "typical_ns": 0})()
    for batch in (None, LIMITS)
)
Key = tuple[int, int]


@dataclass(eq=False)
class Session:
    """A session, as far as a world needs it."""

    number: int
    ended: bool = False
    weight: float = 1.0


@dataclass(eq=False)
class Part:
    """A request, as far as a world needs it."""

    session: Session
    gang: data.Gang
    method: Any = SINGLE
    dropped: bool = False
    alone: bool = False
    outcome: str = ""
    deadline_ns: int = NEVER_NS
    closing: Any = None

    def __post_init__(self) -> None:
        self.peer = SimpleNamespace(session=self.session)

    @property
    def key(self) -> Key:
        """Its name."""
        return self.session.number, self.gang.id

    def answer(self, outcome: str) -> None:
        """Record its answer."""
        assert not self.outcome, f"{self.key} was {self.outcome}, and is {outcome}"
        self.outcome = outcome


class Supply(WorldSupply):
    """Files, and the sessions that have ended."""

    def __init__(self, world: int) -> None:
        super().__init__(world)
        self.ended: set[int] = set()


@dataclass(eq=False)
class Process:
    """One process of a member, with a thread whose calls end when the test wants that."""

    rank: int
    generation: int
    supply: Supply
    ahead: int = 0
    begun: dict[int, dict[int, tuple[Key, ...]]] = field(default_factory=dict)
    """By epoch and sequence number."""
    parts: list[Part] = field(default_factory=list)
    sent: list[control.FromWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files, self.queue = WorldFiles(), GangQueue()
        for file, descriptor in self.supply.own_files(self.rank, self.generation):
            self.files.add(file, descriptor)
        offered = control.WorldOffered(WORLD, "tp", self.rank, 3, self.generation, ["A"], TIMEOUT_S)
        self.sessions: dict[int, Session] = {}
        self.epoch = 0
        self.ended: Callable[[], errors.CollectiveAborted | None] = lambda: None
        self.left_waiting: Callable[[int], None] = lambda _rank: None
        self.member = Membership(
            offered,
            self.files,
            SimpleNamespace(enter=lambda _meeting: None, leave=lambda: None, serve=lambda: None),
            cast("WorldThread", self),
            self.queue,
            self._make_meeting,
            self.sent.append,
            lambda: None,
        )
        self.member.use(self._abort, self._discard)
        self.member.serve()
        self.running: tuple[list[Part], int] | None = None

    def _make_meeting(self, *arguments: Any) -> Any:
        self.ended, self.left_waiting = arguments[-2:]
        return SimpleNamespace()

    def meet(self, _meeting: Any) -> None:
        """Stand for the thread's."""

    def _abort(self, request: Request, error: errors.RequestError) -> None:
        assert not error.maybe_executed
        if isinstance(error, errors.DeadlineExceeded | errors.Cancelled):
            cast("Part", request).answer("late" if isinstance(error, errors.DeadlineExceeded) else "cancelled")
            return
        assert isinstance(error, errors.CollectiveAborted)
        refused = "declined" if "another rank" in str(error) else "aborted"
        cast("Part", request).answer("moves" if error.planned else refused)

    def _discard(self, request: Request) -> None:
        part = cast("Part", request)
        assert part.session.number in self.supply.ended
        part.answer("discarded")

    def join(self, epoch: int, generations: list[int]) -> None:
        """Have it join an epoch."""
        for rank, generation in enumerate(generations):
            if rank != self.rank:
                for file, descriptor in self.supply.files(rank, generation):
                    self.files.add(file, descriptor)
        self.epoch, self.begun[epoch] = epoch, {}
        self.member.join(control.JoinEpoch(WORLD, epoch, generations))

    def arrive(
        self,
        number: int,
        gang_id: int,
        epoch: int,
        *,
        batched: bool = False,
        fits: bool = True,
        due_ns: int = NEVER_NS,
    ) -> Part:
        """Have a part come: a single one, or one for a batch, with arguments that fit or do not."""
        session = self.sessions.setdefault(number, Session(number))
        part = Part(session, data.Gang(WORLD, epoch, gang_id), BATCHED if batched else SINGLE, deadline_ns=due_ns)
        self.parts.append(part)
        try:
            self.member.check("A.run", number, gang_id, epoch)
        except errors.CollectiveAborted as error:
            part.answer("moves" if error.planned else "aborted")
            self.member.refused((number, gang_id), epoch)
            return part
        self.member.came(cast("Request", part))
        if not batched:
            self.queue.add(cast("Request", part), None)
            return part
        if not fits:
            part.dropped = True
            part.answer("refused")
        waiting = BatchedPart("A.run", LIMITS, gang_id // 2 % 2, session, 10, due_ns)
        self.queue.add_to_batch(cast("Request", part), waiting, fits=fits)
        return part

    def cancel(self, part: Part) -> None:
        """Hear that the caller of a part does not want it."""
        self.member.unwanted(cast("Request", part))

    def refuse(self, number: int, gang_id: int, epoch: int) -> None:
        """Have a part come that is answered at once."""
        self.member.refused((number, gang_id), epoch)

    def end_session(self, number: int) -> None:
        """Have it hear of a session's end."""
        self.supply.ended.add(number)
        self.sessions.setdefault(number, Session(number)).ended = True
        self.member.session_ended(number)

    def look(self, now_ns: int = 0) -> None:
        """Take a turn of the loop."""
        self.member.look(now_ns)

    def feed(self) -> None:
        """Begin what may begin, as the dispatcher does."""
        while not self.ahead:
            was_over = self.supply.stop[0] >= self.epoch
            part = cast("Part | None", self.queue.take(lambda _request: True))
            if part is None:
                return
            assert not was_over, "it began though the epoch was over"
            assert self.queue.epoch is not None
            self.ahead = 1
            parts = cast("list[Part]", list(self.queue.together))
            assert part is parts[0]
            assert len(parts) == 1 or all(each.method is BATCHED for each in parts)
            self.begun[self.epoch][self.queue.sequence] = tuple(each.key for each in parts)
            self.running = parts, self.queue.sequence
            self._joined = self.queue.epoch

    def finish(self) -> None:
        """End what runs."""
        if self.running is not None:
            parts, sequence = self.running
            self._joined.end(sequence)
            self.ahead, self.running = 0, None
            for part in parts:
                part.answer("ran")

    def close(self) -> None:
        """End."""
        self.files.close()


class Fleet:
    """A world with its supervisor."""

    def __init__(self, size: int = 3) -> None:
        self.supply = Supply(WORLD)
        self.processes = [Process(rank, 1, self.supply) for rank in range(size)]
        self.everyone = list(self.processes)
        self.epoch = 0

    @property
    def generations(self) -> list[int]:
        """The processes of the members."""
        return [each.generation for each in self.processes]

    def join(self) -> None:
        """Have all join the next epoch."""
        self.epoch += 1
        for each in self.processes:
            each.join(self.epoch, self.generations)
            assert each.sent.pop() == control.EpochJoined(WORLD, self.epoch)

    def depart(self, rank: int = -1, cause: str = "") -> None:
        """End the epoch; have all leave."""
        self.supply.end(self.epoch, self.generations)
        for each in self.processes:
            self.ask_to_leave(each, rank, cause)
        for each in self.processes:
            each.finish()
            each.look()
            assert each.sent.pop() == control.EpochLeft(WORLD, self.epoch)
            assert each.member.state is MemberState.OUTSIDE

    def shut(self, *ranks: int) -> None:
        """Have members hear that the epoch ends as planned: those of these ranks, or all."""
        for rank in ranks or range(len(self.processes)):
            self.processes[rank].member.close(control.CloseEpoch(WORLD, self.epoch))

    def ask_to_leave(self, process: Process, rank: int = -1, cause: str = "") -> None:
        """Have one leave."""
        process.member.depart(control.DepartEpoch(WORLD, self.epoch, rank, cause))

    def replace(self, rank: int) -> None:
        """Put another process in the place of one."""
        self.processes[rank].close()
        self.processes[rank] = Process(rank, self.generations[rank] + 1, self.supply)
        self.everyone.append(self.processes[rank])

    def turns(self, count: int = 1, now_ns: int = 0) -> None:
        """Have all take turns of their loops, with nothing that takes long."""
        for _ in range(count):
            for each in self.processes:
                each.look(now_ns)
                each.feed()
                each.finish()

    def close(self) -> None:
        """End all."""
        for each in self.processes:
            each.close()
        self.supply.close()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Yield a world of three members that have joined."""
    fleet = Fleet()
    fleet.join()
    yield fleet
    fleet.close()


def order_of(fleet: Fleet, epoch: int) -> dict[int, tuple[Key, ...]]:
    """Return what has begun in an epoch, by sequence number; all processes agree on it."""
    found: dict[int, tuple[Key, ...]] = {}
    for each in fleet.everyone:
        for sequence, keys in each.begun.get(epoch, {}).items():
            assert found.setdefault(sequence, keys) == keys, "two members have begun different calls under one number"
    return found


def test_parts_run_in_one_order_however_they_come(fleet: Fleet) -> None:
    """It is the order in which they became complete."""
    first, second, third = fleet.processes
    parts = [first.arrive(1, 1, 1), second.arrive(2, 1, 1), second.arrive(1, 1, 1), third.arrive(2, 1, 1)]
    fleet.turns(2)
    assert not any(part.outcome for part in parts), "none has come to all"
    parts += [first.arrive(2, 1, 1)]
    fleet.turns(2)
    parts += [third.arrive(1, 1, 1)]
    fleet.turns(2)
    assert [part.outcome for part in parts] == ["ran"] * 6
    assert order_of(fleet, 1) == {1: ((2, 1),), 2: ((1, 1),)}


def test_a_part_that_is_answered_on_its_arrival_keeps_nobody_waiting(fleet: Fleet) -> None:
    """The others answer theirs, which run nowhere, and the epoch goes on."""
    first, second, third = fleet.processes
    second.refuse(1, 1, 1)
    parts = [first.arrive(1, 1, 1), third.arrive(1, 1, 1)]
    fleet.turns(2)
    assert [part.outcome for part in parts] == ["declined", "declined"]
    assert third.queue.epoch is not None
    assert [reader.ended() for reader in third.queue.epoch.readers] == [1, 1, 1]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("how", ["late", "cancelled", "cancelled early"])
def test_what_nobody_wants_any_longer_runs_nowhere(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, how: str, *, batched: bool
) -> None:
    """If it was not published: its turn comes behind its deadline, or it was cancelled before it has come to all."""
    due_ns = 5 if how == "late" else NEVER_NS
    first = fleet.processes[0]
    parts = {
        gang_id: [first.arrive(1, gang_id, 1, batched=batched, due_ns=NEVER_NS if gang_id % 2 else due_ns)]
        for gang_id in range(1, 9)
    }
    unwanted = [part for gang_id, (part,) in parts.items() if not gang_id % 2]
    if how == "cancelled early":
        for part in unwanted:
            first.cancel(part)
    for each in fleet.processes[1:]:
        for gang_id, found in parts.items():
            due = NEVER_NS if gang_id % 2 else due_ns
            found.append(each.arrive(1, gang_id, 1, batched=batched, due_ns=due))
    if how == "cancelled":
        with monkeypatch.context() as patch:
            patch.setattr(publisher, "AHEAD", 0)
            for each in reversed(fleet.processes):
                each.look()  # all have come to all, and none is published
            for part in unwanted * 2:
                first.cancel(part)
    fleet.turns(20, now_ns=10)
    for gang_id, (own, *others) in parts.items():
        if gang_id % 2:
            assert {part.outcome for part in (own, *others)} == {"ran"}
            continue
        assert own.outcome == ("late" if how == "late" else "cancelled")
        assert {part.outcome for part in others} == {"late" if how == "late" else "declined"}
    assert {key[1] for keys in order_of(fleet, 1).values() for key in keys} == {1, 3, 5, 7}


def test_what_was_published_runs_whatever_comes_then(fleet: Fleet) -> None:
    """The members could not agree on anything else."""
    parts = [each.arrive(1, 1, 1, due_ns=5) for each in fleet.processes]
    for each in reversed(fleet.processes):
        each.look(5)
    fleet.processes[0].cancel(parts[0])
    fleet.turns(3, now_ns=10)
    assert [part.outcome for part in parts] == ["ran"] * 3


def test_parts_of_ended_sessions_are_forgotten_everywhere(fleet: Fleet) -> None:
    """Whether they have come to all or not, and whoever hears of the end first."""
    first, second, third = fleet.processes
    for gang_id in range(50):
        first.arrive(1, gang_id, 1)
        second.arrive(1, gang_id, 1)
    fleet.turns()
    for each in (second, first, third):
        each.end_session(1)
        fleet.turns()
    third.refuse(1, 99, 1)  # a late note
    fleet.turns()
    assert not any(map(len, (first.queue, second.queue, third.queue)))
    assert first.queue.epoch is not None
    assert first.queue.epoch.publisher is not None
    assert not first.queue.epoch.publisher._open
    assert not order_of(fleet, 1)
    assert {part.outcome for each in fleet.processes for part in each.parts} == {"discarded"}


def test_a_part_comes_after_rank_0_has_heard_of_its_session_s_end(fleet: Fleet) -> None:
    """It is dropped even so."""
    first, second, _ = fleet.processes
    part = second.arrive(1, 1, 1)
    first.end_session(1)
    first.look()
    fleet.turns(2)
    second.end_session(1)
    assert part.outcome == "discarded"
    assert not len(second.queue)


def test_a_part_that_the_dispatcher_has_not_put_into_the_queue_does_not_begin(fleet: Fleet) -> None:
    """It may wait for its place in the order of borrows; its entry waits for it."""
    first, second, third = fleet.processes
    parts = [each.arrive(1, 1, 1) for each in (second, third)]
    late = Part(first.sessions.setdefault(1, Session(1)), data.Gang(WORLD, 1, 1))
    first.member.came(cast("Request", late))
    fleet.turns(3)
    parts.append(late)
    assert [part.outcome for part in parts] == ["ran", "ran", ""]
    first.queue.add(cast("Request", late), None)
    fleet.turns()
    assert [part.outcome for part in parts] == ["ran"] * 3


def test_a_published_call_of_an_ended_session_runs_everywhere(fleet: Fleet) -> None:
    """Though some members know of the end and others do not: else these would wait for them in vain."""
    for each in fleet.processes:
        each.arrive(1, 1, 1)
    fleet.processes[0].look()
    fleet.processes[1].look()
    fleet.processes[2].look()
    fleet.processes[0].look()
    fleet.processes[1].end_session(1)
    following = [each.arrive(2, 1, 1) for each in fleet.processes]
    fleet.turns(3)
    assert [part.outcome for part in following] == ["ran"] * 3
    assert [each.begun[1] for each in fleet.processes] == [{1: ((1, 1),), 2: ((2, 1),)}] * 3


def test_calls_are_published_a_few_ahead(fleet: Fleet) -> None:
    """The others follow as the slowest member ends calls."""
    for gang_id, each in itertools.product(range(100), fleet.processes):
        each.arrive(1, gang_id, 1)
    for each in (*fleet.processes, *fleet.processes):
        each.look()
    head = fleet.processes[0].queue.epoch
    assert head is not None
    assert head.publisher is not None
    assert head.publisher._published == publisher.AHEAD
    assert head.owes
    for each in fleet.processes:
        each.feed()
    bell = fleet.supply.descriptor(WorldFileKind.LOOP_BELL, 0, 1)
    os.eventfd_read(bell)
    fleet.processes[2].finish()
    assert os.eventfd_read(bell), "rank 0 has to look now"
    fleet.turns(100)
    assert len(order_of(fleet, 1)) == 100
    assert all(len(each.begun[1]) == 100 for each in fleet.processes)


def test_more_parts_wait_than_there_is_room_for_notes(fleet: Fleet) -> None:
    """The rest is noted once rank 0 has taken some."""
    parts = [each.arrive(1, gang_id, 1) for each in fleet.processes for gang_id in range(3000)]
    for _ in range(200):
        fleet.turns(2)
        for each in fleet.processes:
            for _ in range(20):
                each.feed()
                each.finish()
    fleet.turns(3000 // publisher.AHEAD)
    while any(not part.outcome for part in parts):
        before = sum(bool(part.outcome) for part in parts)
        fleet.turns(10)
        assert sum(bool(part.outcome) for part in parts) > before
    assert {part.outcome for part in parts} == {"ran"}


def test_what_has_not_begun_is_answered_when_it_leaves(fleet: Fleet) -> None:
    """What runs ends first; the new epoch begins with nothing of the old one."""
    first, second, third = fleet.processes
    running = [each.arrive(1, 1, 1) for each in fleet.processes]
    waiting = [first.arrive(1, 2, 1), second.arrive(1, 3, 1)]
    for each in (*fleet.processes, *fleet.processes):
        each.look()
    for each in fleet.processes:
        each.feed()
    fleet.supply.end(1, fleet.generations)
    for each in fleet.processes:
        each.look()
        assert each.member.state is MemberState.STOPPED
        assert each.ended() is not None
    assert not any(part.outcome for part in waiting), "the order to leave says why"
    for each in fleet.processes:
        fleet.ask_to_leave(each, 2, "killed by SIGKILL")
        each.look()
        error = each.ended()
        assert error is not None
        assert (error.rank, error.cause, error.epoch, error.world) == (2, "killed by SIGKILL", 1, "tp")
        assert not each.sent, "a call runs"
        each.finish()
        each.look()
        assert each.sent == [control.EpochLeft(WORLD, 1)]
        each.sent.clear()
    assert [part.outcome for part in waiting] == ["aborted", "aborted"]
    assert [part.outcome for part in running] == ["ran"] * 3
    assert third.arrive(1, 4, 1).outcome == "aborted", "it is of the epoch before"
    fleet.join()
    again = [each.arrive(1, 5, 2) for each in fleet.processes]
    assert first.arrive(1, 6, 1).outcome == "aborted"
    fleet.turns(2)
    assert [part.outcome for part in again] == ["ran"] * 3


def test_a_call_that_sees_the_stop_word_first_knows_the_cause(fleet: Fleet) -> None:
    """The order to leave may come later; it says the same."""
    second = fleet.processes[1]
    assert second.ended() is None
    store_stop(fleet.supply.stop, fleet.epoch, 2, "killed by SIGKILL")
    error = second.ended()
    assert error is not None
    assert (error.rank, error.cause, error.epoch) == (2, "killed by SIGKILL", fleet.epoch)
    fleet.ask_to_leave(second, 2, "killed by SIGKILL")
    again = second.ended()
    assert str(again) == str(error)


def test_nothing_begins_once_the_stop_word_is_stored(fleet: Fleet) -> None:
    """Even if this process has not looked yet, and no order has come."""
    parts = [each.arrive(1, 1, 1) for each in fleet.processes]
    for each in (*fleet.processes, *fleet.processes):
        each.look()
    fleet.supply.stop[0] = 1
    for each in fleet.processes:
        each.feed()
    assert not any(part.outcome for part in parts)
    fleet.depart()
    assert {part.outcome for part in parts} == {"aborted"}


def test_a_damaged_page_ends_the_epoch_here(fleet: Fleet) -> None:
    """Its reader leaves by itself, with the reason; its parts are answered."""
    first, second, _ = fleet.processes
    part = second.arrive(1, 1, 1)
    first.look()
    assert first.queue.epoch is not None
    first.queue.epoch.pages.ring[3] = 2**63
    second.look()
    second.feed()
    second.look()
    assert part.outcome == "aborted"
    (left,) = second.sent
    assert isinstance(left, control.EpochLeft)
    assert "damaged" in left.reason
    assert second.member.state is MemberState.OUTSIDE
    fleet.ask_to_leave(second)  # on its way already: it changes nothing
    assert second.sent == [left]


def test_a_worker_that_leaves_its_device_leaves_its_epoch(fleet: Fleet) -> None:
    """Unasked, if it was not asked."""
    second = fleet.processes[1]
    part = second.arrive(1, 1, 1)
    second.member.drain()
    assert part.outcome == "aborted"
    assert second.member.owes
    second.look()
    assert second.sent == [control.EpochLeft(WORLD, 1, "its worker leaves")]
    second.member.drain()
    assert len(second.sent) == 1


def test_a_planned_end_runs_what_was_published_and_moves_the_rest(fleet: Fleet) -> None:
    """All members agree, whoever hears of it first; the one that drains leaves behind the last entry, as others do."""
    first, second, third = fleet.processes
    first_epoch = first.queue.epoch
    assert first_epoch is not None
    published = [each.arrive(1, gang_id, 1) for gang_id in (1, 2) for each in (second, third, first)]
    for each in (second, third, first):
        each.look()
    complete = [each.arrive(1, 3, 1) for each in fleet.processes]
    partial = [second.arrive(1, 4, 1)]
    for each in fleet.processes:
        each.feed()
    partial += [first.arrive(1, 6, 1), second.arrive(1, 6, 1)]
    fleet.shut(1, 0)
    second.member.drain()
    partial.append(third.arrive(1, 6, 1))
    moved = [second.arrive(1, 5, 1), first.arrive(1, 5, 1), third.arrive(1, 5, 1)]
    assert [part.outcome for part in moved] == ["moves", "moves", ""]
    for each in (*fleet.processes, *fleet.processes):
        each.look()
    assert not any(each.sent for each in fleet.processes), "calls run"
    assert not any(part.outcome for part in [*published, *complete, *partial])
    fleet.turns(4)
    assert [part.outcome for part in published] == ["ran"] * 6
    assert [part.outcome for part in [*complete, *partial, *moved]] == ["moves"] * 10
    assert first_epoch.publisher is not None
    assert not first_epoch.owes
    assert first_epoch.publisher._published == 3, "two calls, and the last entry"
    for each in fleet.processes:
        assert each.sent == [control.EpochLeft(WORLD, 1)]
        assert each.begun[1] == {1: ((1, 1),), 2: ((1, 2),)}
        each.sent.clear()
    assert third.arrive(1, 9, 1).outcome == "moves", "it was under way"
    fleet.shut(2)
    fleet.join()
    assert third.arrive(1, 7, 1).outcome == "moves"
    again = [each.arrive(1, 8, 2) for each in fleet.processes]
    fleet.turns(2)
    assert [part.outcome for part in again] == ["ran"] * 3


def test_a_planned_end_publishes_nothing_of_what_is_complete(fleet: Fleet) -> None:
    """Calls that were not published go to the next epoch. After that the process has no reason to look."""
    parts = [each.arrive(1, gang_id, 1) for gang_id in range(100) for each in fleet.processes]
    head = fleet.processes[0].queue.epoch
    assert head is not None
    for each in (*fleet.processes, *fleet.processes):
        each.look()
    fleet.shut()
    fleet.turns(publisher.AHEAD + 4)
    assert sorted(order_of(fleet, 1)) == list(range(1, publisher.AHEAD + 1))
    assert [part.outcome for part in parts].count("moves") == 3 * (100 - publisher.AHEAD)
    assert all(each.member.state is MemberState.OUTSIDE for each in fleet.processes)
    assert not head.owes


def test_the_loop_looks_once_more_behind_the_last_entry(fleet: Fleet) -> None:
    """Nothing else may wake it."""
    fleet.shut()
    fleet.processes[0].look()
    for each in fleet.processes:
        bell = fleet.supply.descriptor(WorldFileKind.LOOP_BELL, each.rank, 1)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(bell)
        each.feed()
        assert os.eventfd_read(bell)
        each.look()
        assert each.sent == [control.EpochLeft(WORLD, 1)]


def test_an_end_of_another_kind_ends_a_planned_one(fleet: Fleet) -> None:
    """A published call that has not begun is aborted; one that was refused since the close has run nowhere."""
    first, second, third = fleet.processes
    published = [each.arrive(1, gang_id, 1) for gang_id in (1, 2) for each in (second, third, first)]
    for each in (second, third, first):
        each.look()
        each.feed()
    fleet.shut()
    moved = second.arrive(1, 3, 1)
    fleet.depart(0, "killed by SIGKILL")
    assert sorted(part.outcome for part in published) == ["aborted"] * 5 + ["ran"]
    assert moved.outcome == "moves"
    assert second.arrive(1, 4, 1).outcome == "moves"


@pytest.mark.parametrize("way", ["give up", "cut"])
def test_a_closed_epoch_breaks_as_others_do_but_for_parts_that_do_not_come(fleet: Fleet, way: str) -> None:
    """A call with a part that was lost on its way is not published."""
    second = fleet.processes[1]
    part = second.arrive(1, 1, 1)
    fleet.shut()
    if way == "cut":
        second.member.cut_off(1)
        fleet.turns(3)
        assert part.outcome == "moves"
        assert second.sent == [control.EpochLeft(WORLD, 1)]
    else:
        second.member.give_up("a page is damaged")
        second.look()
        assert part.outcome == "aborted"
        assert second.sent == [control.EpochLeft(WORLD, 1, "a page is damaged")]


def test_a_member_that_does_not_begin_in_time_is_found(fleet: Fleet) -> None:
    """One that runs an earlier call is not late, however long that takes."""
    first, second, third = fleet.processes
    timeout_ns = int(TIMEOUT_S * 1e9)
    for gang_id, each in itertools.product((1, 2), fleet.processes):
        each.arrive(1, gang_id, 1)
    for each in (second, third, first):
        each.look(10)
    assert first.member.due_ns == 10 + timeout_ns
    for each in fleet.processes:
        each.feed()
    now_ns = 10 + timeout_ns
    first.look(now_ns)
    assert not first.sent
    first.finish()
    second.finish()
    first.feed()
    dues = []
    for _ in range(2):
        assert not first.sent
        dues.append(first.member.due_ns or 0)
        now_ns = max(now_ns, *dues)
        first.look(now_ns)
    assert all(dues)
    assert first.sent == [control.EpochBroken(WORLD, 1, "has not begun a call in time", 1, late=True)]
    assert third.ahead


def test_nothing_more_is_published_while_a_suspect_waits_in_a_process(fleet: Fleet) -> None:
    """Its process begins what was published, and knows when that was all; the rest comes once the suspect has ended."""
    first, second, third = fleet.processes
    for each in (third, second, first):
        each.arrive(1, 1, 1)
        each.look()
    for each in (first, third):
        each.feed()
    second.member.look(10, away=True)
    settled = [second.queue.is_settled]
    for each in (third, second, first):
        each.arrive(1, 2, 1)
        each.member.look(10, away=each is second)
    settled.append(second.queue.is_settled)
    second.feed()
    assert second.begun[1] == {1: ((1, 1),)}
    for _ in range(3):
        for each in fleet.processes:
            each.finish()
            each.member.look(10, away=each is second)
            each.feed()
    settled.append(second.queue.is_settled)
    assert settled == [False, False, True], "the others may wait for what was published"
    assert [each.begun[1] for each in fleet.processes] == [{1: ((1, 1),)}] * 3
    fleet.turns(3)
    assert [each.begun[1] for each in fleet.processes] == [{1: ((1, 1),), 2: ((1, 2),)}] * 3


def test_a_first_rank_that_does_not_see_a_waiting_suspect_is_late(fleet: Fleet) -> None:
    """If there is something here that it may publish; another member says so."""
    first, second, third = fleet.processes
    timeout_ns = int(TIMEOUT_S * 1e9)
    second.member.look(10, away=True)
    second.member.look(10 + timeout_ns, away=True)
    assert not second.sent, "nothing can be published that begins there"
    second.member.look(10 + timeout_ns, away=False)
    for each in (third, second, first):
        each.arrive(1, 1, 1)
    second.look(20 + timeout_ns)
    first.look(20 + timeout_ns)
    for at_ns in (30 + timeout_ns, 29 + 2 * timeout_ns, 30 + 2 * timeout_ns):
        assert not second.sent
        second.member.look(at_ns, away=True)
    assert second.sent == [control.EpochBroken(WORLD, 1, "has not begun a call in time", 0, late=True)]


def test_a_member_in_whose_process_a_suspect_runs_is_not_late(fleet: Fleet) -> None:
    """It begins nothing meanwhile, as it says; behind that it has its time as others do."""
    first, second, third = fleet.processes
    timeout_ns = int(TIMEOUT_S * 1e9)
    for each in (third, second, first):
        each.arrive(1, 1, 1)
        each.member.look(10)
    second.member.look(10, away=True)
    for each in (first, third):
        each.feed()
        each.finish()
    now_ns = 10
    for away in (True, True, False, False):
        assert not first.sent
        now_ns += 2 * timeout_ns
        second.member.look(now_ns, away=away)
        first.look(now_ns)
    assert first.sent == [control.EpochBroken(WORLD, 1, "has not begun a call in time", 1, late=True)]


def pass_time(first: Process, others: list[Process]) -> int:
    """Have processes look whenever they want to, for a while, and others never; return how often the first looked."""
    now_ns = 1
    for each in (first, *others, first):
        each.look(now_ns)
    for count in range(100):
        dues = [due for each in (first, *others) if (due := each.member.due_ns) is not None]
        if not dues:
            return count
        now_ns = min(dues)
        for each in (*others, first, *others, first):  # others have been rung since
            each.look(now_ns)
            each.feed()
            each.finish()
    return 100


@pytest.mark.parametrize("stopped", [1, 2])
def test_a_member_that_has_stopped_is_found_though_nothing_can_be_published(fleet: Fleet, stopped: int) -> None:
    """An entry without calls shows who is well."""
    fleet.processes[0].arrive(1, 1, 1)
    assert pass_time(fleet.processes[0], [each for each in fleet.processes[1:] if each.rank != stopped]) < 10
    assert fleet.processes[0].sent == [
        control.EpochBroken(WORLD, 1, "has not begun a call in time", stopped, late=True)
    ]


def test_rank_0_that_has_stopped_is_found_by_others(fleet: Fleet) -> None:
    """It does not take their notes."""
    fleet.processes[1].arrive(1, 1, 1)
    assert pass_time(fleet.processes[1], [fleet.processes[2]]) < 10
    assert fleet.processes[1].sent == [control.EpochBroken(WORLD, 1, "has not begun a call in time", 0, late=True)]
    assert not fleet.processes[2].sent


def test_a_client_that_sends_no_further_parts_breaks_nothing(fleet: Fleet) -> None:
    """All members show again and again that they are well."""
    parts = [each.arrive(1, 1, 1) for each in fleet.processes[:2]]
    assert pass_time(fleet.processes[0], fleet.processes[1:]) == 100
    assert not any(each.sent for each in fleet.processes)
    parts.append(fleet.processes[2].arrive(1, 1, 1))
    fleet.turns(2)
    assert [part.outcome for part in parts] == ["ran"] * 3


def test_nothing_begins_after_a_call_was_aborted_here(fleet: Fleet) -> None:
    """The next one would be aborted as well, and might have run in part."""
    parts = [each.arrive(1, 1, 1) for each in fleet.processes]
    for each in (*fleet.processes, *fleet.processes):
        each.look()
    fleet.processes[1].left_waiting(2)
    fleet.turns(2)
    assert [part.outcome for part in parts] == ["ran", "", "ran"]
    fleet.processes[1].sent.clear()
    fleet.depart()
    assert parts[1].outcome == "aborted"


def test_a_rank_that_left_others_waiting_is_reported_once(fleet: Fleet) -> None:
    """As the world's thread has found it."""
    second = fleet.processes[1]
    second.left_waiting(2)
    second.look()
    second.left_waiting(2)
    second.look()
    (broken,) = second.sent
    assert isinstance(broken, control.EpochBroken)
    assert (broken.rank, broken.late) == (2, False)


def test_a_lost_connection_ends_the_epoch_if_parts_may_be_lost_with_it(fleet: Fleet) -> None:
    """That is so only for sessions that call the world."""
    first, second, _ = fleet.processes
    parts = [second.arrive(1, 1, 1)]
    second.member.cut_off(2)
    fleet.turns()
    assert not second.sent
    second.member.cut_off(1)
    parts.append(first.arrive(1, 1, 1))
    fleet.turns(2)
    (broken,) = second.sent
    assert isinstance(broken, control.EpochBroken)
    assert "connection" in broken.reason
    second.sent.clear()
    fleet.depart()
    assert [part.outcome for part in parts] == ["aborted"] * 2


def test_calls_that_come_to_some_only_are_bounded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number the epoch ends."""
    monkeypatch.setattr(publisher, "MOST_OPEN", 10)
    for gang_id in range(11):
        fleet.processes[1].arrive(1, gang_id, 1)
    fleet.processes[1].look()
    fleet.processes[0].look()
    (broken,) = fleet.processes[0].sent
    assert isinstance(broken, control.EpochBroken)


def test_an_epoch_without_all_files_is_not_joined() -> None:
    """The supervisor hears why."""
    fleet = Fleet()
    first = fleet.processes[0]
    first.member.join(control.JoinEpoch(WORLD, 1, [1, 1, 1]))
    (left,) = first.sent
    assert isinstance(left, control.EpochLeft)
    assert "has not come" in left.reason
    fleet.ask_to_leave(first)
    assert first.sent == [left]
    assert not first.member.is_inside
    fleet.close()


def test_what_is_no_part_of_a_gang_call_is_refused(fleet: Fleet) -> None:
    """Once rehearsals are over; and no part comes twice."""
    member = fleet.processes[0].member
    with pytest.raises(errors.InvalidRequest, match=r"pool\.world"):
        member.check("A.run", 1, None, 0)
    fleet.processes[0].arrive(1, 1, 1)
    with pytest.raises(errors.InvalidRequest, match="in use"):
        member.check("A.run", 1, 1, 1)
    with pytest.raises(errors.CollectiveAborted) as caught:
        member.check("A.run", 1, 2, 7)
    assert not caught.value.maybe_executed


class Walk:
    """A random life of a world.

    Args:
        seed: Of its choices.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.end_weight = (0.4, 0.05, 0.0)[seed % 3]
        """How often the epoch ends."""
        self.fleet = Fleet(self.random.choice((2, 3)))
        self.fleet.join()
        self.sessions = list(range(1, 4))
        self.dead: set[int] = set()
        self.ids = itertools.count(1)
        self.refused: set[tuple[int, Key]] = set()
        """Calls that a rank has refused, by epoch."""
        self.coming: list[tuple[int, int, int, int]] = []
        """Rank, session, id and epoch of parts under way."""
        self.ending: list[tuple[int, int]] = []
        """Rank and session of ends under way."""
        self.to_leave: list[int] = []
        self.to_close: list[int] = []
        self.closed = 0
        """The latest epoch that was closed."""
        self.unstopped: set[int] = set()
        """Epochs that have ended as planned, and nothing else has ended them."""
        self.whole: dict[int, set[Key]] = {}
        """Calls that have come to all members of an epoch while it lasted."""
        self.now_ns = 0
        self.dues: dict[int, int] = {}
        """Deadlines by id."""

    def step(self) -> None:  # noqa: C901, PLR0912 - one case for each kind
        """Let one thing happen."""
        process = self.random.choice(self.fleet.processes)
        is_over = self.fleet.supply.stop[0] >= self.fleet.epoch
        has_ended = is_over or all(each.member.state is MemberState.OUTSIDE for each in self.fleet.processes)
        weights = (6, 12, 8, 8, 8, 1, 3, self.end_weight, 4, 0.2, 2 * self.end_weight, 4, 2)
        self.now_ns += 1
        match self.random.choices(range(13), weights)[0]:
            case 0:
                session = self.random.choice(self.sessions)
                gang_id = next(self.ids)
                self.dues[gang_id] = self.now_ns + self.random.choice((5, 50, NEVER_NS, NEVER_NS))
                self.coming += [(each.rank, session, gang_id, self.fleet.epoch) for each in self.fleet.processes]
            case 1 if self.coming:
                self.deliver(self.coming.pop(self.random.randrange(len(self.coming))))
            case 2:
                process.look(self.now_ns)
            case 3:
                process.feed()
            case 4:
                process.finish()
            case 5 if self.random.random() < 0.2:
                session = self.random.choice(self.sessions)
                self.sessions.remove(session)
                self.dead.add(session)
                self.sessions.append(max(*self.sessions, *self.dead) + 1)
                self.ending += [(each.rank, session) for each in self.fleet.processes]
            case 6 if self.ending:
                rank, session = self.ending.pop(self.random.randrange(len(self.ending)))
                self.fleet.processes[rank].end_session(session)
                self.coming = [part for part in self.coming if part[:2] != (rank, session)]
            case 7 if not is_over and (self.closed < self.fleet.epoch or self.random.random() < 0.1):
                self.fleet.supply.end(self.fleet.epoch, self.fleet.generations)
                self.to_leave = list(range(len(self.fleet.processes)))
            case 8 if self.to_leave:
                rank = self.to_leave.pop(self.random.randrange(len(self.to_leave)))
                self.fleet.ask_to_leave(self.fleet.processes[rank], 0, "ended")
            case 9 if has_ended:
                self.form()
            case 10 if not is_over and self.closed < self.fleet.epoch:
                self.closed = self.fleet.epoch
                self.to_close = list(range(len(self.fleet.processes)))
            case 11 if self.to_close:
                self.fleet.shut(self.to_close.pop(self.random.randrange(len(self.to_close))))
            case 12:
                self.cancel()

    def cancel(self) -> None:
        """Have rank 0 hear that a caller does not want a call of which it has a part."""
        head = self.fleet.processes[0]
        parts = [part for part in head.parts if not part.outcome]
        if parts:
            head.cancel(self.random.choice(parts))

    def deliver(self, part: tuple[int, int, int, int]) -> None:
        """Have a part arrive, or be refused on its arrival."""
        rank, session, gang_id, epoch = part
        batched, way = gang_id % 3 > 0, self.random.random()
        if way < 0.05 or (batched and way < 0.1):
            self.refused.add((epoch, (session, gang_id)))
        if way < 0.05:
            self.fleet.processes[rank].refuse(session, gang_id, epoch)
        else:
            self.fleet.processes[rank].arrive(
                session, gang_id, epoch, batched=batched, fits=way >= 0.1, due_ns=self.dues[gang_id]
            )

    def form(self) -> None:
        """Have all leave, perhaps one process be replaced, and all join again."""
        if self.fleet.supply.stop[0] < self.fleet.epoch:
            self.unstopped.add(self.fleet.epoch)
        self.to_close = []
        for rank in self.to_leave:
            self.fleet.ask_to_leave(self.fleet.processes[rank], 0, "ended")
        self.to_leave = []
        for each in self.fleet.processes:
            each.finish()
            each.look()
            assert each.sent == [control.EpochLeft(WORLD, self.fleet.epoch)]
            each.sent.clear()
            assert not len(each.queue)
        if self.random.random() < 0.5:
            rank = self.random.randrange(len(self.fleet.processes))
            self.fleet.replace(rank)
            self.coming = [part for part in self.coming if part[0] != rank]
            self.ending = [end for end in self.ending if end[0] != rank]
        self.fleet.join()

    def settle(self) -> None:
        """Let all arrive that is under way, and all end that can."""
        if self.fleet.supply.stop[0] >= self.fleet.epoch:
            self.form()
        elif self.closed == self.fleet.epoch:
            self.fleet.shut()
            self.fleet.turns(200, self.now_ns)
            assert all(each.member.state is MemberState.OUTSIDE for each in self.fleet.processes)
            self.form()
        for rank, session in self.ending:
            self.fleet.processes[rank].end_session(session)
            self.coming = [part for part in self.coming if part[:2] != (rank, session)]
        while self.coming:
            self.deliver(self.coming.pop())
        self.fleet.turns(200, self.now_ns)


@pytest.mark.parametrize("seed", range(60))
def test_every_walk_keeps_the_promises(seed: int) -> None:
    """One order, one answer for each part, nothing begun after the end, and no wait for what does not come.

    A call that moves to the next epoch has begun nowhere; an epoch that nothing else ends aborts nothing.
    """
    walk = Walk(seed)
    for _ in range(1500):
        walk.step()
    walk.settle()
    fleet = walk.fleet
    for epoch in range(1, fleet.epoch + 1):
        order_of(fleet, epoch)
    ran = [(epoch, key) for each in fleet.everyone for epoch in each.begun for key in keys_of(each, epoch)]
    begun = {key for _, key in ran}
    assert not walk.refused.intersection(ran)
    cancelled = {(part.gang.epoch, part.key) for each in fleet.everyone for part in each.parts if part.closing}
    assert not cancelled.intersection(ran)
    for each in fleet.everyone:
        for epoch in each.begun:
            assert len(set(keys_of(each, epoch))) == len(keys_of(each, epoch))
    for part in [part for each in fleet.everyone for part in each.parts]:
        assert part.outcome not in _UNRUN or part.key not in begun
        assert part.outcome != "declined" or (part.gang.epoch, part.key) in walk.refused | cancelled
        assert part.outcome != "late" or part.deadline_ns < NEVER_NS
        assert part.outcome != "aborted" or part.gang.epoch not in walk.unstopped
    for process in fleet.processes:
        assert not process.sent
        assert not process.ahead
        for part in process.parts:
            assert part.outcome, f"{part.key} of epoch {part.gang.epoch} waits on rank {process.rank}"
        assert not len(process.queue)
    head = fleet.processes[0].queue.epoch
    assert head is not None
    assert head.publisher is not None
    assert not head.publisher._open
    assert not head.publisher.waits
    assert not head.publisher.batches._known
    assert not head.publisher.calls._facts
    fleet.close()


_UNRUN = {"moves", "declined", "refused", "late", "cancelled"}


def keys_of(process: Process, epoch: int) -> list[Key]:
    """Return what a process has begun in an epoch, in its order."""
    return [key for keys in process.begun[epoch].values() for key in keys]
