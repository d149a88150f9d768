"""Workers that hang are found, killed and replaced; those that only seem to are left alone."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import psutil
import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.events import read_events
from atomr_mp.testing import Hang, HangInKernel
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, wait_generation, wait_until

HANGING: Final = f"{ACTORS}/hanging.py:Hanging"
UNLIMITED: Final = f"{ACTORS}/hanging.py:Unlimited"
PAIRED: Final = f"{ACTORS}/paired.py:Paired"
SLOW: Final = f"{ACTORS}/hanging.py:SlowToSetUp"
WAYS: Final = {
    "spin": ("python", "spin"),
    "wait_for_nobody": ("python", "wait_for_nobody"),
    "lock_in_c": ("native", "lock_in_c"),
    "spin_on_thread": ("python", "spin"),
    "wait_in_batch": ("python", "wait_for_nobody"),
}
"""Where each is found, and the function of the test's own in its stack."""


def events(pool: atomr_mp.Pool, kind: str) -> list[dict[str, Any]]:
    """Return what the event log has of a kind."""
    return [event for event in read_events(pool.run_dir / "events.jsonl") if event["event"] == kind]


# With a standby the supervisor goes on otherwise, which knows of no way.
@pytest.mark.parametrize(("way", "standby"), list(zip(WAYS, itertools.cycle(("none", "hot")), strict=False)))
def test_what_hangs_is_told_so_and_the_device_comes_back(ledger: Ledger, way: str, standby: str) -> None:
    """The stack names the function; requests queued behind it did not run; the next incarnation answers."""
    where, function = WAYS[way]
    with ledger.start(HANGING, standby=standby) as pool, ledger.gate("gate") as gate:
        before = pool.devices[0]
        if standby == "hot":
            wait_until(pool, lambda: pool._client.devices[0].standby is not None)
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            # Both are let in: what a client cannot send before it is goes to the next incarnation.
            assert other.call("Hanging.where").result() == [before.pid, before.generation]
            assert pool.call("Hanging.where").result() == [before.pid, before.generation]
            hung = pool.call(f"Hanging.{way}", gate.path, deadline_s=600)
            assert gate.wait() == [before.pid]
            queued = "Hanging.spin_on_thread" if way == "spin_on_thread" else "Hanging.note"
            with _suspended(pool.supervisor_pid):  # until they are sent it is not to find anything out
                waiting = [client.call(queued, "never", deadline_s=600) for client in (pool, other)]
                assert settled(lambda: all(reply.generation for reply in waiting))
            error = hung.exception()
            assert type(error) is errors.WorkerHung
            assert (error.device, error.generation, error.where) == (0, before.generation, where)
            assert error.maybe_executed
            assert error.was_running
            assert f"in {function}\n" in error.stack
            assert "hanging.py" in error.message
            assert f": a request of Hanging.{way} had been running for " in error.message
            for reply in waiting:
                beside = reply.exception()
                assert type(beside) is errors.WorkerHung
                assert not beside.maybe_executed
                assert not beside.was_running
            after = wait_generation(pool, before.generation + 1)
            assert pool.call("Hanging.where").result() == [after.pid, after.generation]
            assert after.restarts == before.restarts + 1
        assert ledger.runs() == []
        (told,) = events(pool, "hung")
        assert told["where"] == where
        assert told["pid"] == before.pid
        assert f"in {function}\n" in told["stacks"]
        assert f"in {function}\n" in (pool.run_dir / "device-0.log").read_text()
        assert told["code"] == "worker_hung"
        assert told["method"] == f"Hanging.{way}"
        assert told["client"] in told["text"]
        assert f"(pid {os.getpid()})" in told["client"]
        assert not events(pool, "fault")
        assert settled(lambda: bool(events(pool, "end")))  # of one that a standby has replaced, it comes later
        (ended,) = events(pool, "end")
        assert re.search(r"ended: did not answer for \d+\.\d s and was ended by its supervisor, ", ended["text"])
        assert "SIGKILL" not in ended["text"]


@pytest.mark.parametrize(
    ("fault", "where"), [(HangInKernel(), "cuda"), (Hang(), "python"), (Hang(gil=True), "native")], ids=repr
)
def test_what_the_device_has_not_done_is_told_from_other_c_code(
    ledger: Ledger, fault: testing.Fault, where: str
) -> None:
    """A call that waits for the device has no CUDA frames around it: the worker reports the unfinished work."""
    with (
        ledger.start(HANGING, faults=[]) as pool,
        testing.inject(pool, at="enqueue", fault=fault, of="Hanging.note") as injected,
    ):
        hung = pool.call("Hanging.note", "x", deadline_s=600)
        injected.wait()
        error = hung.exception()
        assert type(error) is errors.WorkerHung
        assert error.where == where


def test_a_request_of_a_library_that_hangs_is_named(ledger: Ledger) -> None:
    """Also to those who have not called it."""
    with (
        ledger.start(hang_timeout_s=1.0, faults=[]) as pool,
        testing.inject(pool, at="enqueue", fault=Hang(gil=True), of="elementwise.negative") as injected,
        atomr_mp.connect(run_dir=pool.run_dir) as other,
    ):
        x = pool.device(0).zeros((2,))
        pool.device(0).elementwise.add(x, x).result()
        assert other.call("Probe.note", "before").result() == "before"  # it is let in, and calls this incarnation
        hung = pool.device(0).elementwise.negative(x, deadline_s=0.1)
        injected.wait()
        beside = other.call("Probe.note", "x").exception()
        assert isinstance(hung.exception(), errors.DeadlineExceeded | errors.WorkerHung)
        assert type(beside) is errors.WorkerHung
        assert ": a request of elementwise.negative had been running for " in beside.message
        (told,) = events(pool, "hung")
        assert told["method"] == "elementwise.negative"


def test_answers_that_came_before_the_verdict_stand(ledger: Ledger) -> None:
    """Only the hung request, and requests that had not started, fail."""
    with ledger.start(HANGING) as pool, ledger.gate("gate") as gate:
        done = [pool.call("Hanging.note", f"{number}") for number in range(20)]
        hung = pool.call("Hanging.wait_for_nobody", gate.path, deadline_s=600)
        gate.wait()
        assert type(hung.exception()) is errors.WorkerHung
        assert [reply.result() for reply in done] == [f"{number}" for number in range(20)]


def test_one_of_an_actor_s_threads_may_hang_while_the_other_goes_on(ledger: Ledger) -> None:
    """Ends on the other thread are no progress of this one."""
    with ledger.start(PAIRED) as pool:
        hung, counted = pool.call("Paired.hang", deadline_s=600), 0
        while not hung.done:
            counted += pool.call("Paired.count").exception() is None
        assert type(hung.exception()) is errors.WorkerHung
        assert counted > 1


def test_what_was_given_to_a_thread_to_do_next_is_not_hung(ledger: Ledger) -> None:
    """Both threads run requests that may take longer than the next one."""
    with ledger.start(PAIRED) as pool, ledger.gate("one") as one, ledger.gate("other") as other:
        held = [pool.call("Paired.hold", gate.path) for gate in (one, other)]
        one.wait()
        other.wait()
        behind = [pool.call("Paired.meet_in_batch", number) for number in range(4)]
        time.sleep(3.5)  # three times their limit: nothing is to happen in that time
        for gate in (one, other):
            gate.open()
        assert [reply.result() for reply in held] == [None, None]
        assert [reply.result() for reply in behind] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_without_a_limit_it_is_the_deadline_that_counts(ledger: Ledger) -> None:
    """A request with a waiting caller may take its time; one without has the pool's limit."""
    with (
        ledger.start(UNLIMITED, hang_timeout_s=0.5) as pool,
        ledger.gate("long") as long,
        ledger.gate("hung") as hung,
    ):
        patient = pool.call("Unlimited.hold", long.path, deadline_s=600)
        (pid,) = long.wait()
        assert settled(lambda: _running_for_s(pool) > 3)
        long.open()
        assert patient.result() == pid
        reply = pool.call("Unlimited.wait_for_nobody", hung.path, deadline_s=3)  # within which it has to begin
        hung.wait()
        assert type(reply.exception()) is errors.DeadlineExceeded
        wait_generation(pool, 2)
        assert "beyond its deadline" in events(pool, "hung")[0]["text"]


def test_a_supervisor_that_was_stopped_gives_time_again(ledger: Ledger) -> None:
    """It has not seen whether requests made progress."""
    with ledger.start(HANGING) as pool, ledger.gate("gate") as gate:
        reply = pool.call("Hanging.hold_for_a_while", gate.path, deadline_s=600)
        gate.wait()
        assert settled(lambda: _running_for_s(pool) > 2.5)  # it has looked, and its time has begun
        with _suspended(pool.supervisor_pid):
            time.sleep(7)  # longer than the request may take: that this time does not count is what is tested
        for _ in range(2):
            _running_for_s(pool)  # it has looked
        gate.open()
        assert reply.result() == pool.devices[0].pid
        assert pool.devices[0].generation == 1
        assert events(pool, "hung") == []


def test_a_worker_that_was_stopped_is_not_hung(ledger: Ledger) -> None:
    """A debugger may stop it, for one."""
    with ledger.start(HANGING) as pool, ledger.gate("gate") as gate:
        reply = pool.call("Hanging.hold_for_a_while", gate.path, deadline_s=600)
        (pid,) = gate.wait()
        os.kill(pid, signal.SIGSTOP)
        assert settled(lambda: _running_for_s(pool) > 8)
        os.kill(pid, signal.SIGCONT)
        gate.open()
        assert reply.result() == pid
        assert events(pool, "hung") == []


def test_set_up_may_take_longer_than_a_request(ledger: Ledger) -> None:
    """It has a time of its own, `start_timeout_s`."""
    with ledger.start(SLOW) as pool:
        assert pool.call("SlowToSetUp.where").result() == pool.devices[0].pid
        assert pool.devices[0].generation == 1


def test_a_worker_that_gets_no_processor_is_not_hung(ledger: Ledger) -> None:
    """Its own processor time counts, not that of others."""
    with ledger.start(HANGING) as pool:
        pid = pool.devices[0].pid
        processor = min(os.sched_getaffinity(0))
        with _busy(12, processor):
            for thread in psutil.Process(pid).threads():
                os.sched_setaffinity(thread.id, {processor})
            took_s = pool.call("Hanging.compute", 0.4, deadline_s=600).result(timeout_s=120)
        assert took_s > 3, "the others did not keep it from running"
        assert pool.devices[0].pid == pid
        assert events(pool, "hung") == []


@contextmanager
def _suspended(pid: int) -> Iterator[None]:
    """Keep a process stopped."""
    process = psutil.Process(pid)
    process.suspend()
    try:
        assert settled(lambda: process.status() == psutil.STATUS_STOPPED)
        yield
    finally:
        process.resume()


@contextmanager
def _busy(count: int, processor: int) -> Iterator[None]:
    """Keep a processor busy."""
    with ExitStack() as stack:
        for _ in range(count):
            program = f"import os\nos.sched_setaffinity(0, {{{processor}}})\nprint(flush=True)\nwhile True: pass"
            # In sessions of their own, among which the kernel may divide the processor first (autogroups).
            popen = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
            )
            stack.callback(popen.kill)
            assert popen.stdout is not None
            popen.stdout.readline()
        yield


def _running_for_s(pool: atomr_mp.Pool) -> float:
    """Ask the supervisor for how long the oldest request runs."""
    with OperatorSession(pool.run_dir / "session.sock") as observer:
        return observer.status(DEADLINE_S).workers[0].running_for_s
