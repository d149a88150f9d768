"""Places in a world, in one process over real files: who begins what, in which order, and who is answered."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import cast

import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages import control, data
from atomr_mp.protocol.messages.control import WorldFileKind
from atomr_mp.protocol.world import store_stop
from atomr_mp_workers.requests.batches.former import NEVER_NS
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.worlds.member_states import MemberState
from atomr_mp_workers.worlds.order import publisher
from atomr_mp_workers.worlds.order.joined_epoch import RING_AFTER_NS
from tests.fleets import TIMEOUT_S, WORLD, Fleet, Part, Process, Session, order_of

LOOP_BELL, THREAD_BELL = WorldFileKind.LOOP_BELL, WorldFileKind.THREAD_BELL


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Yield a world of three members that have joined."""
    fleet = Fleet()
    fleet.join()
    yield fleet
    fleet.close()


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


@pytest.mark.parametrize("ranks", [[0], [2], [0, 1], [1, 2]])
@pytest.mark.parametrize("batched", [False, True])
def test_parts_that_their_client_has_left_are_dropped_if_the_others_do_not_come(
    fleet: Fleet, ranks: list[int], *, batched: bool
) -> None:
    """A part that comes even so is dropped too. What has come to all by then runs, whoever has left."""
    timeout_ns = int(TIMEOUT_S * 1e9)
    left = [fleet.processes[rank].arrive(1, 1, 1, batched=batched) for rank in ranks]
    whole = [fleet.processes[rank].arrive(1, 2, 1, batched=batched) for rank in ranks]
    fleet.turns(2, now_ns=1)
    fleet.processes[ranks[0]].leave(left[0])
    fleet.processes[ranks[0]].leave(whole[0])
    fleet.turns(2, now_ns=2)
    others = [each for each in fleet.processes if each.rank not in ranks]
    whole += [each.arrive(1, 2, 1, batched=batched) for each in others]
    fleet.turns(3, now_ns=3)
    assert [part.outcome for part in whole] == ["ran"] * 3
    assert not any(part.outcome for part in left)
    fleet.turns(3, now_ns=10 + timeout_ns)
    assert {part.outcome for part in left} == {"declined"}
    late = [each.arrive(1, 1, 1, batched=batched) for each in others]
    fleet.turns(3, now_ns=20 + timeout_ns)
    assert {part.outcome for part in late} == {"declined"}
    assert not any(each.sent for each in fleet.processes)


@pytest.mark.parametrize("ranks", [{0}, {2}, {0, 1}, {1, 2}])
@pytest.mark.parametrize("batched", [False, True])
def test_a_call_that_has_to_run_alone_on_some_ranks_only_runs_nowhere(
    fleet: Fleet, ranks: set[int], *, batched: bool
) -> None:
    """No honest client sends one. Rank 0 says what is wrong; calls behind it run, and so does one that agrees."""
    mixed = [each.arrive(1, 1, 1, alone=each.rank in ranks, batched=batched) for each in fleet.processes]
    fleet.turns(3)
    agreed = [each.arrive(1, 2, 1) for each in fleet.processes]
    fleet.turns(3)
    assert [part.outcome for part in mixed] == ["invalid", "declined", "declined"]
    assert [part.outcome for part in agreed] == ["ran"] * 3
    assert not any(each.sent for each in fleet.processes)


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
        assert not second.member.cut_off(1, 1)
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
    for _ in range(3):  # the last look is the second that finds it late
        assert not first.sent
        dues.append(first.member.due_ns or 0)
        now_ns = max(now_ns, *dues)
        first.look(now_ns)
    assert all(dues)
    assert first.sent == [control.EpochBroken(WORLD, 1, "has not begun a call in time", 1, late=True)]
    assert third.ahead


@pytest.mark.parametrize("begins", [True, False])
def test_after_all_processes_stood_still_a_member_has_time_to_begin(fleet: Fleet, *, begins: bool) -> None:
    """A container may stop so. At the first look after it no member has begun what was published."""
    first, second, third = fleet.processes
    for each in (third, second, first):
        each.arrive(1, 1, 1)
        each.look(10)
    later_ns = 100 * int(TIMEOUT_S * 1e9)
    first.look(later_ns)
    assert not first.sent
    due_ns = first.member.due_ns
    assert due_ns is not None
    assert due_ns > later_ns
    if begins:
        for each in fleet.processes:
            each.feed()
    first.look(due_ns)
    assert bool(first.sent) is not begins


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
    for at_ns in (30 + timeout_ns, 29 + 2 * timeout_ns, 30 + 2 * timeout_ns, 30 + 3 * timeout_ns):
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
    for away in (True, True, False, False, False):
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


def test_rank_0_is_rung_for_a_note_only_if_it_waits_for_that(fleet: Fleet) -> None:
    """It looks when its own part comes. Once that is there, it says that others are missing."""
    first, second, third = fleet.processes
    parts = [second.arrive(1, 1, 1)]
    second.look(10)
    assert not fleet.rung(LOOP_BELL, 0)
    parts.append(first.arrive(1, 1, 1))
    first.look(10)
    parts.append(third.arrive(1, 1, 1))
    third.look(10)
    assert fleet.rung(LOOP_BELL, 0)
    first.look(10)
    second.arrive(1, 2, 1)
    second.look(10)
    assert not fleet.rung(LOOP_BELL, 0), "it misses nothing any more"
    fleet.turns(2)
    assert [part.outcome for part in parts] == ["ran"] * 3


def test_rank_0_is_rung_in_the_end_for_notes_of_a_call_without_its_own_part(fleet: Fleet) -> None:
    """It has its time from then on, and further notes ring it at once until it takes them."""
    _, second, _ = fleet.processes
    timeout_ns, later_ns = int(TIMEOUT_S * 1e9), 10 * int(TIMEOUT_S * 1e9)
    second.arrive(1, 1, 1)
    second.look(10)
    due_ns = second.member.due_ns
    assert due_ns is not None
    assert due_ns <= 10 + RING_AFTER_NS
    second.look(due_ns - 1)
    assert not fleet.rung(LOOP_BELL, 0)
    second.look(later_ns)  # its loop was busy
    assert fleet.rung(LOOP_BELL, 0)
    second.look(later_ns + timeout_ns - 1)
    assert not fleet.rung(LOOP_BELL, 0)
    assert second.member.due_ns == later_ns + timeout_ns
    second.arrive(1, 2, 1)
    second.look(later_ns + timeout_ns - 1)
    assert fleet.rung(LOOP_BELL, 0)
    second.look(later_ns + timeout_ns)
    assert not second.sent
    second.look(second.member.due_ns or 0)
    assert second.sent == [control.EpochBroken(WORLD, 1, "has not begun a call in time", 0, late=True)]


def test_what_is_published_wakes_the_other_threads_and_no_loop(fleet: Fleet) -> None:
    """A thread looks by itself what it has to run."""
    first, second, third = fleet.processes
    for each in (third, second, first):
        each.arrive(1, 1, 1)
        each.look()
    assert [fleet.rung(THREAD_BELL, rank) for rank in range(3)] == [False, True, True]
    assert [fleet.rung(LOOP_BELL, rank) for rank in range(3)] == [False, False, False]
    fleet.turns()
    assert order_of(fleet, 1) == {1: ((1, 1),)}


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
    """This rank may have got none at all; parts for an earlier epoch do not matter."""
    first, second, third = fleet.processes
    parts = [third.arrive(1, 1, 1)]
    assert not second.member.cut_off(1, 0)
    fleet.turns()
    assert not second.sent
    assert second.member.cut_off(1, 1)
    assert not second.member.cut_off(1, 1)
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
    assert left.unfit
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
