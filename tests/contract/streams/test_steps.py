"""Continuous batching: one step over all streams that run now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, client_of, parts_of, settled

ENGINE = f"{ACTORS}/streaming.py:Engine"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool for all tests that leave it as it was."""
    with Ledger() as ledger, ledger.start(ENGINE) as pool:
        yield ledger, pool


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool."""
    with client_of(shared[1]) as own:
        yield own


def line(text: str, **more: Any) -> dict[str, Any]:
    """Return what a caller sends."""
    return {"text": text, **more}


def test_streams_run_together_and_each_gets_its_own(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """More than are live at a time; each is new once, and its result is what it was ended with."""

    async def one(number: int) -> tuple[list[str], int]:
        async with pool.stream("Engine.run", line(f"{number}", parts=number)) as stream:
            return [part async for part in stream], stream.result()

    async def use() -> list[tuple[list[str], int]]:
        return await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(20))), DEADLINE_S)

    found = asyncio.run(use())
    assert found == [([f"{number}-{n}" for n in range(number)], number) for number in range(20)]
    assert sorted(notes.runs()) == sorted(f"new-{number}" for number in range(20))


def test_clients_take_turns_for_the_places_of_a_step(shared: tuple[Ledger, atomr_mp.Pool], notes: Ledger) -> None:
    """Who has many streams waiting, and came first, leaves a place to another client before they all have begun."""
    with client_of(shared[1]) as one, client_of(shared[1]) as other:
        holders = [one.stream("Engine.run", line("holds", parts=10**6)) for _ in range(4)]
        assert [next(each) for each in holders] == ["holds-0"] * 4
        waiting = [one.stream("Engine.run", line("first", parts=0)) for _ in range(6)]
        assert settled(lambda: one.status().devices[0].queue_depth == 6)
        waiting.append(other.stream("Engine.run", line("second", parts=0)))
        assert settled(lambda: one.status().devices[0].queue_depth == 7)
        for each in holders:
            each.close()
        assert [parts_of(each) for each in waiting] == [([], None)] * 7
    began = [note for note in notes.runs() if note in {"new-first", "new-second"}]
    assert began.index("new-second") <= 1


def test_no_step_runs_while_there_is_nothing_to_do(pool: atomr_mp.Pool) -> None:
    """A stream whose reader has no room is held, and takes no steps by itself."""
    stream = pool.stream("Engine.run", line("slow", parts=1000), ahead=2)
    assert next(stream) == "slow-0"
    steps = pool.call("Engine.count").result(DEADLINE_S)
    for _ in range(20):
        assert pool.call("Engine.count").result(DEADLINE_S) <= steps + 3
    stream.close()


def test_who_leaves_is_gone_in_the_next_step(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Also without credit; others go on."""
    left = pool.stream("Engine.run", line("left", parts=1000), ahead=1)
    stays = pool.stream("Engine.run", line("stays", parts=50))
    assert next(left) == "left-0"
    left.close()
    assert parts_of(stays) == ([f"stays-{n}" for n in range(50)], None)
    assert settled(lambda: "gone-left" in notes.runs())
    assert "gone-stays" not in notes.runs()


def test_one_fails_alone_or_all_together(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """`fail` ends one; an exception ends all that are live, and the next step learns that they are gone."""
    other = pool.stream("Engine.run", line("other", parts=100_000))
    assert next(other) == "other-0"
    parts, error = parts_of(pool.stream("Engine.run", line("fails", how="fail", at=2)))
    assert parts == ["fails-0", "fails-1"]
    assert isinstance(error, errors.ActorFailed)
    assert (error.exception, error.parts) == ("builtins.ValueError", 2)
    assert next(other).startswith("other-")
    parts, error = parts_of(pool.stream("Engine.run", line("raises", how="raise", at=1)))
    assert (parts, type(error)) == (["raises-0"], errors.ActorFailed)
    parts, error = parts_of(other)
    assert type(error) is errors.ActorFailed
    assert error.parts == 2 + len(parts)
    assert settled(lambda: {"gone-other", "gone-raises"} <= set(notes.runs()))
    assert "gone-fails" not in notes.runs()
    assert parts_of(pool.stream("Engine.run", line("later"))) == (["later-0", "later-1", "later-2"], None)


def test_what_is_sent_beyond_the_reader_s_room_is_held_and_bounded(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Beyond that this stream alone ends with `Overloaded`, after what was sent."""
    stream = pool.stream("Engine.run", line("flood", how="flood", at=1), ahead=4)
    parts, error = parts_of(stream)
    assert parts[:3] == ["flood-0", "more", "more"]
    assert type(error) is errors.Overloaded
    assert len(parts) == error.parts == 1026
    assert settled(lambda: "gone-flood" in notes.runs())


def test_a_stream_without_all_of_its_parts_has_no_result(pool: atomr_mp.Pool) -> None:
    """Though its method has ended it with one, behind more parts than are held."""
    parts, error = parts_of(pool.stream("Engine.run", line("flood", how="flood and end", at=1), ahead=4))
    assert type(error) is errors.Overloaded
    assert len(parts) == error.parts == 1026


def test_a_stream_that_was_ended_takes_no_more(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """The method gets the error, and its callers get what came before."""
    parts, error = parts_of(pool.stream("Engine.run", line("x", how="after", at=1)))
    assert (parts, error) == (["x-0"], None)
    assert "refused" in notes.runs()


def test_arguments_are_checked_for_each_alone(pool: atomr_mp.Pool) -> None:
    """One that does not fit is refused, and harms no other."""
    good = pool.stream("Engine.run", line("good"))
    parts, error = parts_of(pool.stream("Engine.run", {"text": 3}))
    assert (parts, type(error)) == ([], errors.InvalidRequest)
    assert parts_of(good)[1] is None


def test_a_worker_s_end_in_a_step_is_everybody_s_who_was_live(ledger: Ledger) -> None:
    """It comes after the parts that arrived. Streams that waited to begin run on the next worker, if they may."""
    with ledger.start(ENGINE) as pool, ledger.gate("gate") as gate:
        live = [pool.stream("Engine.run", line(f"{n}", parts=1000), ahead=2) for n in range(3)]
        assert [next(stream) for stream in live] == ["0-0", "1-0", "2-0"]
        doomed = pool.stream("Engine.run", line("doomed", how="kill", at=0, gate=gate.path))
        gate.wait()
        gate.open()
        assert isinstance(parts_of(doomed)[1], errors.WorkerLost)
        for n, stream in enumerate(live):
            parts, error = parts_of(stream)
            assert isinstance(error, errors.WorkerLost)
            assert error.was_running
            assert parts == [f"{n}-{1 + at}" for at in range(len(parts))]
            assert error.parts == 1 + len(parts)
        assert parts_of(pool.stream("Engine.run", line("later")))[0] == ["later-0", "later-1", "later-2"]


def test_the_client_s_end_is_told_to_the_method(ledger: Ledger) -> None:
    """It looks like any other leaving."""
    with ledger.start(ENGINE) as pool:
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            other.wait_ready()
            streams = [other.stream("Engine.run", line(f"{n}", parts=1000), ahead=1) for n in range(3)]
            assert [next(stream) for stream in streams] == ["0-0", "1-0", "2-0"]
        assert settled(lambda: {"gone-0", "gone-1", "gone-2"} <= set(ledger.runs()))
        assert parts_of(pool.stream("Engine.run", line("later")))[1] is None


def test_a_hang_in_a_step_is_found(ledger: Ledger) -> None:
    """All that are live end with it."""
    with ledger.start(f"{ACTORS}/streaming.py:HangingEngine") as pool:
        stream = pool.stream("HangingEngine.run", line("x", how="hang", at=2))
        parts, error = parts_of(stream)
        assert parts == ["x-0", "x-1"]
        assert isinstance(error, errors.WorkerHung)
        assert error.parts == 2


def test_figures_of_batches_are_those_of_their_methods(ledger: Ledger) -> None:
    """A method whose streams run together has none; a reader that leaves is no failure."""
    with ledger.start(ENGINE, f"{ACTORS}/batched.py:Batched") as pool:
        left = pool.stream("Engine.run", line("left", parts=1000), ahead=1)
        assert next(left) == "left-0"
        left.close()
        assert settled(lambda: "gone-left" in ledger.runs())
        names = [each.method for each in pool.status().devices[0].batches]
        assert names
        assert not any(name.startswith("Engine.") for name in names)
        assert pool.figures().workers[0].figures.failed == 0
