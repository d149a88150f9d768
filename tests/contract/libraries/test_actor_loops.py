"""A loop of a program that an actor runs ends if its method's request is unwanted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import DEADLINE_S, Ledger, settled, wait_generation

FILE: Final = Path(__file__).parents[2] / "actors" / "looping.py"

MOST: Final = 2**40
"""As many rounds as no test lives to see."""

BESIDE: Final = "LoopingTasks.beside"

HEARING: Final = ["Looping.on_thread", "LoopingTasks.blocking", BESIDE]
"""Methods beside which the worker's loop goes on, so that it hears of cancellations."""


@pytest.fixture(scope="module")
def notes() -> Iterator[Ledger]:
    """The ledger of the tests, in which the actors note that a run begins."""
    with Ledger() as ledger:
        yield ledger


@pytest.fixture(scope="module")
def pool(notes: Ledger, backend: str) -> Iterator[atomr_mp.Pool]:
    """A pool with the actors."""
    with notes.start(f"{FILE}:Looping", f"{FILE}:LoopingTasks", backend=backend) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _possible(request: pytest.FixtureRequest, backend: str) -> None:
    if backend != "host" and request.node.name.endswith(f"{BESIDE}]"):
        pytest.skip("a thread that runs no method has no stream")


def begin(notes: Ledger, pool: atomr_mp.Pool, name: str) -> atomr_mp.Reply:
    """Call a method whose run does not end, and return the reply once the run begins."""
    before = len(notes.runs())
    reply = pool.call(name, MOST, deadline_s=None)
    assert settled(lambda: len(notes.runs()) > before, DEADLINE_S)
    return reply


def is_running(pool: atomr_mp.Pool, count: int = 1) -> bool:
    """Wait until so many requests run in the worker; return whether they do."""
    return settled(lambda: pool.status().devices[0].running == count, DEADLINE_S)


def endings(pool: atomr_mp.Pool, name: str, count: int = 1) -> list[str]:
    """Return the errors that have ended runs of an actor, once there are so many."""
    found: list[str] = []

    def look() -> bool:
        found.extend(pool.call(f"{name.partition('.')[0]}.endings").result(DEADLINE_S))
        return len(found) >= count

    assert settled(look, DEADLINE_S)
    return found


@pytest.mark.parametrize("name", ["Looping.here", *HEARING])
def test_a_deadline_ends_it_before_its_next_round(pool: atomr_mp.Pool, name: str) -> None:
    """Also where the method blocks the loop: the deadline is known when the run begins."""
    generation = pool.devices[0].generation
    assert pool.call(name, 100).result(DEADLINE_S) == 100
    assert isinstance(pool.call(name, MOST, deadline_s=0.3).exception(DEADLINE_S), errors.DeadlineExceeded)
    assert endings(pool, name) in (["DeadlineExceeded"], ["Cancelled"])  # a client also cancels what is late
    assert is_running(pool, 0)
    assert pool.call(name, 100).result(DEADLINE_S) == 100
    assert pool.devices[0].generation == generation


@pytest.mark.parametrize("name", HEARING)
def test_a_cancellation_ends_it_before_its_next_round(notes: Ledger, pool: atomr_mp.Pool, name: str) -> None:
    """The method may catch that."""
    reply = begin(notes, pool, name)
    reply.cancel()
    assert isinstance(reply.exception(DEADLINE_S), errors.Cancelled)
    assert endings(pool, name) == ["Cancelled"]
    assert is_running(pool, 0)


@pytest.mark.parametrize("name", HEARING)
def test_the_end_of_its_client_ends_it_before_its_next_round(notes: Ledger, pool: atomr_mp.Pool, name: str) -> None:
    """Only that client could cancel it."""
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        wait_generation(other, 1)
        begin(notes, other, name)
    assert endings(pool, name) == ["Cancelled"]
    assert is_running(pool, 0)


def test_a_thread_that_runs_no_method_has_no_stream(pool: atomr_mp.Pool, backend: str) -> None:
    """The error says how to have one. On the host no request needs a stream."""
    error = pool.call(BESIDE, 100).exception(DEADLINE_S)
    if backend == "host":
        assert error is None
        return
    assert isinstance(error, errors.InvalidRequest)
    assert "make the method one with thread=True" in error.message


def test_a_batch_goes_on_for_the_last_who_wants_it(pool: atomr_mp.Pool) -> None:
    """It ends once all of its requests are unwanted, by whatever."""
    first, second = (pool.call("Looping.together", MOST, deadline_s=each) for each in (None, DEADLINE_S))
    assert is_running(pool, 2)
    first.cancel()
    assert pool.call("Looping.on_thread", 2000).result(DEADLINE_S) == 2000  # meanwhile the batch does as many rounds
    assert pool.call("Looping.endings").result(DEADLINE_S) == []
    assert not any(each.done for each in (first, second))
    second.cancel()
    assert endings(pool, "Looping") == ["Cancelled"]
    assert all(isinstance(each.exception(DEADLINE_S), errors.Cancelled) for each in (first, second))
    assert is_running(pool, 0)
    pair = [pool.call("Looping.together", each) for each in (100, 50)]
    assert [each.result(DEADLINE_S) for each in pair] == [100, 100]


def test_a_stream_s_step_ends_with_the_stream(pool: atomr_mp.Pool) -> None:
    """Where its reader gives it up, and where the time for its next part is over."""
    for late in (False, True):
        stream = pool.stream("Looping.stream", MOST, between_s=0.3 if late else DEADLINE_S)
        assert next(stream) == 0
        if late:
            with pytest.raises(errors.DeadlineExceeded):
                next(stream)
        else:
            stream.close()
        assert endings(pool, "Looping") in (["Cancelled"], ["DeadlineExceeded"] if late else None)
        assert is_running(pool, 0)
