"""Rank 0's choice of the calls that share a batch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from atomr_mp.protocol.world import EntryKind, RingReader, ring_bytes
from atomr_mp.protocol.world.page import MAX_REQUESTS
from atomr_mp_workers.requests.batches.former import BatchLimits
from atomr_mp_workers.worlds.order.batches import MOST_AHEAD, BatchedPart, OrderOfBatches
from atomr_mp_workers.worlds.order.publisher import AHEAD, Publisher

LIMITS = BatchLimits(4, 1000, 100)


@dataclass(eq=False)
class Session:
    """A session."""

    weight: float = 1.0


SESSION = Session()


def order_with(
    *calls: int, limits: BatchLimits = LIMITS, group: int = 0, nbytes: int = 10, now_ns: int = 0, session: int = 1
) -> OrderOfBatches:
    """Return an order in which calls wait."""
    order = OrderOfBatches()
    add(order, *calls, limits=limits, group=group, nbytes=nbytes, now_ns=now_ns, session=session)
    return order


def add(
    order: OrderOfBatches,
    *calls: int,
    limits: BatchLimits = LIMITS,
    group: int = 0,
    nbytes: int = 10,
    now_ns: int = 0,
    session: int = 1,
    method: str = "A.run",
) -> None:
    """Have calls come to all members."""
    for call in calls:
        order.know((session, call), BatchedPart(method, limits, group, SESSION, nbytes))
        assert order.add((session, call), now_ns)
    order.look(now_ns)


def ids(batch: list[tuple[int, int]]) -> list[int]:
    """Return the ids of calls."""
    return [gang_id for _, gang_id in batch]


def test_a_batch_waits_for_more_calls_until_its_time() -> None:
    """It tells when that is."""
    order = order_with(1, 2, now_ns=50)
    assert (order.next(50, 0), order.due_ns, order.wait_for_end) == ([], 150, False)
    order.look(150)
    assert order.wait_for_end
    assert ids(order.next(150, 0)) == [1, 2]


def test_a_full_batch_does_not_wait() -> None:
    """By number, and by bytes."""
    assert ids(order_with(1, 2, 3, 4, 5).next(0, 0)) == [1, 2, 3, 4]
    assert ids(order_with(1, 2, 3, nbytes=400).next(0, 0)) == [1, 2]


def test_only_calls_of_one_group_share_a_batch() -> None:
    """Others wait for theirs."""
    order = order_with(1, 3, group=1)
    add(order, 2, 4, group=0)
    first = ids(order.next(100, 0))
    order.published(1, 100)
    assert sorted([first, ids(order.next(100, 1))]) == [[1, 3], [2, 4]]


def test_an_entry_holds_only_so_many() -> None:
    """However many a method takes."""
    order = order_with(*range(MAX_REQUESTS + 1), limits=BatchLimits(10**6, None, 0))
    assert len(order.next(0, 0)) == MAX_REQUESTS


def test_one_batch_is_ahead_and_a_second_one_if_it_is_full() -> None:
    """Behind that calls wait, and another method goes on."""
    order = order_with(1, 2)
    assert ids(order.next(100, 0)) == [1, 2]
    order.published(1, 100)
    add(order, 3, 4, now_ns=100)
    assert not order.next(300, 0), "it may fill up"
    order.look(300)
    assert order.wait_for_end
    add(order, 5, 6, 7, 8, 9, 10, now_ns=300)
    assert ids(order.next(300, 0)) == [3, 4, 5, 6]
    order.published(2, 300)
    assert MOST_AHEAD == 2
    assert not order.next(300, 0)
    add(order, 11, now_ns=300, method="A.other")
    assert ids(order.next(500, 0)) == [11]
    order.published(3, 500)
    assert ids(order.next(500, 1)) == [7, 8, 9, 10]


def test_a_batch_that_finds_no_room_is_the_next_one_still() -> None:
    """No later call joins it: it was chosen."""
    order = order_with(1, 2)
    assert ids(order.next(100, 0)) == [1, 2]
    add(order, 3, now_ns=100)
    assert ids(order.next(100, 0)) == [1, 2]
    assert order.wait_for_end


def test_calls_of_an_ended_session_are_taken_out_wherever_they_are() -> None:
    """Each one that had come to all members is named once."""
    order = order_with(1, 2, 3, 4, 5)
    add(order, 6, session=2)
    order.know((1, 7), BatchedPart("A.run", LIMITS, 0, SESSION, 1))
    assert ids(order.next(0, 0)) == [1, 2, 3, 4]
    assert sorted(ids(order.cancel(1))) == [1, 2, 3, 4, 5]
    assert not order.cancel(1)
    assert not order.add((1, 7), 0), "nobody knows it any longer"
    assert ids(order.next(100, 0)) == [6]
    order.published(1, 100)
    assert (order.due_ns, order.wait_for_end) == (None, False)


def test_a_call_that_is_late_or_dropped_leaves_its_room_to_others() -> None:
    """It was not published, or chosen, before."""
    order = OrderOfBatches()
    for call, due_ns in enumerate((10, 99, 99, 10, 300, 300, 300, 10)):
        order.know((1, call), BatchedPart("A.run", LIMITS, 0, SESSION, 10, due_ns))
        assert order.add((1, call), 0)
    assert order.drop((1, 2))
    assert not order.drop((1, 2))
    assert ids(order.next(99, 0)) == [1, 4, 5, 6]
    assert ids(order.late) == [0, 3]
    assert order.drop((1, 5))
    assert ids(order.next(100, 0)) == [1, 4, 6]
    order.published(1, 100)
    assert not order.next(100, 1)
    assert ids(order.late) == [0, 3, 7]
    order.look(100)
    assert not order.wait_for_end


def test_a_call_of_another_kind_of_method_waits_elsewhere() -> None:
    """And one that was refused is forgotten."""
    order = OrderOfBatches()
    assert not order.add((1, 1), 0)
    order.know((1, 2), BatchedPart("A.run", LIMITS, 0, SESSION, 1))
    order.forget((1, 2))
    assert not order.add((1, 2), 0)


def test_nothing_is_left_after_a_planned_end() -> None:
    """Whatever has been chosen."""
    order = order_with(1, 2, 3, 4, 5)
    order.next(0, 0)
    order.clear()
    assert not order.next(1000, 0)
    assert (order.due_ns, order.wait_for_end) == (None, False)


@pytest.mark.parametrize("seed", range(20))
def test_each_call_is_in_one_batch_that_keeps_the_limits(seed: int) -> None:
    """And none waits for ever, whatever ends when."""
    chosen, order, sequence = random.Random(seed), OrderOfBatches(), 0
    groups: dict[tuple[int, int], tuple[str, int, int]] = {}
    seen: list[tuple[int, int]] = []
    gone: set[tuple[int, int]] = set()
    ended = now_ns = 0

    def publish() -> None:
        nonlocal sequence
        while batch := order.next(now_ns, ended):
            assert len({groups[key][:2] for key in batch}) == 1
            assert len(batch) <= LIMITS.max_items
            assert len(batch) == 1 or sum(groups[key][2] for key in batch) <= 1000
            seen.extend(batch)
            sequence += 1
            order.published(sequence, now_ns)

    for number in range(400):
        now_ns += chosen.randrange(40)
        session, group = chosen.randrange(1, 4), chosen.randrange(2)
        method, nbytes = chosen.choice(("A.a", "A.b")), chosen.choice((10, 400))
        groups[session, number] = (method, group, nbytes)
        add(order, number, group=group, nbytes=nbytes, now_ns=now_ns, session=session, method=method)
        if chosen.random() < 0.02:
            gone.update(order.cancel(chosen.randrange(1, 4)))
        ended = chosen.randint(ended, sequence)
        publish()
    order.look(now_ns)
    while order.wait_for_end or order.due_ns is not None:
        before, now_ns, ended = len(seen), now_ns + 1000, sequence
        publish()
        order.look(now_ns)
        assert len(seen) > before or not order.wait_for_end
    assert len(seen) == len(set(seen))
    assert set(seen) == groups.keys() - gone


class Slow:
    """A member that notes nothing, and ends calls as the test says."""

    is_open, taken, ends = True, 0, 0

    def note(self) -> None:
        """Return no note."""

    def begun(self) -> int:
        """Return what has begun."""
        return self.ends

    def away(self) -> int:
        """Return that no suspect has come."""
        return 0

    def ended(self) -> int:
        """Return what has ended."""
        return self.ends


def test_the_largest_batches_wait_for_room_in_the_ring() -> None:
    """None is lost, and each is published once."""
    words = memoryview(bytearray(ring_bytes())).cast("Q")
    member: Any = Slow()
    publisher = Publisher(words, 1, [member], 10**9)
    wanted = set(range(20 * 2 * MAX_REQUESTS))
    limits = BatchLimits(MAX_REQUESTS, None, 0)
    for call in wanted:
        add(publisher.batches, call, limits=limits, method=f"A.run{call % 20}")
    reader, full = RingReader(words, 1), False
    seen: list[int] = []
    while publisher.waits:
        before = len(seen)
        publisher.look(0)
        while (entry := reader.read()) is not None:
            assert (entry.kind, len(entry.requests)) == (EntryKind.BATCH, MAX_REQUESTS)
            seen += [gang_id for _, gang_id in entry.requests]
        full |= 0 < reader.sequence - member.ends < AHEAD and publisher.waits
        assert len(seen) > before or member.ends < reader.sequence
        member.ends = min(member.ends + 1, reader.sequence)
    assert full, "there was always room"
    assert sorted(seen) == sorted(wanted)
