"""Asynchronous methods: calls and streams on an event loop of their actor's own, their ends and bounds."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, client_of, in_loop, settled

AWAITER = f"{ACTORS}/awaiting.py:Awaiter"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool for all tests that leave it as it was."""
    with Ledger() as ledger:
        with ledger.start(AWAITER) as pool:
            yield ledger, pool
        assert {"down-True", "engine-over"} <= set(ledger.runs())  # with the worker, on the loop


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool."""
    with client_of(shared[1]) as own:
        yield own


def noted(notes: Ledger, tag: str) -> bool:
    """Wait until something is noted."""
    return settled(lambda: tag in notes.runs())


def test_coroutines_answer_calls(pool: atomr_mp.Pool) -> None:
    """They await tasks of their actor, and each has a context of its own."""
    assert pool.call("Awaiter.add", 1, 2).result(DEADLINE_S) == 3
    assert pool.call("Awaiter.served").result(DEADLINE_S) == "served"
    values = [f"{n}" for n in range(50)]
    assert list(pool.map("Awaiter.variable", values)) == values
    with pytest.raises(errors.InvalidRequest):
        pool.call("Awaiter.add", 1, "two").result(DEADLINE_S)

    async def use() -> list[int]:
        return list(await asyncio.gather(*(pool.actor("Awaiter").add(a=n, b=1) for n in range(200))))

    assert in_loop(use) == [n + 1 for n in range(200)]


def test_the_worker_s_loop_and_threads_serve_meanwhile(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Requests that await hold up no other."""
    waiting = [pool.call("Awaiter.wait", f"w{n}") for n in range(7)]
    assert noted(notes, "w6-begun")
    assert pool.call("Awaiter.pid").result(DEADLINE_S) == pool.devices[0].pid
    assert pool.call("Awaiter.on_thread").result(DEADLINE_S)
    assert pool.call("Awaiter.add", 1, 1).result(DEADLINE_S) == 2
    for each in waiting:
        each.cancel()


def test_as_many_run_as_may_and_others_wait(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """`max_running` is 8."""
    with notes.gate("gate") as gate:
        replies = [pool.call("Awaiter.at_a_time", gate.path) for _ in range(20)]
        gate.wait(8)
        assert settled(lambda: pool.status().devices[0].queue_depth == 20)
        gate.open(20)
        assert {each.result(DEADLINE_S) for each in replies} <= set(range(1, 9))


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("value", errors.ActorFailed, "ValueError: on purpose"),
        ("typed", errors.OutOfMemory, "on purpose"),
        ("exit", errors.ActorFailed, "SystemExit"),
        ("cancelled", errors.ActorFailed, "CancelledError"),
        ("itself", errors.ActorFailed, "CancelledError"),
        ("result", errors.ActorFailed, "cannot be sent"),
    ],
)
def test_what_a_coroutine_raises_is_its_request_s_alone(
    pool: atomr_mp.Pool, notes: Ledger, kind: str, error: type[errors.AtomrError], text: str
) -> None:
    """Any exception; other requests on the loop go on."""
    beside = pool.call("Awaiter.wait", kind)
    assert noted(notes, f"{kind}-begun")
    with pytest.raises(error, match=text):
        pool.call("Awaiter.failing", kind).result(DEADLINE_S)
    assert pool.call("Awaiter.add", 2, 2).result(DEADLINE_S) == 4
    beside.cancel()
    assert noted(notes, f"{kind}-cancelled")


def test_a_cancelled_call_is_cancelled_where_it_awaits(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """`cancel` does it, and so does the caller's own task. Its place is free again."""
    reply = pool.call("Awaiter.wait", "a")
    assert noted(notes, "a-begun")
    reply.cancel()
    with pytest.raises(errors.Cancelled) as caught:
        reply.result(DEADLINE_S)
    assert caught.value.maybe_executed
    assert noted(notes, "a-cancelled")

    async def use() -> None:
        task = asyncio.ensure_future(_await(pool.call("Awaiter.wait", "b")))
        assert await asyncio.to_thread(noted, notes, "b-begun")
        task.cancel()
        await asyncio.wait([task])

    in_loop(use)
    assert noted(notes, "b-cancelled")
    assert settled(lambda: pool.status().devices[0].queue_depth == 0)


async def _await(reply: Any) -> Any:
    return await reply


def test_who_returns_although_cancelled_is_answered(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """The returned value counts: the cancellation came too late."""
    reply = pool.call("Awaiter.stubborn", "s")
    assert noted(notes, "s-begun")
    reply.cancel()
    assert reply.result(DEADLINE_S) == "s"


def test_a_deadline_cancels_the_task(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """The worker cancels it, since the caller may be stopped."""
    with pytest.raises(errors.DeadlineExceeded):
        pool.call("Awaiter.wait", "late", deadline_s=1.0).result(DEADLINE_S)
    assert noted(notes, "late-cancelled")


def test_a_client_that_goes_cancels_its_tasks(shared: tuple[Ledger, atomr_mp.Pool], notes: Ledger) -> None:
    """Calls and streams, even those that wait for credit."""
    with client_of(shared[1]) as own:
        call = own.call("Awaiter.wait", "gone")
        waits, parked = own.stream("Awaiter.endless", "stream", 1), own.stream("Awaiter.endless", "parked", ahead=2)
        assert (next(waits), next(parked)) == (0, 0)
        assert noted(notes, "gone-begun")
        assert noted(notes, "stream-waits")
    del call, waits, parked
    for tag in ("gone-cancelled", "stream-cancelled", "parked-closed"):
        assert noted(notes, tag)


def test_refs_and_arrays_are_arguments_and_results(pool: atomr_mp.Pool) -> None:
    """They are borrowed from start to end: a reader waits for a writer that awaits."""
    array = np.arange(100_000, dtype=np.float64)
    ref = pool.device().put(array)
    double = pool.call("Awaiter.double", ref).result(DEADLINE_S)
    np.testing.assert_array_equal(double.numpy(), 2 * array)
    for value in range(5):
        wrote = pool.call("Awaiter.fill", ref, float(value))
        read = pool.call("Awaiter.double", ref)
        wrote.result(DEADLINE_S)
        again = read.result(DEADLINE_S)
        np.testing.assert_array_equal(again.numpy(), np.full(len(array), 2.0 * value))
        again.free()
    double.free()
    ref.free()


@pytest.mark.parametrize(("count", "ahead"), [(0, 16), (1, 1), (300, 1), (1000, 16), (1000, 1000)])
def test_asynchronous_generators_stream(pool: atomr_mp.Pool, count: int, ahead: int) -> None:
    """Their parts come in order, each once, however far ahead the worker may be, in a thread and in a loop."""
    stream = pool.stream("Awaiter.count", count, ahead=ahead)
    assert list(stream) == list(range(count))
    assert stream.result() is None

    async def use() -> list[int]:
        async with pool.stream("Awaiter.count", count, ahead=ahead) as parts:
            return [part async for part in parts]

    assert in_loop(use) == list(range(count))


def test_streams_of_one_loop_go_side_by_side(pool: atomr_mp.Pool) -> None:
    """Streams beyond the limit take turns, and one that awaits, or has no reader, holds up none."""
    parked = [pool.stream("Awaiter.endless", f"p{n}", ahead=1) for n in range(20)]
    assert [next(each) for each in parked] == [0] * 20
    streams = [pool.stream("Awaiter.count", 20, 0.002) for _ in range(30)]
    assert [list(each) for each in streams] == [list(range(20))] * 30
    assert pool.call("Awaiter.add", 1, 1).result(DEADLINE_S) == 2
    for each in parked:
        each.close()


def test_a_closed_stream_is_closed_at_its_yield_or_cancelled_at_its_await(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Its `finally` runs, and may await."""
    stream = pool.stream("Awaiter.endless", "parked", ahead=4)
    assert next(stream) == 0
    stream.close()
    assert noted(notes, "parked-closed")
    stream = pool.stream("Awaiter.endless", "awaits", 2)
    assert [next(stream), next(stream)] == [0, 1]
    assert noted(notes, "awaits-waits")
    stream.close()
    assert noted(notes, "awaits-cancelled")
    stream = pool.stream("Awaiter.endless", "dropped", 1)
    assert next(stream) == 0
    assert noted(notes, "dropped-waits")
    del stream
    gc.collect()
    assert noted(notes, "dropped-cancelled")


@pytest.mark.parametrize("option", ["between_s", "deadline_s"])
def test_a_late_stream_is_cancelled(pool: atomr_mp.Pool, notes: Ledger, option: str) -> None:
    """Parts that have arrived come first."""
    limits: dict[str, Any] = {option: 2.0}  # in which three parts come on a busy machine
    stream = pool.stream("Awaiter.endless", option, 3, **limits)
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(errors.DeadlineExceeded) as caught:
        next(stream)
    assert caught.value.parts == 3
    assert noted(notes, f"{option}-cancelled")


@pytest.mark.parametrize(
    ("what", "parts", "text"), [("raise", [1], "on purpose"), ("part", [1], "cannot be sent"), ("none", [1, 2], "")]
)
def test_what_a_generator_raises_ends_its_stream(pool: atomr_mp.Pool, what: str, parts: list[int], text: str) -> None:
    """Typed, after the parts that have arrived."""
    found = []
    error: errors.AtomrError | None = None
    try:
        for part in pool.stream("Awaiter.odd", what):
            found.append(part)  # noqa: PERF402 - what came before an error counts
    except errors.AtomrError as raised:
        error = raised
    assert found == parts
    assert text in str(error)
    assert (error is None) == (not text)


def test_what_yields_when_it_is_closed_fails(pool: atomr_mp.Pool) -> None:
    """Its worker goes on."""
    stream = pool.stream("Awaiter.odd", "stubborn", ahead=1)
    assert next(stream) == 1
    stream.close()
    assert settled(lambda: pool.status().devices[0].queue_depth == 0)
    assert pool.call("Awaiter.add", 1, 1).result(DEADLINE_S) == 2


def test_many_threads_of_callers_share_one_loop(pool: atomr_mp.Pool) -> None:
    """No caller is passed over, and none gets another's result."""
    wrong: list[Any] = []

    def use(base: int) -> None:
        for n in range(30):
            found = pool.call("Awaiter.add", base, n).result(DEADLINE_S)
            parts = list(pool.stream("Awaiter.count", 5))
            if (found, parts) != (base + n, list(range(5))):
                wrong.append((base, n, found, parts))

    callers = [threading.Thread(target=use, args=(1000 * n,)) for n in range(8)]
    for each in callers:
        each.start()
    for each in callers:
        each.join(DEADLINE_S)
    assert wrong == []
