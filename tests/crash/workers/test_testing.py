"""`atomr_mp.testing`: each fault at each point, as often as it was ordered; and ledgers that see what is left."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.operator.doctor import examine
from atomr_mp.process.files.events import read_events
from atomr_mp.process.gpus import nvml
from atomr_mp.protocol import process_tags
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.testing import Exit, Fail, FullDisk, Hang, HangInKernel, Kill, Poison
from atomr_mp_workers.fault_points import hooks
from tests.fakes.fake_nvml import Card, FakeNvml
from tests.support import BACKEND, DEADLINE_S, Ledger, settled, wait_generation, wait_state

OFTEN: Final[dict[str, Any]] = {"max_restarts": 1000, "backoff_initial_s": 0.0}
OF_REQUESTS: Final[tuple[testing.Point, ...]] = ("decode", "borrow", "enqueue", "before_reply")


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """One for all that is over with its worker."""
    with Ledger() as ledger, ledger.start(faults=[], **OFTEN) as started:
        yield started


def call(pool: atomr_mp.Pool, at: testing.Point, method: str = "Probe.echo") -> atomr_mp.Reply:
    """Make a request that comes by a point."""
    return pool.call(method, pool.device(0).put(np.ones(3)) if at == "borrow" else 1)


@pytest.mark.parametrize("fault", [Kill(), Kill(signal.SIGSEGV), Exit(3)], ids=repr)
@pytest.mark.parametrize("at", OF_REQUESTS)
def test_a_process_ends_where_it_is_told_to(pool: atomr_mp.Pool, at: testing.Point, fault: testing.Fault) -> None:
    """Once; its caller learns that it may have run, and the next request is the next incarnation's."""
    before = wait_state(pool, DeviceState.READY)
    wait_generation(pool, before.generation)
    with testing.inject(pool, at=at, fault=fault, of="Probe.echo") as injected:
        error = call(pool, at).exception()
        assert isinstance(error, errors.WorkerLost)
        assert error.maybe_executed
        assert injected.wait() == [before.pid]
        wait_generation(pool, before.generation + 1)
        call(pool, at).result()
        assert injected.fired == [before.pid]


@pytest.mark.parametrize("at", OF_REQUESTS)
def test_a_poisoned_context_ends_its_worker(pool: atomr_mp.Pool, at: testing.Point) -> None:
    """Whoever meets it gets the error, with its status."""
    before = wait_state(pool, DeviceState.READY)
    wait_generation(pool, before.generation)
    with testing.inject(pool, at=at, fault=Poison(716), of="Probe.echo"):
        error = call(pool, at).exception()
    assert isinstance(error, errors.ContextPoisoned)
    assert error.status == 716
    assert (error.device, error.generation) == (0, before.generation)
    wait_generation(pool, before.generation + 1)
    call(pool, at).result()


@pytest.mark.parametrize("at", OF_REQUESTS)
def test_an_exception_is_its_request_s(pool: atomr_mp.Pool, at: testing.Point) -> None:
    """Of the arguments it is `InvalidRequest`, of the method `ActorFailed`; the worker goes on, `times` times."""
    before = wait_state(pool, DeviceState.READY)
    with testing.inject(pool, at=at, fault=Fail("so it was wanted"), times=2, of="Probe.echo") as injected:
        for _ in range(2):
            error = call(pool, at).exception()
            expected = errors.InvalidRequest if at in {"decode", "borrow"} else errors.ActorFailed
            assert type(error) is expected
            assert "so it was wanted" in error.message
        call(pool, at).result()
        assert injected.fired == [before.pid] * 2
    assert pool.devices[0].pid == before.pid


def test_a_fault_is_for_the_device_generation_and_method_that_it_names(pool: atomr_mp.Pool) -> None:
    """Others come by, and notice nothing; what is withdrawn happens no more."""
    wait_state(pool, DeviceState.READY)
    generation = pool.call("Probe.where").result()[2]
    elsewhere = [
        testing.inject(pool, at="enqueue", fault=Kill(), device=1),
        testing.inject(pool, at="enqueue", fault=Kill(), generation=generation + 1),
        testing.inject(pool, at="enqueue", fault=Kill(), of="Probe.note"),
    ]
    here = testing.inject(pool, at="enqueue", fault=Kill(), times=None)
    here.withdraw()
    assert pool.call("Probe.echo", 1).result() == 1
    for injected in elsewhere:
        injected.withdraw()
        assert injected.fired == []
    with pytest.raises(TimeoutError, match="0 times"):
        here.wait(timeout_s=0.01)


def test_a_hang_lasts_as_long_as_it_was_told(pool: atomr_mp.Pool) -> None:
    """On the loop it holds everybody up; the caller's deadline holds."""
    with testing.inject(pool, at="enqueue", fault=Hang(0.3), of="Probe.note"):
        with pytest.raises(errors.DeadlineExceeded):
            pool.call("Probe.note", "x", deadline_s=0.1).result()
        assert pool.call("Probe.echo", 1).result() == 1


@pytest.mark.parametrize("fault", [Hang(), Hang(gil=True), HangInKernel()], ids=repr)
def test_a_hang_that_never_ends_ends_with_its_process(pool: atomr_mp.Pool, fault: testing.Fault) -> None:
    """Whatever it keeps."""
    before = wait_state(pool, DeviceState.READY)
    wait_generation(pool, before.generation)
    with testing.inject(pool, at="enqueue", fault=fault, of="Probe.note") as injected:
        stuck = pool.call("Probe.note", "x")
        assert injected.wait() == [before.pid]
        os.kill(before.pid, signal.SIGKILL)
        assert isinstance(stuck.exception(), errors.WorkerLost)
    wait_generation(pool, before.generation + 1)


@pytest.mark.parametrize("at", ["import", "setup", "ready"])
def test_faults_of_a_start_are_there_from_the_beginning(ledger: Ledger, at: testing.Point) -> None:
    """The device is tried again, within its restart intensity."""
    faults = [testing.At(at, Exit(7), generation=None if at == "import" else 1)]
    with ledger.start(faults=faults, **OFTEN) as pool:
        assert pool.call("Probe.where").result()[2] == 2
        assert pool.devices[0].restarts == 1


@pytest.mark.parametrize("fault", [Kill(), Poison()], ids=repr)
def test_a_standby_may_meet_a_fault_at_its_promotion(ledger: Ledger, fault: testing.Fault) -> None:
    """Then the one after it takes the place of both."""
    with ledger.start(faults=[], standby="hot", **OFTEN) as pool:
        assert settled(lambda: pool.devices[0].standby is not None)
        with testing.inject(pool, at="promotion", fault=fault, generation=2) as injected:
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            injected.wait()
            wait_generation(pool, 3)
            assert pool.call("Probe.where").result()[2] >= 3


def test_a_full_disk_costs_events_and_nothing_else(ledger: Ledger) -> None:
    """They are counted in the first that can be written again."""
    with ledger.start(faults=[], **OFTEN) as pool:
        with testing.inject(pool, at="disk", fault=FullDisk(), times=None) as injected:
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, 2)
            assert pool.call("Probe.where").result()[2] == 2
            assert set(injected.fired) == {pool.supervisor_pid}
            told = pool.status()
            assert (told.state, told.unwritable in told.reason) == ("degraded", True)
            assert told.unwritable.startswith(f"{ledger.run_dir()}/events.jsonl cannot be written since ")
            _, findings = examine(ledger.run_dir(), lasts_s=0.1)
            assert [each.what for each in findings if each.kind == "disk"] == [told.reason]
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 3)
        assert settled(lambda: pool.status().state == "healthy")
        assert settled(
            lambda: "disk_full" in [each["event"] for each in read_events(ledger.run_dir() / "events.jsonl")]
        )
    events = list(read_events(ledger.run_dir() / "events.jsonl"))
    assert sum(int(event.get("lost_events") or 0) for event in events) >= 2
    assert events[-1]["event"] == "pool_end"
    (again,) = [str(event["text"]) for event in events if event["event"] == "disk_full"]
    assert "events.jsonl can be written again, after it could not be since " in again


def test_a_driver_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller waits for it longer than until a deadline."""
    monkeypatch.setitem(__import__("sys").modules, "pynvml", FakeNvml(Card("GPU-1")))
    with testing.Faults() as faults, faults.here():
        faults.add(testing.At("nvml", Hang(0.5)))
        with pytest.raises(errors.ConfigurationError, match=r"has not answered within 0\.01 s"):
            nvml.survey(0.01)
        assert nvml.survey().gpus[0].uuid == "GPU-1"
    assert nvml.processes() == {"GPU-1": []}


def test_what_cannot_happen_is_refused(ledger: Ledger, pool: atomr_mp.Pool) -> None:
    """A pool that looks for no faults; a fault that has no meaning where it was ordered."""
    with ledger.start() as other, pytest.raises(errors.ConfigurationError, match=r"testing\.start"):
        testing.inject(other, at="setup", fault=Kill())
    for at, fault in [("import", Poison()), ("disk", Kill()), ("setup", FullDisk()), ("nvml", Kill())]:
        with pytest.raises(errors.ConfigurationError):
            testing.inject(pool, at=at, fault=fault)  # type: ignore[arg-type]
    assert hooks.hook is None


def test_faults_leave_no_files(ledger: Ledger) -> None:
    """Their directory goes with the pool."""
    pool = ledger.start(faults=[testing.At("setup", Kill(), times=None, device=7)])
    environment = psutil.Process(pool.supervisor_pid).environ()
    directory = Path(environment["_ATOMR_MP_FAULTS"])
    assert directory.is_dir()
    assert "_ATOMR_MP_FAULTS" not in os.environ
    pool.close()
    del pool
    gc.collect()
    assert not directory.exists()


# --- ledgers ---------------------------------------------------------------------------------------------------------


def test_a_crash_leaves_a_ledger_as_it_was(ledger: Ledger) -> None:
    """Of the process and of the pool."""
    with ledger.start(faults=[], **OFTEN) as pool:
        wait_generation(pool, 1)
        pool.call("Probe.echo", 1).result()
        with testing.Ledger(pool, DEADLINE_S):
            with testing.inject(pool, at="before_reply", fault=Kill(), of="Probe.note"):
                assert isinstance(pool.call("Probe.note", "x").exception(), errors.WorkerLost)
            wait_generation(pool, 2)
            pool.call("Probe.echo", 1).result()
    testing.assert_nothing_left(pool, DEADLINE_S)


@pytest.mark.skipif(BACKEND != "host", reason="looks at mappings of the host's memory")
def test_a_ledger_tells_what_is_held(ledger: Ledger) -> None:
    """A descriptor, a mapping, a child, memory of a worker."""
    with ledger.start() as pool:
        pool.device(0).put(np.ones(100_000)).view()
        with testing.Ledger(pool, within_s=0.1) as counting:
            counting.check()
            held = (ledger.path / "file").open("w")
            with pytest.raises(AssertionError, match=r"1 more of .*/file open"):
                counting.check()
            held.close()
            with psutil.Popen(["sleep", "1000"]) as child:
                with pytest.raises(AssertionError, match=r"\d children, \d before"):
                    counting.check()
                child.kill()
            array = pool.host_array((10**7,))
            with pytest.raises(AssertionError, match="slabs_mapped"):
                counting.check()
            del array
            gc.collect()
            counting._before = None
            with pytest.raises(AssertionError, match="from the beginning"):
                counting.check()
            counting.__enter__()


def test_what_is_left_of_a_pool_is_told(ledger: Ledger) -> None:
    """Also of one that has ended."""
    with ledger.start() as pool:
        testing.assert_nothing_left(pool, DEADLINE_S)
    stray = psutil.Popen(["sleep", "1000"], env={**os.environ, process_tags.RUN_DIR: str(pool.run_dir)})
    try:
        with pytest.raises(AssertionError, match=f"process: pid {stray.pid} .*; `kill -9 {stray.pid}`"):
            testing.assert_nothing_left(pool.run_dir, 0.1)
    finally:
        stray.kill()
        stray.wait()
    testing.assert_nothing_left(pool.run_dir, DEADLINE_S)


@pytest.mark.parametrize("at", OF_REQUESTS)
def test_a_lost_context_is_not_laid_to_whoever_notices_it(pool: atomr_mp.Pool, at: testing.Point) -> None:
    """Every caller reads where it was noticed, and all that ran: any of it may be the cause."""
    before = wait_state(pool, DeviceState.READY)
    wait_generation(pool, before.generation)
    with testing.inject(pool, at="enqueue", fault=Hang(), of="Probe.hold_on_thread") as held:
        running = pool.call("Probe.hold_on_thread", "never")
        assert held.wait() == [before.pid]
        with testing.inject(pool, at=at, fault=Poison(700), of="Probe.echo"):
            noticed = call(pool, at).exception()
        ran = running.exception()
    for error in (noticed, ran):
        assert isinstance(error, errors.ContextPoisoned)
        assert "; noticed in Probe.echo; running: " in error.message
        suspects = error.message.rpartition("; running: ")[2].partition(";")[0].split(", ")
        assert sorted(suspects) == ["Probe.echo", "Probe.hold_on_thread"]
        assert not error.message.startswith("Probe.echo")
    wait_generation(pool, before.generation + 1)
