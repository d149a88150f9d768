"""Calls that wait for room in the window: in event loops by themselves, in threads on request."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.mapping.schedule import Failure
from atomr_mp.protocol.messages.devices import DeviceState
from tests.support import DEADLINE_S, Ledger, client_of, in_loop, settled, wait_state

WINDOW = 8


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool with a small window, for all tests that leave it as it was."""
    with Ledger() as ledger, ledger.start(gpus=2, window_requests=WINDOW) as pool:
        yield ledger, pool


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool."""
    with client_of(shared[1]) as own:
        yield own


# --- answers that are read late ------------------------------------------------------------------------------------


def test_answers_that_an_event_loop_reads_late_all_arrive(ledger: Ledger) -> None:
    """More of them than the window's bytes wait in the worker while the loop does something else; the session lives."""
    with ledger.start(window_bytes=2**20) as pool:

        async def use() -> list[int]:
            replies = [pool.call("Probe.long_text", str(n), 3_000_000, deadline_s=DEADLINE_S) for n in range(7)]
            await asyncio.sleep(0)  # they are sent now
            assert settled(lambda: len(ledger.runs()) == len(replies))
            return [len(await reply) for reply in replies]

        assert in_loop(use) == [3_000_000] * 7
        assert pool.call("Probe.echo", "well").result(DEADLINE_S) == "well"


# --- event loops -----------------------------------------------------------------------------------------------------


def test_a_thousand_gathered_calls_are_all_answered(pool: atomr_mp.Pool) -> None:
    """Whatever the window: none is refused, and each gets its own answer."""

    async def use() -> list[Any]:
        return await asyncio.gather(*(pool.call("Probe.echo", n) for n in range(1000)))

    assert in_loop(use) == list(range(1000))


def test_what_waits_is_sent_in_order_for_each_device(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Named devices and any: the calls of a device run as they were made, also those with room in bytes only."""

    async def use() -> None:
        replies = [pool.call("Probe.note", f"{n % 2}-{n}", device=n % 2) for n in range(200)]
        await asyncio.gather(*replies)

    in_loop(use)
    ran = notes.runs()
    assert len(ran) == 200
    for device in "01":
        assert [each for each in ran if each[0] == device] == [f"{device}-{n}" for n in range(int(device), 200, 2)]


def test_a_call_that_does_not_wait_is_refused_as_in_a_thread(pool: atomr_mp.Pool) -> None:
    """By an option that is no argument of the method; also while others wait, whom it must not overtake."""

    async def use() -> None:
        replies = [pool.call("Probe.echo", n, device=0) for n in range(WINDOW + 1)]
        with pytest.raises(errors.Overloaded) as caught:
            pool.call("Probe.echo", -1, device=0, wait=False)
        assert (caught.value.window, caught.value.maybe_executed) == (WINDOW, False)
        with pytest.raises(errors.Overloaded):
            pool.actor("Probe", device=0, wait=False).echo(-1)
        assert await asyncio.gather(*replies) == list(range(WINDOW + 1))
        assert await pool.call("Probe.echo", 1, device=0, wait=False) == 1

    in_loop(use)


def test_a_call_that_waits_can_be_cancelled_and_its_deadline_runs(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Neither was sent, and those behind them are."""

    async def use() -> None:
        with notes.gate("late") as gate:
            held = [pool.call("Probe.hold_on_thread", gate.path, device=0) for _ in range(WINDOW)]
            late = pool.call("Probe.note", "late", device=0, deadline_s=0.05)
            gone = pool.call("Probe.note", "gone", device=0)
            last = pool.call("Probe.note", "last", device=0)
            task = asyncio.ensure_future(gone)
            with pytest.raises(errors.DeadlineExceeded, match="filled its window") as caught:
                await late
            assert not caught.value.maybe_executed
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert isinstance(gone.exception(), errors.Cancelled)
            gate.open(WINDOW)
            assert await last == "last"
            await asyncio.gather(*held)

    in_loop(use)
    assert notes.runs() == ["last"]


def test_a_device_that_is_full_holds_up_no_other(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Calls for any device go where there is room."""

    async def use() -> None:
        with notes.gate("full") as gate:
            held = [pool.call("Probe.hold_on_thread", gate.path, device=0) for _ in range(2 * WINDOW)]
            found = await asyncio.gather(*(pool.call("Probe.where") for _ in range(10 * WINDOW)))
            assert {device for _, device, _ in found} == {1}
            gate.open(2 * WINDOW)
            await asyncio.gather(*held)

    in_loop(use)


def test_the_backlog_is_bounded_in_calls_and_in_bytes(shared: tuple[Ledger, atomr_mp.Pool]) -> None:
    """Beyond that a call is refused, and says by what."""

    async def use() -> None:
        replies = [own.call("Probe.echo", n, device=0) for n in range(WINDOW + 3)]
        with pytest.raises(errors.Overloaded, match="max_waiting") as caught:
            own.call("Probe.echo", -1, device=0)
        assert (caught.value.window, caught.value.maybe_executed) == (3, False)
        assert await asyncio.gather(*replies) == list(range(WINDOW + 3))

    with atomr_mp.connect(run_dir=shared[1].run_dir, max_waiting=3) as own:
        own.wait_ready()
        in_loop(use)
    with pytest.raises(errors.InvalidRequest, match="max_waiting"):
        atomr_mp.connect(run_dir=shared[1].run_dir, max_waiting=-1)


def test_large_arguments_wait_for_room_in_bytes(ledger: Ledger) -> None:
    """One that does not fit now is not overtaken by small ones behind it; too many bytes that wait are refused."""

    async def use() -> None:
        replies = [own.call("Probe.note", f"{n}" * (60_000 if n < 4 else 1)) for n in range(6)]
        with pytest.raises(errors.Overloaded, match="max_waiting"):
            own.call("Probe.note", "x" * 60_000)
        await asyncio.gather(*replies)

    with ledger.start(window_bytes=130_000) as own:
        in_loop(use)
    assert [each[0] for each in ledger.runs()] == ["0", "1", "2", "3", "4", "5"]


def test_what_waits_outlives_its_worker(ledger: Ledger) -> None:
    """It was never sent, so it runs on the next one, whatever its method says."""

    async def use() -> list[Any]:
        doomed = own.call("Probe.hold", gate.path)
        others = [own.call("Probe.note", f"{n}") for n in range(40)]
        (pid,) = await asyncio.to_thread(gate.wait)  # meanwhile the loop has sent what the window admits
        os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(doomed, *others, return_exceptions=True)

    with ledger.start(window_requests=4) as own, ledger.gate("gate") as gate:
        doomed, *others = in_loop(use)
        assert isinstance(doomed, errors.WorkerLost)
        assert all(isinstance(each, errors.WorkerLost) for each in others[:3])
        assert others[3:] == [f"{n}" for n in range(3, 40)]


def test_what_waits_for_a_device_that_takes_no_work_is_told_so(ledger: Ledger) -> None:
    """At once when the device stops, and the loop's other calls go on."""

    async def use() -> None:
        with ledger.gate("gate") as gate:
            held = [own.call("Probe.hold_on_thread", gate.path, device=0) for _ in range(4)]
            await asyncio.to_thread(gate.wait)
            waits = [own.call("Probe.note", f"{n}", device=0) for n in range(4)]
            testing.inject(own, at="setup", fault=testing.Exit(), times=10)
            os.kill(own.devices[0].pid, signal.SIGKILL)
            found = await asyncio.gather(*held, *waits, return_exceptions=True)
            assert all(isinstance(each, errors.WorkerLost) for each in found[:4])
            assert all(isinstance(each, errors.DeviceUnavailable) for each in found[4:]), found
            assert not any(getattr(each, "maybe_executed", True) for each in found[4:])
            assert await own.call("Probe.echo", 1) == 1

    with ledger.start(gpus=2, window_requests=4, max_restarts=0, faults=[]) as own:
        in_loop(use)
    assert ledger.runs() == []


def test_what_waits_when_the_session_ends_was_not_executed(shared: tuple[Ledger, atomr_mp.Pool], notes: Ledger) -> None:
    """It ends with the session, typed."""

    async def use() -> None:
        with notes.gate("lost") as gate:
            held = [own.call("Probe.hold_on_thread", gate.path, device=0) for _ in range(WINDOW)]
            replies = [own.call("Probe.note", f"{n}", device=0) for n in range(4)]
            await asyncio.to_thread(gate.wait)
            own.close()
            found = await asyncio.gather(*held, *replies, return_exceptions=True)
            gate.open(WINDOW)
        assert all(isinstance(each, errors.PoolLost) for each in found)
        assert not any(getattr(each, "maybe_executed", True) for each in found[WINDOW:])

    with atomr_mp.connect(run_dir=shared[1].run_dir) as own:
        own.wait_ready()
        in_loop(use)
    assert settled(lambda: all(worker.queue_depth == 0 for worker in shared[1].status().devices))
    assert notes.runs() == []


# --- threads ---------------------------------------------------------------------------------------------------------


def test_a_thread_waits_for_room_if_it_is_told_to(pool: atomr_mp.Pool) -> None:
    """So a loop over calls needs no counting; others are refused as before."""
    replies = [pool.call("Probe.echo", n, device=0, wait=True) for n in range(20 * WINDOW)]
    assert [reply.result() for reply in replies] == list(range(20 * WINDOW))


def test_threads_that_wait_for_room_are_all_let_in(pool: atomr_mp.Pool) -> None:
    """Many at a time, each with more calls than the window."""
    answered: list[int] = []

    def use(number: int) -> None:
        replies = [pool.call("Probe.echo", number, wait=True) for _ in range(50)]
        answered.extend(reply.result(DEADLINE_S) for reply in replies)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(answered) == sorted(list(range(8)) * 50)


def test_a_thread_waits_for_room_until_the_deadline(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Then it learns that nothing ran; a call that waits may be let in by another thread."""
    with notes.gate("room") as gate:
        held = [pool.call("Probe.hold_on_thread", gate.path, device=0) for _ in range(WINDOW)]
        started = time.monotonic()
        with pytest.raises(errors.DeadlineExceeded, match="filled its window") as caught:
            pool.call("Probe.note", "late", device=0, wait=True, deadline_s=0.1)
        assert not caught.value.maybe_executed
        assert time.monotonic() - started >= 0.1
        got: list[Any] = []
        thread = threading.Thread(
            target=lambda: got.append(pool.call("Probe.note", "in", device=0, wait=True).result())
        )
        thread.start()
        gate.open(WINDOW)
        thread.join(DEADLINE_S)
        assert got == ["in"]
        assert [reply.result() for reply in held] == [1] * WINDOW
    assert notes.runs() == ["in"]


# --- amap ------------------------------------------------------------------------------------------------------------


async def numbers(count: int) -> AsyncIterator[int]:
    """Yield numbers, giving way to others in between."""
    for n in range(count):
        await asyncio.sleep(0)
        yield n


@pytest.mark.parametrize("source", [range, numbers], ids=["iterable", "async iterable"])
def test_amap_yields_results_in_order(pool: atomr_mp.Pool, source: Callable[[int], Any]) -> None:
    """Of any iterable, on all devices."""

    async def use() -> list[Any]:
        return [each async for each in pool.amap("Probe.echo", source(500))]

    assert in_loop(use) == list(range(500))


def test_amap_yields_as_results_come_if_order_does_not_matter(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """One that is held up holds up no other; in order it does, and what waits behind it is bounded."""

    async def use() -> None:
        with notes.gate("ordered") as gate:
            held = pool.call("Probe.hold_on_thread", gate.path, device=0)
            await asyncio.to_thread(gate.wait)
            found = [each async for each in pool.amap("Probe.echo", numbers(100), ordered=False)]
            assert sorted(found) == list(range(100))
            gate.open()
            await held

    in_loop(use)


def test_amap_takes_items_as_there_is_room(pool: atomr_mp.Pool) -> None:
    """Also of an endless source; what is not read is not taken, and a loop that is left cancels the rest."""
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    async def use() -> None:
        results = pool.amap("Probe.echo", endless(), in_flight=4)
        async for each in results:
            if each == 10:
                break
        await results.aclose()  # type: ignore[attr-defined]
        assert taken <= 10 + 4 * 4 + 1

    in_loop(use)
    assert settled(lambda: all(worker.queue_depth == 0 for worker in pool.status().devices))


def test_amap_raises_in_the_place_of_an_item_that_fails(pool: atomr_mp.Pool) -> None:
    """Or yields its failure; items taken before a source fails come out first."""

    def failing() -> Iterator[Any]:
        yield 1
        raise RuntimeError("the source")

    async def use() -> None:
        wrong = pool.amap("Probe.note", ["a", 1, "b"])
        assert await anext(wrong) == "a"
        with pytest.raises(errors.InvalidRequest) as caught:
            await anext(wrong)
        assert "item 1" in caught.value.__notes__[0]
        found = [each async for each in pool.amap("Probe.note", ["a", 1, object(), "b"], return_failures=True)]
        assert (found[0], found[3]) == ("a", "b")
        assert [(each.index, each.attempts) for each in found if isinstance(each, Failure)] == [(1, 1), (2, 0)]
        results = pool.amap("Probe.echo", failing())
        assert await anext(results) == 1
        with pytest.raises(RuntimeError, match="the source"):
            await anext(results)

    in_loop(use)


def test_amap_refuses_what_makes_no_sense_when_it_is_called(pool: atomr_mp.Pool) -> None:
    """Before a loop runs."""
    with pytest.raises(errors.InvalidRequest, match="there is no request"):
        pool.amap("Probe.missing", [])
    with pytest.raises(errors.InvalidRequest, match="in_flight"):
        pool.amap("Probe.echo", [], in_flight=0)
    with pytest.raises(errors.InvalidRequest, match="priority"):
        pool.amap("Probe.echo", [], priority=99)


def test_amap_sends_again_what_a_worker_s_queue_has_no_room_for(ledger: Ledger) -> None:
    """A queue that others fill is no failure of an item."""

    async def use() -> list[Any]:
        return [each async for each in own.amap("Probe.note_on_thread", [f"{n}" for n in range(50)], in_flight=32)]

    with ledger.start(max_queue=2) as own:
        assert in_loop(use) == [f"{n}" for n in range(50)]
        assert own.devices[0].state is DeviceState.READY
        wait_state(own, DeviceState.READY)
