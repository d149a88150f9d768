"""What an application may rely on when it streams: order, ends, leaving, credit, deadlines, limits."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, client_of, in_loop, settled

STREAMER = f"{ACTORS}/streaming.py:Streamer"
CREW = f"{ACTORS}/streaming.py:Crew"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool with a small window, for all tests that leave it as it was."""
    with Ledger() as ledger, ledger.start(STREAMER, CREW, window_requests=8) as pool:
        yield ledger, pool


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool."""
    with client_of(shared[1]) as own:
        yield own


def read(pool: atomr_mp.Pool, how: str, method: str, *args: Any, **options: Any) -> tuple[list[Any], Any]:
    """Return the parts of a stream and its error, read in a thread or in an event loop."""
    parts: list[Any] = []

    async def use() -> errors.AtomrError | None:
        try:
            async with pool.stream(method, *args, **options) as stream:
                async for part in stream:
                    parts.append(part)  # noqa: PERF401 - what came before an error counts
        except errors.AtomrError as error:
            return error
        return None

    if how == "loop":
        return parts, in_loop(use)
    try:
        with pool.stream(method, *args, **options) as stream:
            for part in stream:
                parts.append(part)  # noqa: PERF402 - as above
    except errors.AtomrError as error:
        return parts, error
    return parts, None


both = pytest.mark.parametrize("how", ["thread", "loop"])


# --- parts and ends --------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("count", "ahead"), [(0, 16), (1, 1), (100, 1), (1000, 16), (1000, 1000)])
def test_parts_come_in_order_each_once(pool: atomr_mp.Pool, how: str, count: int, ahead: int) -> None:
    """However far ahead the worker may be."""
    assert read(pool, how, "Streamer.count", count, ahead=ahead) == (list(range(count)), None)


def test_the_result_is_what_the_generator_returns(pool: atomr_mp.Pool) -> None:
    """Unread parts are dropped; an actor's reference streams too, with arguments by name."""
    stream = pool.actor("Streamer").count(upto=100)
    assert isinstance(stream, atomr_mp.ReplyStream)
    assert next(stream) == 0
    assert stream.result(DEADLINE_S) == 4950
    assert (stream.parts, stream.done, stream.method) == (100, True, "Streamer.count")

    async def use() -> None:
        stream = pool.stream("Streamer.count", 50)
        assert await anext(stream) == 0
        assert await stream == 1225
        assert stream.result() == 1225  # it has ended

    in_loop(use)


@both
@pytest.mark.parametrize("at", [0, 1, 40])
def test_what_has_arrived_is_delivered_before_an_error(pool: atomr_mp.Pool, how: str, at: int) -> None:
    """The generator's exception comes with its traceback, and says how many parts there were."""
    parts, error = read(pool, how, "Streamer.failing", at)
    assert parts == list(range(at))
    assert type(error) is errors.ActorFailed
    assert (error.exception, error.parts, error.maybe_executed) == ("builtins.ValueError", at, True)
    assert "on purpose" in error.traceback_text
    parts, error = read(pool, how, "Streamer.failing", at, "typed")
    assert (type(error), error.requested_bytes, error.parts) == (errors.OutOfMemory, 7, at)


@pytest.mark.parametrize("what", ["part", "result"])
def test_what_cannot_be_sent_ends_the_stream(pool: atomr_mp.Pool, what: str) -> None:
    """Typed, with what came before."""
    parts, error = read(pool, "thread", "Streamer.odd", what)
    assert (parts, type(error), error.parts) == ([1], errors.ActorFailed, 1)
    assert "cannot be sent" in str(error)


@both
@pytest.mark.parametrize("length", [1, 10_000, 200_000])
def test_arrays_are_parts_as_they_are_results(pool: atomr_mp.Pool, how: str, length: int) -> None:
    """Inline, in frames, in shared memory."""
    parts, error = read(pool, how, "Streamer.arrays", 20, length)
    assert error is None
    for n, part in enumerate(parts):
        np.testing.assert_array_equal(part, np.full(length, n, np.float32))
    assert len(parts) == 20


def test_refs_are_parts_and_arguments(pool: atomr_mp.Pool) -> None:
    """Borrowed memory stays until the stream's end; refs among its parts are the caller's."""
    array = np.arange(1000, dtype=np.float32)
    ref = pool.device().put(array)
    refs = list(pool.stream("Streamer.refs", ref, 5))
    for n, each in enumerate(refs):
        np.testing.assert_array_equal(each.numpy(), array + n)
        each.free()
    ref.free()


def test_a_stream_is_no_call_and_a_call_no_stream(pool: atomr_mp.Pool) -> None:
    """Each is refused with what to use."""
    with pytest.raises(errors.InvalidRequest, match="open it with `stream`"):
        pool.call("Streamer.count", 1).result()
    with pytest.raises(errors.InvalidRequest, match=r"Pool\.call"):
        pool.stream("Streamer.one")
    with pytest.raises(errors.InvalidRequest, match="there is no request"):
        pool.stream("Streamer.missing")
    with pytest.raises(errors.InvalidRequest, match="ahead"):
        pool.stream("Streamer.count", 1, ahead=0)
    with pytest.raises(errors.InvalidRequest, match="between_s"):
        pool.stream("Streamer.count", 1, between_s=0)
    parts, error = read(pool, "thread", "Streamer.count", "three")
    assert (parts, type(error), error.maybe_executed) == ([], errors.InvalidRequest, False)


def test_a_stream_of_a_loop_is_read_there_and_that_of_a_thread_anywhere(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Where it would block its loop, it is refused, and goes on."""

    async def use() -> atomr_mp.ReplyStream:
        stream = pool.stream("Streamer.endless", "x")
        with pytest.raises(errors.WouldBlock, match="by `async for`"):
            next(stream)
        assert await anext(stream) == 0
        assert await anext(of_threads) == 1
        await stream.aclose()
        return stream

    of_threads = pool.stream("Streamer.endless", "y", ahead=1)
    assert next(of_threads) == 0
    stream = in_loop(use)
    with pytest.raises(errors.Cancelled):
        next(stream)
    assert next(of_threads) == 2
    of_threads.close()
    assert settled(lambda: len(notes.runs()) == 2)  # else the next test would find its end


def test_a_coroutine_that_is_cancelled_closes_a_thread_s_stream_as_it_does_its_own(
    pool: atomr_mp.Pool, notes: Ledger
) -> None:
    """No thread goes on waiting for a part then."""

    async def use() -> None:
        waiting = asyncio.create_task(stream.__anext__())
        await asyncio.to_thread(gate.wait)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with notes.gate("cancelled") as gate:
        stream = pool.stream("Streamer.held", gate.path, 0)
        in_loop(use)
        with pytest.raises(errors.Cancelled):
            next(stream)


# --- leaving ---------------------------------------------------------------------------------------------------------


def closed(notes: Ledger) -> list[str]:
    """Wait until a generator was closed; return what it noted: its tag, whether on its own thread, how far."""
    assert settled(lambda: bool(notes.runs()))
    (found,) = notes.runs()
    tag, _, same, count = found.split("-")
    return [tag, same, count]


@pytest.mark.parametrize("how", ["break", "close", "error", "collected", "cancel"])
def test_a_stream_that_a_thread_leaves_is_closed(pool: atomr_mp.Pool, notes: Ledger, how: str) -> None:
    """The generator gets `GeneratorExit`, on its own thread, at its next step."""
    stream = pool.stream("Streamer.endless", how)
    assert [next(stream) for _ in range(20)] == list(range(20))
    match how:
        case "break":
            with stream:
                for _ in stream:
                    break
        case "close":
            stream.close()
            stream.close()
        case "cancel":
            stream.cancel()
        case "error":
            with pytest.raises(ZeroDivisionError), stream:
                raise ZeroDivisionError
        case "collected":
            del stream
            gc.collect()
    tag, same, count = closed(notes)
    assert (tag, same) == (how, "True")
    assert 19 <= int(count) <= 21 + 2 * 16  # of the last part that was read it may stand at its `yield`


@pytest.mark.parametrize("how", ["break", "aclose", "cancelled", "timeout"])
def test_a_stream_that_a_task_leaves_is_closed(pool: atomr_mp.Pool, notes: Ledger, how: str) -> None:
    """The block may end, the task may close it, or be cancelled while it waits."""

    async def use() -> None:
        stream = pool.stream("Streamer.endless", how)
        assert await anext(stream) == 0
        match how:
            case "break":
                async with stream:
                    async for _ in stream:
                        break
            case "aclose":
                await stream.aclose()
            case "cancelled":
                reading = asyncio.Event()
                task = asyncio.create_task(_drain(stream, reading))
                await reading.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            case "timeout":
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(_drain(stream), 0.01)
        assert await asyncio.to_thread(settled, lambda: bool(notes.runs()))

    in_loop(use)
    assert closed(notes)[:2] == [how, "True"]


async def _drain(stream: atomr_mp.ReplyStream, reading: asyncio.Event | None = None) -> None:
    async for _ in stream:
        if reading is not None:
            reading.set()


def test_a_generator_that_yields_when_it_is_to_end_fails(pool: atomr_mp.Pool) -> None:
    """Its stream is over all the same, and so is its place."""
    stream = pool.stream("Streamer.stubborn", ahead=1)
    assert next(stream) == 0
    stream.close()
    assert pool.call("Streamer.where").result() > 0
    assert read(pool, "thread", "Streamer.count", 3) == ([0, 1, 2], None)


def test_a_stream_that_has_not_begun_can_be_closed(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Then it never begins."""
    with notes.gate("unbegun") as gate:
        first = pool.stream("Streamer.held", gate.path, 0)
        gate.wait()
        second = pool.stream("Streamer.endless", "never")
        assert settled(lambda: pool.status().devices[0].queue_depth == 2)
        second.close()
        with pytest.raises(errors.Cancelled):
            next(second)
        assert settled(lambda: pool.status().devices[0].queue_depth == 1)  # until then the worker might begin it
        gate.open()
        assert list(first) == [0]
    assert notes.runs() == ["over"]


# --- credit ----------------------------------------------------------------------------------------------------------


def test_nobody_runs_ahead_of_a_slow_reader(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """The generator stands still when as much as may be is unread, in parts or in bytes; and holds up no other."""
    parts = pool.stream("Streamer.endless", "parts", ahead=4)
    nbytes = pool.stream("Streamer.endless", "bytes", 10_000, ahead=1000, ahead_bytes=35_000)
    assert next(parts) == 0
    assert len(next(nbytes)) == 10_000
    for _ in range(50):
        assert pool.call("Streamer.where").result(DEADLINE_S) > 0
    parts.close()
    nbytes.close()
    assert settled(lambda: len(notes.runs()) == 2)
    found = {line.partition("-")[0]: int(line.rpartition("-")[2]) for line in notes.runs()}
    assert found["parts"] <= 4 + 4
    assert found["bytes"] <= 5 + 4


def test_many_streams_share_a_thread(pool: atomr_mp.Pool) -> None:
    """They alternate step by step with each other and with calls, also those of one task each."""

    async def use() -> list[list[Any]]:
        async def one(ahead: int) -> list[Any]:
            return [part async for part in pool.stream("Streamer.count", 60, ahead=ahead)]

        calls = asyncio.gather(*(pool.call("Streamer.where") for _ in range(50)))
        found = await asyncio.gather(*(one(1 + n % 7) for n in range(100)))
        await calls
        return found

    assert in_loop(use) == [list(range(60))] * 100


def test_open_streams_use_no_window(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """More of them than calls may be unanswered."""
    streams = [pool.stream("Streamer.endless", "w", ahead=1) for _ in range(40)]
    assert [next(stream) for stream in streams] == [0] * 40
    assert [reply.result() for reply in [pool.call("Streamer.one") for _ in range(8)]] == [1] * 8
    for stream in streams:
        stream.close()
    assert settled(lambda: len(notes.runs()) == 40)


@pytest.mark.parametrize("actor", ["Streamer", "Crew"])
def test_streams_and_calls_of_several_clients_all_have_their_turns(
    shared: tuple[Ledger, atomr_mp.Pool], actor: str
) -> None:
    """Each new stream and call gets its step while those of both clients that have begun go on without an end."""
    first_parts = [threading.Event() for _ in range(6)]
    over = threading.Event()

    def follow(pool: atomr_mp.Pool, number: int) -> None:
        with pool.stream(
            f"{actor}.slow", 10**9, 0.002
        ) as stream:  # longer than its reader's answer, so it always waits
            for _ in stream:
                first_parts[number].set()
                if over.is_set():
                    return

    with client_of(shared[1]) as one, client_of(shared[1]) as other, ThreadPoolExecutor(6) as readers:
        pools = [one, other] * 3
        followed = [readers.submit(follow, pool, number) for number, pool in enumerate(pools)]
        try:
            assert all(each.wait(DEADLINE_S) for each in first_parts)
            calls = [pool.call(f"{actor}.where") for pool in pools]
            assert len({each.result(DEADLINE_S) for each in calls}) == 1
        finally:
            over.set()
        for each in followed:
            each.result(DEADLINE_S)


def test_threads_share_a_stream_s_parts(pool: atomr_mp.Pool) -> None:
    """Each part goes to one of them."""
    stream = pool.stream("Streamer.count", 500)
    found: list[int] = []

    def use() -> None:
        found.extend(stream)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(found) == list(range(500))


# --- what a stream has for itself ------------------------------------------------------------------------------------


def test_context_variables_are_a_stream_s_own(pool: atomr_mp.Pool) -> None:
    """Though steps of others come in between, on the same thread."""
    streams = [pool.stream("Streamer.with_variable", value, 20, ahead=2) for value in "abc"]
    for parts in zip(*streams, strict=True):
        assert parts == ("a", "b", "c")


def test_of_several_threads_a_stream_stays_on_one(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Others run beside it, and a busy thread holds up no other's steps."""
    with notes.gate("crew") as gate:
        streams = [pool.stream("Crew.endless", f"{n}", ahead=2) for n in range(6)]
        assert [next(stream) for stream in streams] == [0] * 6
        held = pool.stream("Crew.held", gate.path, 0)
        gate.wait()
        assert pool.call("Crew.where").result(DEADLINE_S) > 0
        on_time = threading.Thread(target=lambda: [next(streams[n]) for n in range(6)])
        on_time.start()
        gate.open()
        on_time.join(DEADLINE_S)
        assert list(held) == [0]
        for stream in streams:
            assert [next(stream) for _ in range(20)]
            stream.close()
    assert settled(lambda: len(notes.runs()) == 7)
    assert all("False" not in line for line in notes.runs())


def test_an_exclusive_stream_keeps_its_thread(pool: atomr_mp.Pool) -> None:
    """It keeps it until it ends, however slow its reader is. Of several, one runs."""
    stream = pool.stream("Streamer.alone_on_thread", 20, ahead=1)
    assert next(stream) == 0
    call = pool.call("Streamer.where")
    with pytest.raises(TimeoutError):
        call.result(0.2)
    assert list(stream) == list(range(1, 20))
    assert call.result(DEADLINE_S) > 0
    of_crew = pool.stream("Crew.alone_on_thread", 5, ahead=1)
    assert next(of_crew) == 0
    assert pool.call("Crew.where").result(DEADLINE_S) > 0
    of_crew.close()


# --- deadlines and limits --------------------------------------------------------------------------------------------


@both
def test_the_first_part_has_a_deadline(pool: atomr_mp.Pool, notes: Ledger, how: str) -> None:
    """The generator is closed when it comes back."""
    with notes.gate(f"first-{how}") as gate:
        parts, error = read(pool, how, "Streamer.held", gate.path, 0, first_s=1.0)
        assert (parts, type(error), error.parts) == ([], errors.DeadlineExceeded, 0)
        gate.open()
        assert settled(lambda: notes.runs()[-1:] == ["over"])


@both
def test_parts_have_a_deadline_between_them(pool: atomr_mp.Pool, notes: Ledger, how: str) -> None:
    """Parts that were in time are delivered."""
    with notes.gate(f"between-{how}") as gate:
        parts, error = read(pool, how, "Streamer.held", gate.path, 3, between_s=2.0)
        assert (parts, type(error), error.parts) == ([0, 1, 2], errors.DeadlineExceeded, 3)
        assert "between_s" in str(error)
        gate.open()
        assert settled(lambda: "over" in notes.runs())


@both
def test_time_without_credit_does_not_count(pool: atomr_mp.Pool, how: str) -> None:
    """A reader may take as long as it likes; only the whole stream's deadline goes on."""

    async def use() -> int:
        stream, count = pool.stream("Streamer.count", 8, between_s=2.0, ahead=2), 0
        async for _ in stream:
            count += 1
            if count == 1:
                await asyncio.sleep(2.2)  # longer than a part may take
        return count

    if how == "loop":
        assert in_loop(use) == 8
        return
    stream = pool.stream("Streamer.count", 8, between_s=2.0, ahead=2)
    for n in range(8):
        assert next(stream) == n
        if n == 1:
            time.sleep(2.2)  # longer than a part may take


@both
def test_the_whole_stream_has_a_deadline(pool: atomr_mp.Pool, how: str) -> None:
    """Though it goes on well."""
    parts, error = read(pool, how, "Streamer.slow", 1000, 0.01, deadline_s=2.0)
    assert type(error) is errors.DeadlineExceeded
    assert 0 < len(parts) < 1000
    assert parts == list(range(len(parts)))
    assert pool.call("Streamer.where").result(DEADLINE_S) > 0


def test_a_wait_for_a_result_can_be_limited(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """The stream goes on."""
    with notes.gate("limited") as gate:
        stream = pool.stream("Streamer.held", gate.path, 0)
        with pytest.raises(TimeoutError):
            stream.result(0.05)
        gate.open()
        assert stream.result(DEADLINE_S) is None


def test_open_streams_are_bounded(ledger: Ledger) -> None:
    """The client refuses its own surplus at once, the worker that of all clients. Each end makes room."""
    with ledger.start(STREAMER, max_streams=4) as pool, atomr_mp.connect(run_dir=pool.run_dir) as other:
        other.wait_ready()
        streams = [pool.stream("Streamer.endless", "a", ahead=1) for _ in range(4)]
        assert [next(stream) for stream in streams] == [0] * 4
        with pytest.raises(errors.Overloaded, match="max_streams") as caught:
            pool.stream("Streamer.endless", "b")
        assert (caught.value.window, caught.value.maybe_executed) == (4, False)
        parts, error = read(other, "thread", "Streamer.count", 3)
        assert (parts, type(error), error.maybe_executed) == ([], errors.Overloaded, False)
        streams.pop().close()
        assert settled(lambda: read(other, "thread", "Streamer.count", 3) == ([0, 1, 2], None))


def test_a_stream_that_nobody_reads_ends(ledger: Ledger) -> None:
    """It holds what it has borrowed; its reader gets the outcome."""
    with ledger.start(STREAMER, stall_s=0.3) as pool:
        stream = pool.stream("Streamer.endless", "stalled", ahead=3)
        assert settled(lambda: bool(ledger.runs()))
        with pytest.raises(errors.DeadlineExceeded, match="stall_s") as caught:
            stream.result()
        assert (stream.parts, caught.value.parts) == (3, 3)
        busy = pool.stream("Streamer.slow", 8, 0.1, ahead=8)
        assert list(busy) == list(range(8))


def test_a_planned_end_lets_streams_end(ledger: Ledger) -> None:
    """Open streams stay with their worker; new ones go to the next."""
    with ledger.start(STREAMER) as pool, ledger.gate("gate") as gate:
        stream = pool.stream("Streamer.held", gate.path, 2)
        assert [next(stream), next(stream)] == [0, 1]
        gate.wait()
        generation = pool.devices[0].generation
        pool.restart(0)
        assert settled(lambda: not pool.devices[0].admitted)
        later = pool.stream("Streamer.count", 3)
        gate.open()
        assert list(stream) == [2]
        assert list(later) == [0, 1, 2]
        assert (stream.generation, later.generation) == (generation, generation + 1)
