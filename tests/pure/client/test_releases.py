"""What waits to be given back: counted once each, in order, and never from under a lock."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter, deque
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.client.hand_over import HandOver
from atomr_mp.client.memory.leases import LeaseKind, Releases, ViewBorrow
from atomr_mp.protocol import token
from atomr_mp.protocol.messages import data

TOKEN = token.pack(bytes(range(16)), 3, 7)


def test_it_knows_whose_it_is() -> None:
    """Device and generation are the token's."""
    releases = Releases(TOKEN)
    assert (releases.device, releases.generation, releases.serial) == (3, 7, 0)
    assert releases.message() is None


def test_a_lease_is_given_back_once_for_each_time_that_it_came() -> None:
    """Released or collected, or both."""
    releases = Releases(TOKEN)
    leases = releases.leases([5, 6, 5])
    assert sorted(leases) == [5, 6]
    leases[6].release()
    leases[6].release()
    assert list(releases.pending) == [(LeaseKind.LEASE, 6)]
    leases.clear()
    gc.collect()
    assert Counter(releases.pending) == {(LeaseKind.LEASE, 5): 2, (LeaseKind.LEASE, 6): 1}


def test_a_message_has_each_kind_in_its_place() -> None:
    """Releases beyond a message's room come with the next."""
    releases = Releases(TOKEN)
    releases.give_back([1, 2])
    ViewBorrow(releases, 8).release()
    releases.pending.append((LeaseKind.SLAB, 4))
    message = releases.message()
    assert message == data.Release(TOKEN, 1, [1, 2], [8], [4])
    assert data.FROM_CLIENT.decode(data.FROM_CLIENT.encode(message)) == message


def test_a_borrow_ends_once_whether_it_is_released_or_collected() -> None:
    """Who releases it gives it back; its collection is no second end."""
    releases, ended = Releases(TOKEN), deque[object]()
    collected, released = (ViewBorrow(releases, number, ended.append) for number in (8, 9))
    given = list[Releases]()
    released.release(given.append)
    released.release(given.append)
    assert (len(given), len(ended)) == (1, 0)
    del released
    assert not ended
    del collected
    assert len(ended) == 1
    assert releases.message() == data.Release(TOKEN, 1, [], [9, 8], [])
    assert releases.message() is None
    assert not releases.borrows


def test_no_interrupt_can_fall_into_the_end_of_a_borrow() -> None:
    """Python looks for signals where a function of its own begins, and there is none on the way of the end."""
    releases, found, entered = Releases(TOKEN), SimpleQueue[Any](), list[str]()
    handing_over = HandOver[Releases]("test", lambda _: None)
    handing_over._found = found  # type: ignore[misc]
    borrow = ViewBorrow(releases, 8, handing_over.handing_over(releases))
    cycle: list[Any] = [borrow]
    cycle.append(cycle)
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        del borrow, cycle
        gc.collect()
    finally:
        sys.setprofile(None)
    assert not [file for file in entered if "atomr_mp" in file], "a function of ours"
    assert found.get_nowait() == (releases,)
    assert releases.message() == data.Release(TOKEN, 1, [], [8], [])


def test_a_borrow_of_an_ended_incarnation_keeps_nothing() -> None:
    """No worker hears of its end; the releases go with it, without a collection."""
    releases = Releases(TOKEN)
    borrow = ViewBorrow(releases, 8, HandOver[Releases]("test", lambda _: None).handing_over(releases))
    releases.end(awaited=False)
    left = weakref.ref(releases)
    del releases
    gc.disable()
    try:
        borrow.release()
        del borrow
        assert left() is None
    finally:
        gc.enable()


def test_what_cannot_be_waited_for_is_given_back_too(caplog: pytest.LogCaptureFixture) -> None:
    """This process's own context may have met a fault; whoever calls just then is not to blame."""

    def wait() -> None:
        raise RuntimeError("an illegal memory access")

    releases = Releases(TOKEN)
    for number in (8, 9):
        releases.end_later(wait, ViewBorrow(releases, number))
    assert releases.message() == data.Release(TOKEN, 1, [], [8, 9], [])
    assert "illegal memory access" in caplog.text


def test_serials_count_what_was_sent() -> None:
    """One that was not sent leaves its serial to the next."""
    releases = Releases(TOKEN)
    releases.give_back([1])
    first = releases.message()
    assert first is not None
    assert (releases.serial, first.serial) == (0, 1)
    releases.sent(first)
    releases.give_back([2])
    second = releases.message()
    assert second is not None
    assert (releases.serial, second.serial) == (1, 2)


@given(st.lists(st.integers(0, 2**62), max_size=3), st.integers(0, 3 * data.MAX_RELEASED))
def test_any_number_travels_in_messages_that_can_be_sent(few: list[int], many: int) -> None:
    """Nothing is lost, nothing twice, and no message is longer than it may be."""
    releases = Releases(TOKEN)
    releases.give_back(few)
    releases.give_back(range(many))
    got: list[int] = []
    while (message := releases.message()) is not None:
        releases.sent(data.FROM_CLIENT.decode(data.FROM_CLIENT.encode(message)))  # type: ignore[arg-type]
        got += message.leases
    assert got == few + list(range(many))


def test_what_was_not_acknowledged_is_repeated_and_nothing_else() -> None:
    """Releases are repeated in order. Acknowledged ones are kept until the next is sent."""
    releases = Releases(TOKEN)
    messages = []
    for number in range(5):
        releases.give_back([number])
        message = releases.message()
        assert message is not None
        releases.sent(message)
        messages.append(message)
    assert releases.to_repeat() == messages
    releases.acknowledged = 3
    assert releases.to_repeat() == messages[3:]
    releases.acknowledged = 5
    assert releases.to_repeat() == []
    assert releases.serial == 5


def test_that_nothing_is_to_be_read_any_more_is_told_once_and_not_before_the_end() -> None:
    """When the last lease has gone; if answers may still come, not before all of them are refused."""
    read: deque[tuple[int, int]] = deque()
    unused, living, awaited, known = (Releases(TOKEN, read) for _ in range(4))
    unused.end(awaited=False)
    del unused
    leases = living.leases([5])
    leases.clear()
    del living
    leases = awaited.leases([5])
    awaited.end(awaited=True)
    leases.clear()
    gc.collect()
    assert not read
    leases = awaited.leases([6])
    leases.clear()
    del awaited
    assert read.popleft() == (3, 7)
    leases = known.leases([5, 6])
    known.end(awaited=False)
    del leases[5]
    assert not read
    del leases[6]
    assert list(read) == [(3, 7)]
