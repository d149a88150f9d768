"""A client's promises to applications: threads, event loops, callbacks, deadlines, cancelling, windows."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import functools
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.client.lanes.event_loop import MOST_TOLD, EventLoopLane
from atomr_mp.protocol.messages.data import MAX_LANES
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.protocol.messages.session import DeviceChanged, IncarnationEnded
from tests.in_turn import in_turn
from tests.support import (
    BYSTANDER,
    DEADLINE_S,
    KEEPER,
    PROBE,
    Ledger,
    client_of,
    hurry,
    local_client,
    settled,
    wait_generation,
    wait_state,
    wait_until,
)
from tests.waiting import readable

THREADS: Final = 8
CALLS: Final = 500

Wait = Callable[[atomr_mp.Reply], Any]


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool for all tests that leave it as it was."""
    with Ledger() as ledger, ledger.start(PROBE, BYSTANDER, KEEPER, gpus=2) as pool:
        yield ledger, pool


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool with no history; afterwards the workers are as before and have nothing to do."""
    with client_of(shared[1]) as own:
        yield own


def blocking(reply: atomr_mp.Reply) -> Any:
    """Wait for a reply as a thread does."""
    return reply.result()


def awaiting(reply: atomr_mp.Reply) -> Any:
    """Await a reply that belongs to no loop in a loop."""

    async def use() -> Any:
        return await reply

    return asyncio.run(use())


# --- results and errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [blocking, awaiting])
@in_turn("value", [None, True, 2**63, -1, 1.5, "text", b"bytes", [1, [2]], {"a": {"b": []}}, "x" * 1_000_000])
def test_a_result_is_the_same_however_one_waits(pool: atomr_mp.Pool, wait: Wait, value: object) -> None:
    """In a thread and in a loop, once or several times."""
    reply = pool.call("Probe.echo", value)
    assert wait(reply) == value
    assert reply.result() == value
    assert reply.exception() is None


@pytest.mark.parametrize("wait", [blocking, awaiting])
@in_turn("count", [0, 10, 100_000])
def test_arrays_travel_inline_and_beside(pool: atomr_mp.Pool, wait: Wait, count: int) -> None:
    """The result is the caller's own array."""
    array = np.arange(count, dtype=np.float32).reshape(2, -1) if count else np.empty((0, 3), np.float32)
    doubled = wait(pool.call("Keeper.double", array))
    np.testing.assert_array_equal(doubled, array * 2)
    assert doubled.dtype == np.float32


@pytest.mark.parametrize("wait", [blocking, awaiting])
def test_an_error_is_the_same_however_one_waits(pool: atomr_mp.Pool, wait: Wait) -> None:
    """Its class, facts and traceback come over, for each thread or task that waits."""
    reply = pool.call("Probe.fail", "exception")
    for _ in range(2):
        with pytest.raises(errors.ActorFailed, match="OnPurposeError: on purpose") as caught:
            wait(reply)
        assert caught.value.maybe_executed
        assert caught.value.exception == "probe.OnPurposeError"
        assert "raise OnPurposeError" in caught.value.traceback_text
    told = reply.exception()
    assert told is not None
    assert errors.to_wire(told) == errors.to_wire(caught.value)


@in_turn("how", ["text", "typed", "fact", "no fact", "exit"])
def test_an_exception_that_is_hard_to_tell_of_is_an_answer_too(pool: atomr_mp.Pool, how: str) -> None:
    """Whatever user code raises, its caller gets an error and the worker goes on."""
    before = pool.call("Probe.where", device=0).result()
    for method in ("Probe.raise_strangely", "Probe.raise_strangely_on_thread"):
        with pytest.raises(errors.RequestError) as caught:
            pool.call(method, how, device=0, deadline_s=10).result()
        assert not isinstance(caught.value, errors.DeadlineExceeded | errors.WorkerLost)
    assert pool.call("Probe.where", device=0).result() == before


@in_turn(
    "method, arguments, words",
    [
        ("Probe.missing", [], "there is no request 'Probe.missing'"),
        ("Probe.echo", [object()], "cannot be sent"),
        ("Probe.echo", [], "Probe.echo"),
        ("Probe.echo", [1, 2], "Probe.echo"),
        ("Probe.note", [1], "Probe.note"),
        ("Keeper.double", ["text"], "Keeper.double"),
    ],
)
def test_a_wrong_call_is_refused_and_harms_nobody(
    pool: atomr_mp.Pool, method: str, arguments: list[object], words: str
) -> None:
    """In the caller or by the worker, before anything runs; calls in the same message are answered."""
    around = [pool.call("Probe.echo", n, device=0) for n in range(3)]
    with pytest.raises(errors.InvalidRequest, match=words) as caught:
        pool.call(method, *arguments, device=0).result()
    assert not caught.value.maybe_executed
    around += [pool.call("Probe.echo", n, device=0) for n in range(3, 6)]
    assert [reply.result() for reply in around] == list(range(6))


def test_arguments_by_name_are_checked_like_those_by_position(pool: atomr_mp.Pool) -> None:
    """Also through an actor's reference."""
    probe = pool.actor("Probe", device=1)
    assert probe.note(tag="by name").result() == "by name"
    assert probe.where().result()[1] == 1
    with pytest.raises(errors.InvalidRequest, match="tag twice"):
        probe.note("a", tag="b")
    with pytest.raises(AttributeError):
        _ = probe.missing
    with pytest.raises(errors.InvalidRequest, match="there is no device 2"):
        pool.call("Probe.where", device=2)


# --- callbacks -------------------------------------------------------------------------------------------------------


def test_callbacks_run_once_each_with_nobody_waiting(pool: atomr_mp.Pool) -> None:
    """Callbacks added after the answer run too, at once."""
    seen: list[int] = []
    done = threading.Semaphore(0)

    def note(reply: atomr_mp.Reply) -> None:
        seen.append(reply.result())
        done.release()

    replies = [pool.call("Probe.echo", n) for n in range(100)]
    for reply in replies:
        reply.add_done_callback(note)
    for _ in replies:
        assert done.acquire(timeout=10)
    replies[0].add_done_callback(note)
    assert sorted(seen) == [0, *range(100)]


@pytest.mark.parametrize("wait", [blocking, awaiting, None])
def test_an_exception_in_a_callback_is_logged_and_hurts_nobody(
    pool: atomr_mp.Pool, wait: Wait | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither waiting threads, nor other callbacks, nor the receiving thread."""
    called = threading.Semaphore(0)

    def fail(_: atomr_mp.Reply) -> None:
        raise LookupError("in a callback")

    with caplog.at_level(logging.ERROR, "atomr_mp"):
        for _ in range(3):
            reply = pool.call("Probe.echo", 1)
            reply.add_done_callback(fail)
            reply.add_done_callback(lambda _: called.release())
            if wait is not None:
                assert wait(reply) == 1
            assert called.acquire(timeout=10)
    assert len(caplog.records) == 3
    assert "LookupError: in a callback" in caplog.text


@pytest.mark.parametrize("wait", [blocking, awaiting, None])
@pytest.mark.parametrize("what", ["wait", "close"])
def test_a_callback_may_wait_and_close(pool: atomr_mp.Pool, wait: Wait | None, what: str) -> None:
    """The receiving thread holds no lock meanwhile that others need."""
    done = threading.Event()
    found: list[object] = []

    def use(reply: atomr_mp.Reply) -> None:
        if what == "wait":
            found.append(other.call("Probe.echo", reply.result() + 1).result(10))
        else:
            other.close()
            found.append(2)
        done.set()

    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        other.wait_ready()
        reply = other.call("Probe.echo", 1)
        reply.add_done_callback(use)
        if wait is not None:
            assert wait(reply) == 1
        assert done.wait(10)
    assert found == [2]


def test_a_callback_may_close_a_client_whose_worker_died(ledger: Ledger) -> None:
    """It learns of that as lifecycle events come in."""
    done = threading.Semaphore(0)

    def close(client: atomr_mp.Pool, _: atomr_mp.Reply) -> None:
        client.close()
        done.release()

    with (
        ledger.start() as pool,
        ledger.gate("gate") as gate,
        atomr_mp.connect(run_dir=pool.run_dir) as waiting,
        atomr_mp.connect(run_dir=pool.run_dir) as idle,
    ):
        held = []
        for client in (waiting, idle):
            client.call("Probe.echo", 1).result()  # what is sent before the worker admits it would go to the next
            reply = client.call("Bystander.hold", gate.path)
            reply.add_done_callback(functools.partial(close, client))
            held.append(reply)
        gate.wait()
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        assert isinstance(held[0].exception(10), errors.WorkerLost)
        for _ in held:
            assert done.acquire(timeout=10)


def test_a_client_may_be_closed_while_a_callback_is_added(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """The close has run the callback, and has freed the thread that waited for the reply."""
    with atomr_mp.connect(run_dir=pool.run_dir) as other, notes.gate("held") as gate:
        other.wait_ready()
        held = other.call("Probe.hold", gate.path)
        lane, watch, called = local_client(other)._blocking, local_client(other)._blocking.watch, threading.Event()

        def close_first(reply: atomr_mp.Reply) -> None:
            other.close()
            assert called.is_set()
            watch(reply)
            assert lane._watcher is None

        lane.watch = close_first  # type: ignore[method-assign]
        held.add_done_callback(lambda _: called.set())
        gate.open()


def test_a_callback_may_call(pool: atomr_mp.Pool) -> None:
    """A chain of calls needs no waiting thread."""
    done = threading.Event()

    def again(reply: atomr_mp.Reply) -> None:
        if reply.result() == 0:
            done.set()
        else:
            pool.call("Probe.echo", reply.result() - 1).add_done_callback(again)

    pool.call("Probe.echo", 50).add_done_callback(again)
    assert done.wait(10)


# --- many at once ----------------------------------------------------------------------------------------------------


def in_threads(use: Callable[[int], None]) -> None:
    """Call `use` in each of some threads at once, with the thread's number; raise what it raises."""
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(use, range(THREADS)))


def test_threads_share_a_client(pool: atomr_mp.Pool) -> None:
    """Each gets its own answers, whether it has one call or many under way."""
    wrong: list[object] = []

    def use(number: int) -> None:
        wrong.extend(
            (number, n) for n in range(CALLS // 2) if pool.call("Probe.echo", [number, n]).result(20) != [number, n]
        )
        for first in range(CALLS // 2, CALLS, 25):
            replies = [pool.call("Probe.echo", [number, n]) for n in range(first, first + 25)]
            wrong.extend((number, n) for n, reply in enumerate(replies, first) if reply.result(20) != [number, n])

    in_threads(use)
    assert wrong == []


def test_many_threads_may_wait_for_the_same_replies(pool: atomr_mp.Pool) -> None:
    """All of them get every result."""
    replies = [pool.call("Probe.echo", n) for n in range(200)]
    found: list[list[int]] = []

    def use(backwards: bool) -> None:  # noqa: FBT001 - by position from a thread's arguments
        order = replies[::-1] if backwards else replies
        results = {reply.id: reply.result(20) for reply in order}
        found.append([results[reply.id] for reply in replies])

    threads = [threading.Thread(target=use, args=(number % 2 == 0,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [list(range(200))] * THREADS


def test_a_loop_gathers_thousands(pool: atomr_mp.Pool) -> None:
    """As many at a time as the window admits, and none is lost."""
    room = asyncio.Semaphore(400)

    async def one(n: int) -> Any:
        async with room:
            return await pool.call("Probe.echo", n)

    async def use() -> list[Any]:
        return await asyncio.gather(*(one(n) for n in range(4000)))

    assert asyncio.run(use()) == list(range(4000))


def test_a_client_serves_one_loop_after_another(pool: atomr_mp.Pool) -> None:
    """More of them than a worker takes connections of a session, and threads in between."""

    async def use(n: int) -> list[Any]:
        return list(await asyncio.gather(*(pool.call("Probe.echo", [n, m], deadline_s=10) for m in range(10))))

    for n in range(MAX_LANES + 4):
        assert asyncio.run(use(n)) == [[n, m] for m in range(10)]
        assert pool.call("Probe.echo", n, deadline_s=10).result() == n
        assert not local_client(pool)._loops, "workers would wait for what it has not sent"


def test_a_lane_lets_go_of_its_connections_with_its_lock_held(
    pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may be about to log one in; it holds the lock for that."""
    held: list[bool] = []

    async def use() -> None:
        assert await pool.call("Probe.echo", 1) == 1
        lane = local_client(pool)._loops[asyncio.get_running_loop()]
        calls = lane._failover._connections

        def noting(*arguments: Any) -> None:
            held.append(lane._lock.locked())
            calls.disconnect(*arguments)

        monkeypatch.setattr(lane._failover, "_connections", calls._replace(disconnect=noting))

    asyncio.run(use())
    assert held
    assert all(held)


class ClosingLoop(asyncio.SelectorEventLoop):
    """Closes itself, as if in its own thread, when another thread is about to call it."""

    closing = False

    def __init__(self) -> None:
        super().__init__()
        self._closing_once = threading.Lock()

    def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        """Refuse, as a closed loop does."""
        if self.closing:
            with self._closing_once:
                self.close()
        return super().call_soon_threadsafe(*arguments, **options)


@pytest.mark.parametrize("what", ["read", "close"])
def test_a_loop_may_be_closed_while_another_thread_tells_it_something(ledger: Ledger, what: str) -> None:
    """The loop has stopped listening, and the thread goes on to wake others."""
    loop = ClosingLoop()

    async def use(pool: atomr_mp.Pool) -> int:
        return int((await pool.call("Probe.where"))[2])

    with ledger.start() as pool, atomr_mp.connect(run_dir=pool.run_dir) as own:
        own.wait_ready()
        assert loop.run_until_complete(use(own)) == 1
        loop.closing = True
        if what == "close":
            own.close()
        else:
            pool.restart(0)
            assert own._client.wait_until(lambda: own._client.devices[0].generation == 2, DEADLINE_S)
            own.wait_ready()
            assert own.call("Probe.where").result()[2] == 2
        assert loop.is_closed()


def test_loops_and_threads_use_a_client_at_once(pool: atomr_mp.Pool) -> None:
    """Each loop has its own connections."""
    wrong: list[object] = []

    async def use_loop(number: int) -> None:
        for n in range(50):
            values = [[number, n, m] for m in range(4)]
            found = await asyncio.gather(*(pool.call("Probe.echo", value, deadline_s=20) for value in values))
            if found != values:
                wrong.append((values, found))

    def use(number: int) -> None:
        if number % 2:
            asyncio.run(use_loop(number))
        else:
            wrong.extend(
                (number, n) for n in range(200) if pool.call("Probe.echo", [number, n]).result(20) != [number, n]
            )

    in_threads(use)
    assert wrong == []


def test_any_number_of_event_loops_and_threads_call_at_a_time(ledger: Ledger) -> None:
    """Their calls wait in the worker for their turn, as all calls do; none is refused for the number of loops."""
    ended: queue.SimpleQueue[errors.AtomrError | int] = queue.SimpleQueue()
    count = 2 * MAX_LANES + 8

    async def hold(gate: str) -> None:
        try:
            ended.put(await started.call("Probe.hold_on_thread", gate, deadline_s=DEADLINE_S))
        except errors.AtomrError as error:
            ended.put(error)

    with ledger.start() as started, ledger.gate("gate") as gate:
        threads = [threading.Thread(target=lambda: asyncio.run(hold(gate.path))) for _ in range(count)]
        for thread in threads:
            thread.start()
        gate.wait()
        assert asyncio.run(_echoed(started)) == started.call("Probe.echo", 1).result() == 1
        gate.open(count)
        assert [type(ended.get(timeout=DEADLINE_S)) for _ in range(count)] == [int] * count
        for thread in threads:
            thread.join(DEADLINE_S)


def test_a_loop_s_reply_can_be_waited_for_in_a_thread_but_not_in_the_loop(pool: atomr_mp.Pool) -> None:
    """Waiting there would block the loop that has to receive the answer."""

    async def use() -> Any:
        reply = pool.call("Probe.echo", 5)
        with pytest.raises(errors.WouldBlock, match="write `await reply`"):
            reply.result()
        return await asyncio.to_thread(reply.result, 10)

    assert asyncio.run(use()) == 5


# --- what is not answered --------------------------------------------------------------------------------------------


def test_what_is_cancelled_before_it_starts_never_runs(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """A call that has started goes on, and calls that were not cancelled run."""
    with notes.gate("cancel") as gate:
        held = pool.call("Probe.hold_on_thread", gate.path, device=0)
        gate.wait()
        queued = [pool.call("Probe.note_on_thread", f"{n}", device=0) for n in range(10)]
        for reply in [held, *queued[::2]]:
            reply.cancel()
        # Behind the cancellations on the same connection, so they have arrived.
        assert pool.call("Probe.echo", 1, device=0).result() == 1
        gate.open()
        for reply in queued[::2]:
            with pytest.raises(errors.Cancelled) as caught:
                reply.result()
            assert not caught.value.maybe_executed
        assert held.result() == 1
        assert [reply.result() for reply in queued[1::2]] == ["1", "3", "5", "7", "9"]
        queued[1].cancel()
    assert notes.runs() == ["1", "3", "5", "7", "9"]


def test_a_cancellation_that_comes_too_late_changes_nothing(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Each reply tells its request's true outcome."""
    with notes.gate("late") as gate:
        held = pool.call("Probe.hold", gate.path, device=0)
        gate.wait()
        queued = [pool.call("Probe.note", f"{n}", device=0) for n in range(50)]
        gate.open()
        for reply in queued:
            reply.cancel()
        assert held.result() == 1
        ran = []
        for n, reply in enumerate(queued):
            error = reply.exception()
            if error is None:
                assert reply.result() == f"{n}"
                ran.append(f"{n}")
            else:
                assert isinstance(error, errors.Cancelled)
                assert not error.maybe_executed
    assert notes.runs() == ran


def test_a_cancelled_task_cancels_its_request(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """So does the end of a timeout."""

    async def use() -> None:
        held = pool.call("Probe.hold_on_thread", gate.path, device=0)
        await asyncio.to_thread(gate.wait)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(pool.call("Probe.note_on_thread", "never", device=0)), 0.05)
        # Behind the cancellation on the same connection, so that has arrived.
        assert await pool.call("Probe.echo", 1, device=0) == 1
        gate.open()
        await held
        assert await pool.call("Probe.note_on_thread", "after", device=0) == "after"

    with notes.gate("task") as gate:
        asyncio.run(use())
    assert notes.runs() == ["after"]


@pytest.mark.parametrize("thread", ["", "_on_thread"])
@pytest.mark.parametrize("wait", [blocking, awaiting])
def test_what_has_expired_before_it_starts_never_runs(
    pool: atomr_mp.Pool, notes: Ledger, wait: Wait, thread: str
) -> None:
    """The caller gets its error at the deadline, however busy the worker is."""
    with notes.gate(f"expire{thread}-{wait.__name__}") as gate:
        held = pool.call("Probe.hold" + thread, gate.path, device=0)
        gate.wait()
        started = time.monotonic()
        expired = pool.call("Probe.note" + thread, "expired", device=0, deadline_s=0.1)
        lasting = pool.call("Probe.note" + thread, "lasting", device=0)
        with pytest.raises(errors.DeadlineExceeded, match=r"Probe\.note"):
            wait(expired)
        assert time.monotonic() - started >= 0.1
        gate.open()
        assert lasting.result() == "lasting"
        assert held.result() == 1
        assert isinstance(expired.exception(), errors.DeadlineExceeded)
    assert notes.runs() == ["lasting"]


@pytest.mark.parametrize("wait", [blocking, awaiting])
def test_a_deadline_holds_for_what_runs(pool: atomr_mp.Pool, notes: Ledger, wait: Wait) -> None:
    """It may have been executed; its late answer is dropped and does no harm."""
    with notes.gate(f"running-{wait.__name__}") as gate:
        held = pool.call("Probe.hold", gate.path, device=0)
        gate.wait()
        hurry(held)
        with pytest.raises(errors.DeadlineExceeded) as caught:
            wait(held)
        assert caught.value.maybe_executed
        gate.open()
        assert pool.call("Probe.echo", 1, device=0).result() == 1
        assert isinstance(held.exception(), errors.DeadlineExceeded)


def test_an_answer_that_came_in_time_counts_though_nobody_looked(pool: atomr_mp.Pool) -> None:
    """The request's deadline counts, not the time at which a caller looks."""
    pool.call("Probe.echo", 4, device=0).result()  # what can be read from now on is no part of the login
    reply = pool.call("Probe.echo", 5, device=0)
    connection = local_client(pool)._blocking._links[0].connection
    assert connection is not None
    assert readable([connection], DEADLINE_S), "no answer has come"
    hurry(reply)
    assert settled(lambda: time.monotonic_ns() > reply.deadline_ns)
    assert not reply.is_over
    assert reply.result() == 5


def test_a_timeout_of_the_caller_leaves_the_request_alone(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """One may wait again."""
    with notes.gate("timeout") as gate:
        held = pool.call("Probe.hold", gate.path, device=0)
        gate.wait()
        with pytest.raises(TimeoutError, match="goes on"):
            held.result(0.05)
        with pytest.raises(TimeoutError):
            held.exception(0)
        gate.open()
        assert held.result() == 1


def test_a_callback_comes_at_its_own_deadline(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Even if the background thread waits for others with later deadlines already."""
    late, early = threading.Event(), threading.Event()
    with notes.gate("callbacks") as gate:
        held = pool.call("Probe.hold", gate.path, device=0, deadline_s=60)
        held.add_done_callback(lambda _: late.set())
        gate.wait()
        pool.call("Probe.echo", 1, device=0, deadline_s=0.1).add_done_callback(lambda _: early.set())
        assert early.wait(DEADLINE_S)
        assert not late.is_set()
        gate.open()
        assert late.wait(DEADLINE_S)


def test_methods_on_a_thread_do_not_hold_up_the_loop(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Only the actor's other methods on that thread wait."""
    with notes.gate("probe") as gate, notes.gate("bystander") as other:
        held = pool.call("Probe.hold_on_thread", gate.path, device=0)
        beside = pool.call("Bystander.hold", other.path, device=0)
        gate.wait()
        other.wait()
        queued = pool.call("Probe.note_on_thread", "queued", device=0)
        assert [pool.call("Probe.echo", n, device=0).result() for n in range(20)] == list(range(20))
        assert not queued.done
        other.open()
        assert beside.result() == pool.devices[0].pid
        gate.open()
        assert [held.result(), queued.result()] == [1, "queued"]


# --- pools of their own ----------------------------------------------------------------------------------------------


def test_a_full_window_is_overloaded_at_once(ledger: Ledger) -> None:
    """However busy the worker is; answers make room again, and other clients and devices have their own."""
    with (
        ledger.start(gpus=2, window_requests=4) as pool,
        atomr_mp.connect(run_dir=pool.run_dir) as other,
        ledger.gate("gate") as gate,
    ):
        other.wait_ready()
        held = pool.call("Probe.hold", gate.path, device=0)
        gate.wait()
        queued = [pool.call("Probe.note", f"{n}", device=0) for n in range(3)]
        with pytest.raises(errors.Overloaded) as caught:
            pool.call("Probe.note", "too many", device=0)
        assert (caught.value.device, caught.value.window, caught.value.maybe_executed) == (0, 4, False)
        assert pool.call("Probe.echo", 1).result() == 1
        theirs = other.call("Probe.note", "theirs", device=0)
        gate.open()
        assert held.result() == 1
        assert theirs.result() == "theirs"
        assert [reply.result() for reply in queued] == ["0", "1", "2"]
        again = [pool.call("Probe.note", f"again-{n}", device=0) for n in range(3)]
        assert [reply.result() for reply in again] == ["again-0", "again-1", "again-2"]
    assert sorted(ledger.runs()) == ["0", "1", "2", "again-0", "again-1", "again-2", "theirs"]


def test_the_window_counts_bytes_too(ledger: Ledger) -> None:
    """A single request larger than all of it is let through when nothing else is under way."""
    with ledger.start(PROBE, KEEPER, window_bytes=100_000) as pool, ledger.gate("gate") as gate:
        assert pool.call("Keeper.double", np.zeros(15_000)).result().shape == (15_000,)
        held = pool.call("Probe.hold", gate.path)
        gate.wait()
        with pytest.raises(errors.Overloaded):
            pool.call("Keeper.double", np.zeros(15_000))
        fits = pool.call("Keeper.double", np.zeros(5_000))
        gate.open()
        assert held.result() == 1
        assert fits.result().shape == (5_000,)


@pytest.mark.parametrize("wait", [blocking, awaiting])
def test_a_deadline_holds_for_what_waits_for_a_worker(ledger: Ledger, wait: Wait) -> None:
    """It was never sent, so it certainly did not run."""
    with ledger.start(backoff_initial_s=30.0, faults=[]) as pool:
        testing.inject(pool, at="setup", fault=testing.Exit())
        pool.call("Probe.fail", "exit").exception()
        wait_state(pool, DeviceState.REBUILDING)
        reply = pool.call("Probe.note", "never", deadline_s=0.1)
        with pytest.raises(errors.DeadlineExceeded, match="was not sent") as caught:
            wait(reply)
        assert not caught.value.maybe_executed
    assert ledger.runs() == []


def test_requests_of_a_loop_are_told_of_a_death(ledger: Ledger) -> None:
    """Calls that had started, were queued, or were made in the turn in which the device stopped for good."""

    async def use() -> None:
        held = pool.call("Probe.hold", gate.path)
        await asyncio.to_thread(gate.wait)
        queued = [pool.call("Probe.note", f"{n}") for n in range(5)]
        await asyncio.sleep(0)  # one turn of the loop, no duration: they are sent at its end
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        found = await asyncio.gather(held, *queued, return_exceptions=True)
        assert [type(error) for error in found] == [errors.WorkerLost] * 6
        assert [error.maybe_executed for error in found if isinstance(error, errors.WorkerLost)] == [True] + [False] * 5
        assert await pool.call("Probe.where") == [pool.devices[0].pid, 0, 2]
        first = pool.call("Probe.hold", gate.path)
        unsent = pool.call("Probe.echo", 2)
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_state(pool, DeviceState.STOPPED)
        for reply, error in ((first, errors.WorkerLost), (unsent, errors.DeviceUnavailable)):
            with pytest.raises(error):
                await reply

    with ledger.start(max_restarts=1, give_up=True) as pool, ledger.gate("gate") as gate:
        asyncio.run(use())


def test_closing_ends_what_is_under_way(ledger: Ledger) -> None:
    """Of a client that has only joined, at once; it may be closed twice, from a thread or a loop."""
    with ledger.start() as pool, ledger.gate("gate") as gate:
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            other.wait_ready()
            held = other.call("Probe.hold_on_thread", gate.path)
            gate.wait()
        other.close()
        error = held.exception()
        assert isinstance(error, errors.PoolLost)
        assert error.maybe_executed
        with pytest.raises(errors.PoolLost, match="closed"):
            other.call("Probe.where")
        gate.open()

        async def use() -> None:
            with atomr_mp.connect(run_dir=pool.run_dir) as third:
                assert (await third.call("Probe.where"))[2] == 1
                waiting = asyncio.ensure_future(_await(third.call("Probe.hold_on_thread", gate.path)))
                await asyncio.to_thread(gate.wait)
            with pytest.raises(errors.PoolLost):
                await waiting
            gate.open()

        asyncio.run(use())
        assert pool.call("Probe.note_on_thread", "still here").result() == "still here"


@pytest.mark.parametrize("part", ["_closer", "_blocking", "memory", "courier", "a loop"])
def test_the_session_ends_whatever_fails_meanwhile(pool: atomr_mp.Pool, part: str) -> None:
    """A part that cannot be closed keeps no other open, since a second close does nothing."""
    before = pool.status().sessions
    joined = atomr_mp.connect(run_dir=pool.run_dir)
    joined.device(0).put(np.ones(3))
    client, loop = local_client(joined), asyncio.new_event_loop()

    async def call() -> Any:
        return await joined.call("Probe.echo", 3)

    assert loop.run_until_complete(call()) == 3
    broken: Any = client._loops[loop] if part == "a loop" else getattr(client, part)
    close = broken.close

    def fail() -> None:
        close()
        raise ZeroDivisionError(part)

    broken.close = fail
    with pytest.raises(ZeroDivisionError):
        joined.close()
    assert settled(lambda: pool.status().sessions == before)
    joined.close()
    loop.close()


def test_what_a_loop_is_told_while_it_does_not_run_is_bounded(ledger: Ledger) -> None:
    """When it runs again, it hears only the events that still count."""
    with ledger.start() as pool, ledger.gate("gate") as gate:
        loop = asyncio.new_event_loop()

        async def call() -> atomr_mp.Reply:
            return pool.call("Probe.hold", gate.path, device=0)

        held = loop.run_until_complete(call())
        gate.wait()
        lane = local_client(pool)._loops[loop]
        assert isinstance(lane, EventLoopLane)
        events: list[Any] = []
        pool.on_event(events.append)
        for generation in range(2, 5):
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, generation)
        wait_until(pool, lambda: sum(isinstance(event, IncarnationEnded) for event in events) == 3)
        past = [
            event
            for event in events
            if (event.device.generation if isinstance(event, DeviceChanged) else event.generation) in {2, 3}
        ]
        for event in past * 100:  # as if that many had come and gone
            lane.take(event)
        lane.take(DeviceChanged(pool.devices[0]))
        assert len(lane._told) <= MOST_TOLD

        async def use() -> Any:
            with pytest.raises(errors.WorkerLost) as lost:
                await held
            assert lost.value.generation == 1
            return await pool.call("Probe.where", device=0)

        try:
            assert loop.run_until_complete(use())[2] == 4
        finally:
            loop.close()


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_loop_that_comes_after_the_end_is_told_of_it(ledger: Ledger, end: str) -> None:
    """At once, like threads: it does not wait for a deadline."""

    async def use(other: atomr_mp.Pool) -> None:
        other.call("Probe.where")

    with ledger.start() as pool:
        other = atomr_mp.connect(run_dir=pool.run_dir)
        other.wait_ready()
        if end == "closed":
            other.close()
        else:
            os.kill(pool.supervisor_pid, signal.SIGKILL)
            with pytest.raises(errors.PoolLost):
                other._client.wait_until(lambda: False, DEADLINE_S)
        for _ in range(2):
            with pytest.raises(errors.PoolLost):
                asyncio.run(use(other))
        other.close()
    if end == "killed":
        ledger.start().close()  # the next start removes what a killed supervisor has left


def test_a_pool_is_closed_also_where_no_descriptor_is_left(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """An orderly end needs a descriptor; the end of its application's session ends it too."""

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    pool = ledger.start()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", refuse)
        pool.close()
    assert not ledger.processes()


def test_threads_that_wait_are_woken_by_a_close(ledger: Ledger) -> None:
    """None of them waits for its deadline."""
    with ledger.start() as pool, ledger.gate("gate") as gate:
        other = atomr_mp.connect(run_dir=pool.run_dir)
        other.wait_ready()
        held = [other.call("Probe.hold_on_thread", gate.path) for _ in range(4)]
        found: list[errors.AtomrError | None] = []
        threads = [threading.Thread(target=lambda reply=reply: found.append(reply.exception())) for reply in held]
        for thread in threads:
            thread.start()
        gate.wait()
        other.close()
        for thread in threads:
            thread.join(10)
        assert [type(error) for error in found] == [errors.PoolLost] * 4
        gate.open()


def test_a_thread_that_is_to_lead_and_need_not_lets_another(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was woken to receive for all, but another thread had already found its answer."""
    with ledger.start(gpus=2) as pool, ledger.gate("gate") as gate, ledger.gate("never") as never:
        first = pool.call("Probe.hold_on_thread", gate.path, device=1)
        second = pool.call("Probe.hold_on_thread", never.path, device=0)
        third = pool.call("Probe.hold_on_thread", gate.path, device=1)
        gate.wait()
        never.wait()
        lane, pid = local_client(pool)._blocking, pool.devices[0].pid
        follow = lane._follow

        def slowly(reply: atomr_mp.Reply, timeout_s: float) -> bool:
            woken = follow(reply, timeout_s)
            assert reply is not second or settled(lambda: second.done)
            return woken

        def are_waiting(followers: int) -> bool:
            return lane._outcomes.leading is first and len(lane._followers) == followers

        monkeypatch.setattr(lane, "_follow", slowly)
        threads = [threading.Thread(target=reply.exception) for reply in (first, second, third)]
        for number, thread in enumerate(threads):
            thread.start()
            assert settled(functools.partial(are_waiting, number))
        gate.open()
        threads[0].join()
        os.kill(pid, signal.SIGKILL)
        assert pool._client.wait_until(lambda: second.done, DEADLINE_S)
        threads[1].join()
        gate.open()
        threads[2].join(DEADLINE_S / 3)
        assert third.done, "nobody has received"


def test_a_thread_that_is_interrupted_is_not_to_lead(ledger: Ledger) -> None:
    """A thread that no longer waits must not be woken to receive for all."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    with ledger.start() as pool, ledger.gate("gate") as gate:
        first, second, third = (pool.call("Probe.hold_on_thread", gate.path) for _ in range(3))
        lane = local_client(pool)._blocking

        def use() -> None:
            assert settled(lambda: len(lane._followers) == 1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        leading, interrupting, following = (
            threading.Thread(target=target) for target in (first.exception, use, third.exception)
        )
        leading.start()
        assert settled(lambda: lane._outcomes.leading is first)
        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            interrupting.start()
            with pytest.raises(KeyboardInterrupt):
                second.result()
        finally:
            signal.signal(signal.SIGUSR1, before)
        interrupting.join()
        following.start()
        assert settled(lambda: third in lane._followers.values())
        gate.open(3)
        leading.join()
        following.join(DEADLINE_S / 3)
        assert third.done, "nobody has received"


def test_who_waits_for_the_supervisor_is_woken_by_a_close(ledger: Ledger) -> None:
    """Even while a view is open, so that the supervisor does not end the session."""
    with ledger.start() as pool, atomr_mp.connect(run_dir=pool.run_dir) as other:
        other.wait_ready()
        view = other.device().put(np.arange(3.0)).view()
        client, found = local_client(other), []

        def wait() -> None:
            with pytest.raises(errors.PoolLost, match="closed"):
                client.wait_until(lambda: False, 2 * DEADLINE_S)
            found.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        assert settled(lambda: bool(client._session._waiting))
        other.close()
        thread.join(DEADLINE_S / 3)
        assert found, "it waits still"
        assert view.sum() == 3
        del view


async def _await(reply: atomr_mp.Reply) -> Any:
    return await reply


async def _echoed(started: atomr_mp.Pool) -> object:
    return await started.call("Probe.echo", 1)
