"""A process on standby takes over: by whichever end of the active one, under load, at once, and only then."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol import token
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.messages.devices import DeviceState, StandbyInfo
from atomr_mp.protocol.messages.session import DeviceChanged
from atomr_mp.startup import launch
from tests.support import (
    ACTORS,
    BACKEND,
    BYSTANDER,
    DEADLINE_S,
    KEEPER,
    PROBE,
    Ledger,
    Watched,
    local_client,
    settled,
    standby_of,
    standby_pid,
    wait_generation,
    wait_state,
    wait_until,
)

STANDING: Final = f"{ACTORS}/standing.py:Standing"
HOT: Final[dict[str, Any]] = {"standby": "hot", "max_restarts": 1000, "backoff_initial_s": 0.1}


def wait_standby(pool: atomr_mp.Pool, generation: int = 0, device: int = 0) -> StandbyInfo:
    """Wait until this client is connected to a device's standby, of this generation or a later one."""

    def found() -> StandbyInfo | None:
        standby = pool._client.devices[device].standby
        return standby if standby is not None and standby.generation >= generation else None

    wait_until(pool, lambda: found() is not None)
    standby = found()
    assert standby is not None
    return standby


def events(ledger: Ledger) -> list[str]:
    """Return the kinds of events that were logged."""
    return [str(event["event"]) for event in read_events(ledger.run_dir() / "events.jsonl")]


@pytest.mark.parametrize("how", ["kill", "exit", "segv"])
def test_the_standby_takes_over_under_load(ledger: Ledger, how: str) -> None:
    """Two clients, in threads and in an event loop: each request has one true outcome, and the next is answered."""
    outcomes: dict[str, errors.AtomrError | None] = {}
    with ledger.start(PROBE, STANDING, **HOT) as pool, atomr_mp.connect(run_dir=pool.run_dir) as other:
        wait_standby(pool)
        wait_standby(other)
        go_on = threading.Event()
        go_on.set()

        def use() -> None:
            number = 0
            while go_on.is_set():
                batch = {f"a{number + n}": pool.call("Probe.note", f"a{number + n}") for n in range(50)}
                number += 50
                outcomes.update({tag: reply.exception() for tag, reply in batch.items()})

        async def use_in_loop() -> None:
            number = 0
            while go_on.is_set():
                batch = {f"b{number + n}": other.call("Probe.note", f"b{number + n}") for n in range(50)}
                number += 50
                found = await asyncio.gather(*batch.values(), return_exceptions=True)
                outcomes.update(
                    {
                        tag: each if isinstance(each, errors.AtomrError) else None
                        for tag, each in zip(batch, found, strict=True)
                    }
                )

        threads = [threading.Thread(target=use), threading.Thread(target=lambda: asyncio.run(use_in_loop()))]
        for thread in threads:
            thread.start()
        try:
            for generation in range(1, 3):
                wait_standby(pool, generation + 1)
                wait_standby(other, generation + 1)
                enough = len(outcomes) + 200
                assert settled(lambda enough=enough: len(outcomes) >= enough)  # type: ignore[misc]
                assert isinstance(pool.call("Probe.fail", how).exception(), errors.WorkerLost)
                assert pool.call("Standing.where").result()[1] == generation + 1
        finally:
            go_on.clear()
            for thread in threads:
                thread.join()
        assert pool.devices[0].restarts == 2
        ran = Counter(ledger.runs())
        assert set(ran.values()) == {1}
        for tag, error in outcomes.items():
            if error is None:
                assert ran[tag] == 1
            else:
                assert type(error) is errors.WorkerLost
                assert error.maybe_executed or not ran[tag], tag
    assert "promoted" in events(ledger)


def test_what_was_done_is_counted_on(ledger: Ledger) -> None:
    """The sums do not fall at a takeover, and the fault is reported."""
    with ledger.start(STANDING, PROBE, **HOT) as pool, ledger.gate("gate") as gate:
        wait_standby(pool)
        for n in range(5):
            pool.call("Standing.note", f"{n}").result()
        held = pool.call("Probe.hold", gate.path)
        gate.wait()
        pool.restart(0)
        wait_generation(pool, 2)
        assert pool.figures().workers[0].figures.received == 6
        assert not pool.figures().workers[0].figures.ends
        pool.call("Standing.note", "on the next").result()
        gate.open()
        held.result()
        wait_standby(pool, 3)
        assert not pool.status().devices[0].last_fault
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 3)
        assert settled(lambda: len(pool.figures().workers[0].figures.ends) == 2)
        told = pool.figures().workers[0]
        assert (told.figures.received, told.figures.answered, told.figures.lost) == (7, 7, 0)
        assert {end.cause: end.count for end in told.figures.ends} == {"restart": 1, "sigkill": 1}
        assert "SIGKILL" in told.last_fault


def test_a_killed_worker_s_clients_go_on_with_the_standby(ledger: Ledger) -> None:
    """Its process was there before; nothing of the dead one is left, and a new standby comes."""
    with ledger.start(STANDING, **HOT) as pool:
        for generation in range(1, 4):
            standby = wait_standby(pool, generation + 1)
            told = standby_of(pool)
            assert (told.mode, told.state, told.generation) == ("hot", "ready", standby.generation)
            pid, now = pool.call("Standing.where").result()
            assert standby.generation > now
            with Watched([pid]) as watched:
                os.kill(pid, signal.SIGKILL)
                wait_generation(pool, standby.generation)
                assert pool.call("Standing.where").result() == [told.pid, standby.generation]
                assert watched.left() == []
        assert standby_of(pool).next_fault_costs_ms is not None
    assert ledger.runs("teardowns") == ["0-4"] or sorted(ledger.runs("teardowns")) == ["0-4", "0-5"]


def test_a_poisoned_worker_is_replaced_at_once(ledger: Ledger) -> None:
    """Its caller gets an error, and the next call is the standby's."""
    with ledger.start(STANDING, **HOT) as pool:
        standby = wait_standby(pool)
        error = pool.call("Standing.poison").exception()
        assert type(error) is errors.ContextPoisoned
        assert pool.call("Standing.where").result()[1] == standby.generation
        assert pool.devices[0].restarts == 1


def test_nobody_waits_for_a_poisoned_worker_to_end(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its threads are stopped, and then its callers get their errors, and what may be sent again is."""
    monkeypatch.setattr(launch, "MODULE", "tests.programs.withholding")
    (ledger.path / "stuck").touch()  # so it does not end
    with ledger.start(STANDING, **HOT, kill_timeout_s=DEADLINE_S) as pool, ledger.gate("gate") as gate:
        standby = wait_standby(pool)
        running = pool.call("Standing.where_at_last", gate.path)
        (pid,) = gate.wait()
        assert type(pool.call("Standing.poison").exception()) is errors.ContextPoisoned
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
        assert running.result() == standby.generation
        with Watched([pid]) as watched:
            os.kill(pid, signal.SIGKILL)
            assert watched.left() == []
        wait_standby(pool, standby.generation + 1)  # it is waited for as ever


def test_nobody_waits_for_a_poisoned_worker_to_stop_if_nothing_runs_there(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last word says so: no thread of an actor's is at work, and what waits was not begun."""
    monkeypatch.setattr(launch, "MODULE", "tests.programs.withholding")
    for name in ("stuck", "unseen"):  # so neither its end nor that it stops tells of anything
        (ledger.path / name).touch()
    with ledger.start(STANDING, **HOT, kill_timeout_s=DEADLINE_S) as pool:
        standby = wait_standby(pool)
        pid = pool.devices[0].pid
        assert type(pool.call("Standing.poison").exception()) is errors.ContextPoisoned
        assert pool.call("Standing.where").result()[1] == standby.generation
        with Watched([pid]) as watched:
            os.kill(pid, signal.SIGKILL)
            assert watched.left() == []
        wait_standby(pool, standby.generation + 1)


def test_a_standby_does_not_answer_before_its_promotion(ledger: Ledger) -> None:
    """Not even who calls it by its own token; then it does."""
    with ledger.start(STANDING, **HOT) as pool:
        standby = wait_standby(pool)
        pid = pool.call("Standing.where").result()[0]
        attached = local_client(pool)._blocking._links[0].standby
        assert attached is not None
        current = token.pack(pool._client.epoch, 0, standby.generation)
        call = data.Call(10**6, "Standing.note", time.monotonic_ns() + 10**11, 0, b"\x91\xa5early")
        attached.connection.send(data.FROM_CLIENT.encode(data.Calls(current, [call])), [])
        # It has had every occasion: it did what it was told by the supervisor after the call was sent.
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            wait_standby(other)
        assert ledger.runs() == []
        assert pool.call("Standing.note", "late").result() == "late"
        os.kill(pid, signal.SIGKILL)
        assert settled(lambda: f"early@{standby.generation}" in ledger.runs())
        assert ledger.runs()[0] == "late@1"


def test_a_standby_that_dies_is_replaced_quietly(ledger: Ledger) -> None:
    """The active one and its clients notice nothing, and it is not counted as one of theirs."""
    with ledger.start(STANDING, BYSTANDER, **HOT) as pool, ledger.gate("gate") as gate:
        held = pool.call("Bystander.hold", gate.path)
        gate.wait()
        standby = wait_standby(pool)
        before = pool.devices[0]
        with Watched([standby_pid(pool)]) as watched:
            os.kill(standby_pid(pool), signal.SIGKILL)
            assert watched.left() == []
        following = wait_standby(pool, standby.generation + 1)
        assert following.generation == standby.generation + 1
        assert (standby_of(pool).restarts, standby_of(pool).state) == (1, "ready")
        after = pool.devices[0]
        assert (after.pid, after.generation, after.restarts) == (before.pid, 1, 0)
        gate.open()
        assert held.result() == before.pid
        os.kill(before.pid, signal.SIGKILL)
        wait_generation(pool, following.generation)
        assert pool.call("Standing.where").result()[1] == following.generation
    assert "standby_end" in events(ledger)


def test_a_standby_that_cannot_start_is_given_up_and_tried_again_after_a_restart(ledger: Ledger) -> None:
    """It does not spin, `status` says so, and the worker goes on."""
    with ledger.start(STANDING, faults=[], **HOT | {"backoff_initial_s": 0.01}) as pool:
        standby = wait_standby(pool)
        injected = testing.inject(pool, at="setup", fault=testing.Exit(7), times=None)
        os.kill(standby_pid(pool), signal.SIGKILL)
        assert settled(lambda: standby_of(pool).state == "failed")
        assert "3 standbys have ended in a row" in standby_of(pool).note
        assert "exited with status 7" in standby_of(pool).note
        assert (standby_of(pool).restarts, pool.devices[0].restarts) == (3, 0)
        assert pool._client.devices[0].standby is None
        injected.withdraw()
        pool.restart(0)
        wait_generation(pool, standby.generation + 3)
        wait_standby(pool, standby.generation + 4)
        assert standby_of(pool).note == ""
    assert "standby_failed" in events(ledger)


def test_both_killed_at_once_are_replaced(ledger: Ledger) -> None:
    """By a new process, as without a standby."""
    with ledger.start(STANDING, **HOT) as pool:
        standby = wait_standby(pool)
        pids = [pool.devices[0].pid, standby_pid(pool)]
        with Watched(pids) as watched:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            wait_generation(pool, standby.generation + 1)
            assert watched.left() == []
        assert pool.call("Standing.where").result()[1] > standby.generation
        wait_standby(pool, pool.devices[0].generation + 1)


def test_a_standby_that_still_starts_is_waited_for(ledger: Ledger) -> None:
    """No third process is started; calls wait for it."""
    with ledger.gate("slow") as slow:
        slow.open()
        with ledger.start(STANDING, **HOT) as pool:
            slow.wait()
            (starting,) = slow.wait()
            assert (standby_of(pool).state, standby_of(pool).pid) == ("starting", starting)
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_state(pool, DeviceState.STARTING)
            waiting = pool.call("Standing.where")
            assert (pool.devices[0].pid, pool.devices[0].generation) == (starting, 2)
            slow.open()
            assert waiting.result() == [starting, 2]
            slow.open(100)
            wait_standby(pool, 3)
            assert ledger.runs("setups") == ["0-1", "0-2", "0-3"]


def test_a_standby_that_dies_while_it_is_waited_for_is_replaced(ledger: Ledger) -> None:
    """It is the active one by then, and counts as that."""
    with ledger.gate("slow") as slow:
        slow.open()
        with ledger.start(STANDING, **HOT) as pool:
            slow.wait()
            (starting,) = slow.wait()
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_state(pool, DeviceState.STARTING)
            os.kill(starting, signal.SIGKILL)  # first: with the gate open it could be ready, and have been called
            slow.open(100)
            assert pool.call("Standing.where").result()[1] == 3


def test_too_many_promotions_open_the_circuit(ledger: Ledger) -> None:
    """They count as the restarts that they stand for, and the standby is not left behind."""
    with ledger.start(STANDING, standby="hot", max_restarts=1, backoff_initial_s=30.0) as pool:
        standby = wait_standby(pool)
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, standby.generation)
        wait_standby(pool, standby.generation + 1)
        pids = [pool.devices[0].pid, standby_pid(pool)]
        with Watched(pids) as watched:
            os.kill(pids[0], signal.SIGKILL)
            stopped = wait_state(pool, DeviceState.TRIPPED)
            assert "2 unplanned ends" in stopped.reason
            assert watched.left() == []
        assert standby_of(pool).state == "none"
        pool.restart(0)
        wait_standby(pool)
        assert pool.call("Standing.where").result()[1] == pool.devices[0].generation


def test_a_restart_under_load_is_a_takeover_that_nobody_notices(ledger: Ledger) -> None:
    """What is in flight finishes on the old one, what comes meanwhile does not wait for it."""
    with ledger.start(STANDING, PROBE, **HOT) as pool, ledger.gate("gate") as gate:
        standby = wait_standby(pool)
        held = pool.call("Probe.hold", gate.path)
        gate.wait()
        behind = [pool.call("Probe.note", f"{n}") for n in range(5)]
        assert settled(lambda: all(reply.generation for reply in behind))
        pool.restart(0)
        wait_generation(pool, standby.generation)
        assert pool.call("Standing.where").result()[1] == standby.generation
        assert not held.done
        gate.open()
        assert held.result() == 1
        assert [reply.result() for reply in behind] == [f"{n}" for n in range(5)]
        wait_standby(pool, standby.generation + 1)
        assert pool.devices[0].restarts == 0
        assert settled(lambda: ledger.runs("teardowns").count("0-1") == 2)  # one of either actor


def test_an_operator_who_restarts_is_told_that_it_is_done(ledger: Ledger) -> None:
    """The takeover comes before the answer to the order."""
    with ledger.start(STANDING, **HOT) as pool, OperatorSession(pool.run_dir / "session.sock") as observer:
        standby = wait_standby(pool)
        observer.restart(0)
        event = observer.next_event(DEADLINE_S)
        while not (isinstance(event, DeviceChanged) and event.device.generation == standby.generation):
            event = observer.next_event(DEADLINE_S)
        assert event.device.state is DeviceState.READY
        assert event.device.standby is None


def test_a_cancel_finds_a_request_on_the_one_before(ledger: Ledger) -> None:
    """It is where it was sent, though calls go elsewhere by now."""
    with ledger.start(STANDING, PROBE, **HOT) as pool, ledger.gate("gate") as gate:
        standby = wait_standby(pool)
        held = pool.call("Probe.hold_on_thread", gate.path)
        gate.wait()
        queued = [pool.call("Probe.note_on_thread", f"{n}") for n in range(3)]
        assert settled(lambda: all(reply.generation == 1 for reply in queued))
        pool.restart(0)
        wait_generation(pool, standby.generation)
        queued[1].cancel()
        assert isinstance(queued[1].exception(), errors.Cancelled)
        gate.open()
        assert held.result() == 1
        assert [queued[0].result(), queued[2].result()] == ["0", "2"]
        assert ledger.runs() == ["0", "2"]


def test_sessions_come_and_go_while_there_is_a_standby(ledger: Ledger) -> None:
    """It knows them all, forgets those that end, and what they held is free once both workers have said so."""
    with ledger.start(STANDING, KEEPER, **HOT) as pool:
        standby = wait_standby(pool)
        with atomr_mp.connect(run_dir=pool.run_dir) as ended:
            wait_standby(ended)
            ref = ended.call("Keeper.make", np.zeros(2**18)).result()
            assert pool.device(0).statistics()["leases"] >= 1
            del ref
        assert settled(lambda: pool.device(0).statistics()["leases"] == 0)
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            wait_standby(other)
            kept = other.call("Keeper.make", np.ones(2**18)).result()
            argument = np.ones(2**18)
            assert other.call("Keeper.total", argument).result() == 2**18
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            for client in (pool, other):
                wait_generation(client, standby.generation)
                assert client.call("Standing.where").result()[1] == standby.generation
            # Memory of the client is known to the standby too; the device's own was the dead one's.
            assert other.call("Keeper.total", argument).result() == 2**18
            with pytest.raises(errors.GpuRefStale):
                other.call("Keeper.total", kept).result()
            with pytest.raises(errors.GpuRefStale):
                kept.numpy()
        assert settled(lambda: pool.status().sessions == 1)
        assert settled(lambda: pool.device(0).statistics()["leases"] == 0)


@pytest.mark.parametrize("ready", [True, False])
def test_a_stop_ends_standbys_too(ledger: Ledger, *, ready: bool) -> None:
    """One that is set up is torn down, one that starts is killed."""
    with ledger.gate("slow") as slow:
        slow.open(2 if ready else 1)
        pool = ledger.start(STANDING, **HOT)
        slow.wait(2)
        if ready:
            wait_standby(pool)
        pids = [pool.devices[0].pid, standby_pid(pool)]
        with Watched(pids) as watched:
            pool.close()
            assert watched.left() == []
        assert sorted(ledger.runs("teardowns")) == (["0-1", "0-2"] if ready else ["0-1"])


def test_one_standby_starts_at_a_time(ledger: Ledger) -> None:
    """Of all devices; a start takes processors and disk from those that work."""
    with ledger.gate("later") as later, ledger.start(STANDING, gpus=2, **HOT) as pool:
        (first,) = later.wait()
        states = [standby_of(pool, device) for device in range(2)]
        assert sorted(each.state for each in states) == ["none", "starting"]
        assert {each.pid for each in states} == {None, first}
        later.open(2)
        for device in range(2):
            wait_standby(pool, device=device)
        assert Path(f"/proc/{first}").exists()


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_standby_has_what_its_device_was_lent(ledger: Ledger, how: str) -> None:
    """Whether it was there when the slab was lent, as the first is here, or came later, as the second."""
    with ledger.start(PROBE, KEEPER, gpus=2, **HOT) as pool:
        wait_standby(pool, device=1)
        ref = pool.device(0).put(np.arange(1000.0))
        assert pool.call("Keeper.total", ref, device=1).result() == 499500
        for _ in range(2):
            following = wait_standby(pool, device=1).generation
            if how == "restart":
                pool.restart(1)
            else:
                assert isinstance(pool.call("Probe.fail", "kill", device=1).exception(), errors.WorkerLost)
            wait_generation(pool, following, 1)
            assert pool.call("Keeper.total", ref, device=1).result() == 499500
            wait_standby(pool, following + 1, device=1)


@pytest.mark.skipif(BACKEND != "host", reason="looks for the host's library")
def test_a_standby_has_ready_what_the_worker_is_used_for(ledger: Ledger) -> None:
    """Libraries are imported and have done a first call, sessions find a slab; also in those that come later."""
    with ledger.start(STANDING, **HOT) as pool, atomr_mp.connect(run_dir=pool.run_dir) as other:
        for generation in range(1, 3):
            wait_standby(pool, generation + 1)
            other.wait_ready()
            for client in (pool, other):
                ones = client.device(0).put(np.ones((64, 64)))
                assert client.device(0).blas.gemm(ones, ones).result().numpy()[0, 0] == 64
            pid = standby_pid(pool)
            assert settled(lambda pid=pid: "_fblas" in Path(f"/proc/{pid}/maps").read_text())  # type: ignore[misc]
            assert settled(lambda: pool.device(0).put(np.ones(3)).numpy().sum() == 3 and spares(standby_pid(pool)) >= 2)
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            for client in (pool, other):
                wait_generation(client, generation + 1)
            # At once, while the loop leaves the driver alone: memory is there, or made elsewhere.
            for client in (pool, other):
                refs = [client.device(0).put(np.ones(n)) for n in (10, 10_000_000)]
                assert [ref.numpy().sum() for ref in refs] == [10, 10_000_000]
                assert client.device(0).blas.dot(refs[0], refs[0]).result() == 10
                del refs


def spares(pid: int) -> int:
    """Return how many slabs a standby has made."""
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").count("memfd:atomr-mp-slab")


def test_another_device_s_memory_can_be_used_at_once_after_a_promotion(ledger: Ledger) -> None:
    """It is mapped elsewhere than on the loop, and the session's calls wait for it in their order."""
    with ledger.start(STANDING, gpus=2, **HOT) as pool:
        wait_standby(pool, 2)
        source = pool.device(1).put(np.arange(1000.0))
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 2)
        targets = [pool.device(0).zeros(1000, "float64") for _ in range(3)]
        for target in targets:
            source.copy_to(target)
        assert [target.numpy().sum() for target in targets] == [499500] * 3
