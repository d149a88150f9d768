"""A worker's death under many requests, too many deaths, and workers that never come to life."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.messages.devices import Circuit, DeviceState
from atomr_mp.testing import Exit, Fail, Hang, Kill
from tests.contract.command.test_cli import cli
from tests.support import (
    ACTORS,
    BACKEND,
    DEADLINE_S,
    PROBE,
    PROMISE_S,
    Delays,
    Events,
    Ledger,
    settled,
    standby_of,
    wait_generation,
    wait_state,
)

STANDING: Final = f"{ACTORS}/standing.py:Standing"
NEVER_MIND: Final[dict[str, Any]] = {"max_restarts": 1000, "backoff_initial_s": 0.0}


def test_answers_that_were_sent_before_the_death_stand(ledger: Ledger) -> None:
    """Whoever has been answered but has not looked yet still finds all results."""
    with (
        ledger.start(**NEVER_MIND) as pool,
        atomr_mp.connect(run_dir=pool.run_dir) as other,
        atomr_mp.connect(run_dir=pool.run_dir) as third,
        ledger.gate("gate") as gate,
    ):
        clients = [pool, other, third]
        for client in clients:
            wait_generation(client, 1)
        answered = [client.call("Probe.note", f"{n}") for n in range(100) for client in clients]
        for client in clients:
            # These are read behind the others, and answered in a later message, so the others' have left.
            assert client.call("Probe.echo", 1).result() == 1
            assert client.call("Probe.echo", 2).result() == 2
        held = pool.call("Probe.hold", gate.path)
        assert gate.wait() == [pool.devices[0].pid]
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        assert [reply.result() for reply in answered] == [f"{n}" for n in range(100) for _ in clients]
        assert type(held.exception()) is errors.WorkerLost


@pytest.mark.parametrize("how", ["exit", "segv", "kill"])
def test_each_request_of_each_client_has_exactly_one_outcome(ledger: Ledger, how: str) -> None:
    """An answered request has run; what ran and was not answered says so; what certainly did not run has not."""
    with ledger.start(**NEVER_MIND) as pool, ExitStack() as stack:
        clients = [pool, *(stack.enter_context(atomr_mp.connect(run_dir=pool.run_dir)) for _ in range(3))]
        for client in clients:
            wait_generation(client, 1)
        outcomes: Counter[str] = Counter()
        replies: dict[str, atomr_mp.Reply] = {}
        together = threading.Barrier(len(clients))
        called = threading.Barrier(len(clients))

        def use(number: int, client: atomr_mp.Pool) -> None:
            together.wait()
            for n in range(100):
                if number == 0 and n == 40:
                    client.call("Probe.fail", how)
                tag = f"{number}-{n}"
                reply = replies[tag] = client.call("Probe.note", tag)
                reply.add_done_callback(lambda _, tag=tag: outcomes.update([tag]))  # type: ignore[misc]
            called.wait()
            for n in range(100):
                replies[f"{number}-{n}"].exception()

        threads = [threading.Thread(target=use, args=each) for each in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert settled(lambda: len(outcomes) == len(replies))
        ran = Counter(ledger.runs())
        assert set(outcomes.values()) == {1}
        assert set(ran.values()) == {1}
        for tag, reply in replies.items():
            error = reply.exception()
            if error is None:
                assert reply.result() == tag
                assert ran[tag] == 1
            else:
                assert type(error) is errors.WorkerLost
                assert error.maybe_executed or not ran[tag], tag
        # What the dead worker was sent stays with it; only what waited for the next one goes there.
        lost = [reply for reply in replies.values() if reply.exception() is not None]
        assert {reply.generation for reply in lost} <= {1}
        assert pool.call("Probe.where").result()[2] == 2


def test_the_fourth_unplanned_end_opens_the_circuit(ledger: Ledger) -> None:
    """Then calls are refused at once with the reason, elsewhere all goes on, and an operator closes it again."""
    with ledger.start(gpus=2, backoff_initial_s=30.0) as pool, ledger.gate("elsewhere") as gate:
        elsewhere = pool.call("Bystander.hold", gate.path, device=1)
        gate.wait()
        before = pool.devices[1]
        for generation in range(1, 5):
            wait_generation(pool, generation)
            assert type(pool.call("Probe.fail", "exit", device=0).exception()) is errors.WorkerLost
        stopped = wait_state(pool, DeviceState.TRIPPED)
        assert (stopped.generation, stopped.restarts, stopped.circuit) == (4, 4, Circuit.OPEN)
        assert "4 unplanned ends within 60 s" in stopped.reason
        assert "exited with status 7" in stopped.reason
        started, delays = time.monotonic(), Delays()
        with pytest.raises(errors.DeviceUnavailable, match="4 unplanned ends") as caught:
            pool.call("Probe.where", device=0)
        assert time.monotonic() - started - delays.so_far_s() < 0.5
        assert (caught.value.device, caught.value.maybe_executed) == (0, False)
        assert 0 < caught.value.retry_after_s <= 30
        assert "call again in" in str(caught.value)
        shown = json.loads(cli("status", "--json", "--run-dir", pool.run_dir).stdout)["devices"][0]
        assert (shown["state"], shown["circuit"], 0 < shown["retry_after_s"] <= 30) == ("tripped", "open", True)
        assert "is tripped: 4 unplanned ends" in cli("ready", "--run-dir", pool.run_dir).stderr
        assert "its circuit is open, a start in" in cli("status", "--run-dir", pool.run_dir).stdout
        assert {pool.call("Probe.where").result()[1] for _ in range(10)} == {1}
        pool.restart(0)
        wait_generation(pool, 5)
        assert pool.call("Probe.where", device=0).result()[1:] == [0, 5]
        assert pool.devices[0].circuit is Circuit.CLOSED
        # The history is forgotten: three more are allowed.
        assert type(pool.call("Probe.fail", "exit", device=0).exception()) is errors.WorkerLost
        assert pool.call("Probe.where", device=0).result()[1:] == [0, 6]
        gate.open()
        assert elsewhere.result() == before.pid
        assert pool.devices[1] == before


def test_an_open_circuit_half_opens_and_closes_when_a_worker_has_served(ledger: Ledger) -> None:
    """No request need come: one process is tried; it opens the circuit again by ending, and closes it by serving."""

    def standby() -> tuple[str, str]:
        return pool.status().devices[0].circuit, standby_of(pool).state

    with ledger.start(standby="hot", max_restarts=0, within_s=2.0, backoff_initial_s=0.1) as pool:
        tripped, seen = pool.devices[0], Events(pool)
        for ends in (1, 2):  # a standby that had to leave has had a generation, too
            os.kill(wait_generation(pool, tripped.generation + ends - 1).pid, signal.SIGKILL)
            tripped = seen.wait(lambda it, ends=ends: it.state is DeviceState.TRIPPED and it.restarts == ends)  # type: ignore[misc]
            assert (tripped.circuit, tripped.retry_at > 0) == (Circuit.OPEN, True)
        assert "1 try after too many unplanned ends" in tripped.reason
        tried = seen.wait(lambda it: it.admitted and it.generation > tripped.generation)
        assert (tried.circuit, tried.retry_at) == (Circuit.HALF_OPEN, 0)
        assert pool.call("Probe.where").result()[2] == tried.generation
        assert standby() in {(Circuit.HALF_OPEN, "none"), (Circuit.CLOSED, "starting"), (Circuit.CLOSED, "ready")}
        assert pool._client.wait_until(lambda: pool.devices[0].circuit is Circuit.CLOSED, DEADLINE_S)
        assert pool.devices[0].generation == tried.generation
        assert settled(lambda: standby() == (Circuit.CLOSED, "ready"))
        told = [event["event"] for event in read_events(pool.run_dir / "events.jsonl")]
        assert (told.count("circuit_open"), told.count("circuit_closed")) == (2, 1)


def test_requests_that_wait_for_a_restart_fail_when_there_is_none(ledger: Ledger) -> None:
    """They were never sent, and fail with the reason; so does a client that connects afterwards."""
    with (
        ledger.start(PROBE, STANDING, max_restarts=2, backoff_initial_s=0.01, faults=[]) as pool,
        ledger.gate("slow") as slow,
    ):
        injected = testing.inject(pool, at="ready", fault=testing.Kill(signal.SIGSEGV), times=None)
        assert type(pool.call("Probe.fail", "kill").exception()) is errors.WorkerLost
        slow.wait()  # there the restarts wait while the requests are made
        held = [pool.call("Probe.note", "held") for _ in range(5)]
        slow.open(3)
        for reply in held:
            with pytest.raises(errors.DeviceUnavailable, match="3 unplanned ends") as caught:
                reply.result()
            assert not caught.value.maybe_executed
        with atomr_mp.connect(run_dir=pool.run_dir) as other, pytest.raises(errors.DeviceUnavailable):
            other.call("Probe.note", "held")
        injected.withdraw()
        pool.restart(0)
        wait_generation(pool, 4)
        assert pool.call("Probe.note", "after").result() == "after"
        assert ledger.runs() == ["after"]


@pytest.mark.parametrize(
    ("where", "fault", "error", "words"),
    [
        ("import", Fail(), errors.ActorLoadFailed, "InjectedError: on purpose"),
        ("import", Exit(7), errors.SetupFailed, "exited with status 7"),
        ("import", Kill(signal.SIGSEGV), errors.SetupFailed, "killed by SIGSEGV"),
        ("import", Hang(), errors.SetupFailed, "start_timeout_s"),
        ("setup", Fail(), errors.SetupFailed, "InjectedError: on purpose"),
        ("setup", Exit(7), errors.SetupFailed, "exited with status 7"),
        ("setup", Kill(), errors.SetupFailed, "killed by SIGKILL"),
        ("setup", Hang(gil=True), errors.SetupFailed, "start_timeout_s"),
        ("ready", Exit(7), errors.SetupFailed, "exited with status 7"),
    ],
)
def test_a_pool_that_cannot_start_says_why_and_leaves_nothing(
    ledger: Ledger, where: testing.Point, fault: testing.Fault, error: type[errors.AtomrError], words: str
) -> None:
    """The class of the error says whether it is the actor's code, and its text where the log is."""
    start_timeout_s = 1.0 if isinstance(fault, Hang) else 60.0
    always = [testing.At(where, fault, times=None)]
    with pytest.raises(error, match=words) as caught:
        ledger.start(gpus=2, max_restarts=1, backoff_initial_s=0.0, start_timeout_s=start_timeout_s, faults=always)
    assert type(caught.value) is error
    log = ledger.run_dir() / "device-0.log"
    assert str(ledger.run_dir() / "device-") in str(caught.value)
    assert "generation 1" in log.read_text()
    if (where, fault) == ("setup", Fail()):
        assert isinstance(caught.value, errors.SetupFailed)
        assert "InjectedError: on purpose" in caught.value.traceback_text


@pytest.mark.parametrize(
    ("actor", "error", "words"),
    [
        ("nonexistent.module:Actor", errors.ActorLoadFailed, "nonexistent"),
        (f"{ACTORS}/probe.py:Missing", errors.ActorLoadFailed, "Probe"),
        (f"{ACTORS}/probe.py:Bomb", errors.ActorLoadFailed, "not a subclass"),
        (f"{ACTORS}/paired.py:Threadless", errors.ActorLoadFailed, "threads is 0; it must be a number from 1 to 64"),
        (f"{ACTORS}/lacking.py:Lacking", errors.ActorLoadFailed, "install what has module_that_nobody_has"),
        (f"{ACTORS}/lacking.py:Narrow", errors.ActorLoadFailed, r"atomr-mp\[host\]"),
        (f"{ACTORS}/lacking.py:Untraced", errors.ConfigurationError, r"atomr-mp\[otel\]"),
        ("/nonexistent/file.py:Actor", errors.ConfigurationError, "does not exist"),
    ],
)
def test_an_actor_that_cannot_be_loaded_is_a_typed_error(
    ledger: Ledger, actor: str, error: type[errors.AtomrError], words: str
) -> None:
    """It is not tried again: that would not help."""
    with pytest.raises(error, match=words):
        ledger.start(actor)
    log = ledger.run_dir() / "device-0.log"
    assert not log.exists() or "generation 2" not in log.read_text()


def test_the_death_of_an_idle_worker_costs_nobody_anything(ledger: Ledger) -> None:
    """The next call waits for the next incarnation, and gets its answer."""
    with ledger.start(**NEVER_MIND) as pool:
        for generation in range(1, 4):
            answer = pool.call("Probe.where").result()
            assert answer == [answer[0], 0, generation]
            killed, delays = time.monotonic(), Delays(pool.supervisor_pid)
            os.kill(answer[0], signal.SIGKILL)
            after = wait_generation(pool, generation + 1)
            took_s = time.monotonic() - killed - delays.so_far_s(after.pid)
            assert BACKEND == "cuda" or took_s < PROMISE_S  # a cold start on a GPU takes seconds
