"""Admission and order of requests when a device is overloaded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.mapping.schedule import Job
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.rundir import SESSION_SOCKET
from atomr_mp.protocol.messages import data
from tests.support import ACTORS, DEADLINE_S, Ledger, settled

ADMITTED = f"{ACTORS}/admitted.py:Admitted"
BATCHED = f"{ACTORS}/batched.py:Batched"


@pytest.fixture
def pool(ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """Start a device."""
    with ledger.start(ADMITTED, max_queue=150) as pool:
        yield pool


@pytest.fixture
def other(pool: atomr_mp.Pool) -> Iterator[atomr_mp.Pool]:
    """Another client."""
    with atomr_mp.connect(run_dir=pool.run_dir) as client:
        client.wait_ready()
        yield client


def been_read(pool: atomr_mp.Pool) -> None:
    """Check that the worker has read all that this client has sent so far."""
    pool.call("Admitted.ping").result()


def test_a_single_call_does_not_wait_for_all_that_another_client_has_queued(
    ledger: Ledger, pool: atomr_mp.Pool, other: atomr_mp.Pool
) -> None:
    """It runs after at most one of the other client's requests, which all run in order."""
    with ledger.gate("fair") as gate:
        held = pool.call("Admitted.hold", gate.path)
        gate.wait()
        many = [pool.call("Admitted.note", f"{number}") for number in range(100)]
        been_read(pool)
        single = other.call("Admitted.note", "single")
        been_read(other)
        gate.open()
        for reply in (held, single, *many):
            reply.result()
    ran = ledger.runs()
    assert ran.index("single") <= 1
    ran.remove("single")
    assert ran == [f"{number}" for number in range(100)]


def test_clients_have_their_parts_by_weight(ledger: Ledger) -> None:
    """Each batch gives clients their shares by item, and no client asks for more than the pool admits."""
    with (
        ledger.start(BATCHED, max_weight=3, weight=0.5) as light,
        atomr_mp.connect(run_dir=light.run_dir, weight=1.5) as heavy,
    ):
        heavy.wait_ready()
        with ledger.gate("weighed") as gate:
            held = light.call("Batched.hold", gate.path, -1)
            gate.wait()
            replies = [light.call("Batched.hold", "", 0) for _ in range(40)]
            assert light.call("Batched.alone", 7).result() == 7  # has read them all
            replies += [heavy.call("Batched.hold", "", 1) for _ in range(80)]
            assert heavy.call("Batched.alone", 7).result() == 7
            gate.open()
            assert held.result() == [-1]
        batches = [reply.result() for reply in replies]
        for batch in batches[8:20]:  # the light client's calls: the first eight may go before the heavy one comes
            assert len(batch) == 8
            assert 5 <= sum(batch) <= 7
        with OperatorSession(light.run_dir / SESSION_SOCKET) as observer:
            sessions = observer.inventory().sessions
        assert sorted(each.weight for each in sessions if each.state == "calls") == [0.5, 1.5]
        for weight in (0, -1.0, math.nan, math.inf, 0.001, 3.1, 101, 10**400, "much", None):
            with pytest.raises(errors.InvalidRequest, match="weight must be from"):
                atomr_mp.connect(run_dir=light.run_dir, weight=cast("float", weight))


def test_a_call_of_higher_priority_comes_first(ledger: Ledger, pool: atomr_mp.Pool, other: atomr_mp.Pool) -> None:
    """Whoever has made it, and in every way: by name, by the actor, or one by one in a map."""
    with ledger.gate("first") as gate:
        held = pool.call("Admitted.hold", gate.path)
        gate.wait()
        replies = [pool.call("Admitted.note", "low", priority=-1), pool.call("Admitted.note", "plain")]
        been_read(pool)
        replies.append(other.actor("Admitted", priority=7).note("high"))
        been_read(other)
        gate.open()
        for reply in (held, *replies):
            reply.result()
    assert ledger.runs() == ["high", "plain", "low"]
    assert list(pool.map("Admitted.note", ["mapped"] * 3, priority=-8)) == [None] * 3
    for priority in (-9, 8):
        with pytest.raises(errors.InvalidRequest, match="priority must be from -8 to 7"):
            pool.call("Admitted.note", "never", priority=priority)


def test_a_full_queue_refuses_and_says_when_to_come_again(
    ledger: Ledger, pool: atomr_mp.Pool, other: atomr_mp.Pool
) -> None:
    """A method's queue of all clients, and the worker's queue of all methods."""
    with ledger.gate("full") as gate:
        held = pool.call("Admitted.hold", gate.path)
        gate.wait()
        mine = [pool.call("Admitted.few", number) for number in range(2)]
        been_read(pool)
        theirs = [other.call("Admitted.few", number) for number in range(2, 5)]
        for reply in theirs[1:]:
            error = reply.exception()
            assert isinstance(error, errors.Overloaded)
            assert not error.maybe_executed
            assert (error.window, error.retry_after_s) == (0, 0.0)
        notes = [other.call("Admitted.note", f"{number}") for number in range(150)]
        assert all(isinstance(reply.exception(), errors.Overloaded) for reply in notes[147:])
        gate.open()
        held.result()
        assert [reply.result() for reply in (*mine, theirs[0])] == [0, 1, 2]
        assert [reply.result() for reply in notes[:147]] == [None] * 147
    assert pool.call("Admitted.few", 7).result() == 7


def test_a_map_waits_for_room_in_the_workers_queue(
    ledger: Ledger, pool: atomr_mp.Pool, other: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More items in flight than may wait, or only others' calls in the way: no item fails."""
    assert list(pool.map("Admitted.few", range(200), in_flight=20)) == list(range(200))
    with ledger.gate("mapped") as gate:
        held = pool.call("Admitted.hold", gate.path)
        gate.wait()
        mine = [pool.call("Admitted.few", number) for number in range(3)]
        been_read(pool)
        postponed = Job.postponed

        def open_then(job: Job[Any], index: int) -> bool:
            gate.open()
            return postponed(job, index)

        monkeypatch.setattr(Job, "postponed", open_then)
        assert list(other.map("Admitted.few", range(5))) == list(range(5))
        held.result()
        assert [reply.result() for reply in mine] == [0, 1, 2]


def test_what_a_client_has_queued_takes_no_room_after_its_end(ledger: Ledger, pool: atomr_mp.Pool) -> None:
    """Even while nothing can be taken from the queue."""
    with ledger.gate("room") as gate:
        held = pool.call("Admitted.hold", gate.path)
        gate.wait()
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            other.wait_ready()
            for number in range(3):
                other.call("Admitted.few", number)
            been_read(other)
            assert pool.status().devices[0].queue_depth == 4
        assert settled(lambda: pool.status().devices[0].queue_depth == 1)
        mine = [pool.call("Admitted.few", number) for number in range(3)]
        been_read(pool)
        gate.open()
        held.result()
        assert [reply.result() for reply in mine] == [0, 1, 2]


@pytest.mark.parametrize("batched", [False, True])
def test_all_that_is_late_at_once_is_answered(ledger: Ledger, *, batched: bool) -> None:
    """Even if the answers exceed one message: the window gets its room back."""
    window = 2 * data.MAX_CALLS
    with ledger.start(ADMITTED, BATCHED, window_requests=window) as pool, ledger.gate("late") as gate:
        held = pool.call("Batched.hold_alone" if batched else "Admitted.hold", gate.path, deadline_s=DEADLINE_S)
        gate.wait()
        method, arguments = ("Batched.hold", ["", 0]) if batched else ("Admitted.echo", [0])
        late = [pool.call(method, *arguments, deadline_s=0.5) for _ in range(window - 2)]
        been_read(pool)
        assert isinstance(late[-1].exception(), errors.DeadlineExceeded)  # as all before it are
        gate.open()
        held.result()
        been_read(pool)
        again = [pool.call("Admitted.ping") for _ in range(window)]
        assert again[-1].result() is None
        assert all(reply.done for reply in again)
