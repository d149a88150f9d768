"""Resident memory outlives the process that filled it, whatever ends it; it is filled once, and never by half."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.operator.doctor import examine
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.protocol.messages.operators import ResidentInfo
from atomr_mp.supervision.audit.findings import State, Supervision
from tests.crash.workers.test_standby import wait_standby
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger, open_descriptors, settled, wait_generation, wait_state

HOUSED: Final = f"{ACTORS}/housed.py:Housed"
LODGER: Final = f"{ACTORS}/housed.py:Lodger"
RESTARTING: Final[dict[str, Any]] = {"max_restarts": 1000, "backoff_initial_s": 0.05}
BLOB_BYTES: Final = 2**21
BIAS: Final = 28.0

on_host = pytest.mark.skipif(BACKEND != "host", reason="looks at mappings of the host's memory")


def total(rows: int = 64, times: float = 1.0) -> float:
    """Return the sum of the weights."""
    return times * sum(range(rows * 8))


def want(ledger: Ledger, **what: Any) -> None:
    """Have the next processes ask for something else."""
    (ledger.path / "weights").write_text(json.dumps(what))


def residents(ledger: Ledger) -> list[ResidentInfo]:
    """Return what the supervisor has."""
    with OperatorSession(ledger.run_dir() / "session.sock") as observer:
        return observer.residents().residents


def held(ledger: Ledger) -> set[int]:
    """Return the processes of the ledger that have resident memory of the host open or mapped."""
    found = set()
    for pid in ledger.processes():
        with contextlib.suppress(OSError):  # it has ended
            mapped = Path(f"/proc/{pid}/maps").read_text()
            if "memfd:atomr-mp-resident" in " ".join([*open_descriptors(pid).values(), mapped]):
                found.add(pid)
    return found


def events(ledger: Ledger) -> list[str]:
    """Return the kinds of events that were logged."""
    return [str(event["event"]) for event in read_events(ledger.run_dir() / "events.jsonl")]


@pytest.mark.parametrize("standby", ["none", "warm", "hot"])
@pytest.mark.parametrize("checksum", [False, True])
def test_it_is_filled_once_whoever_dies(ledger: Ledger, standby: str, *, checksum: bool) -> None:
    """Every later process has the same content, and did not load it."""
    want(ledger, checksum=checksum)
    with ledger.start(HOUSED, standby=standby, **RESTARTING) as pool:
        for generation in range(1, 4):
            wait_generation(pool, generation)
            if standby == "hot":
                wait_standby(pool, generation + 1)
            pid, matrix, bias = pool.call("Housed.total").result()
            assert (matrix, bias) == (total(), BIAS)
            os.kill(pid, signal.SIGKILL)
        wait_generation(pool, 4)
        pool.restart(0)
        assert pool.call("Housed.total").result()[1:] == [total(), BIAS]
    assert ledger.runs("fills") == ["0-1:1"]
    assert events(ledger).count("resident_sealed") == 1


def test_actors_of_one_process_have_it_in_common(ledger: Ledger) -> None:
    """The second finds what the first has."""
    with ledger.start(HOUSED, LODGER) as pool:
        assert pool.call("Housed.total").result() == pool.call("Lodger.total").result()
        (blob,) = residents(ledger)
        assert [(user.device, user.generation) for user in blob.users] == [(0, 1)]
    assert ledger.runs("fills") == ["0-1:1"]


@on_host
def test_all_devices_of_the_host_have_it_in_common(ledger: Ledger) -> None:
    """One fills, the others wait; none can write it or make it writable."""
    with ledger.start(HOUSED, gpus=3) as pool:
        for device in range(3):
            assert pool.call("Housed.total", device=device).result()[1] == total()
            assert pool.call("Housed.mapped", device=device).result() == ["r--s"]
        (blob,) = residents(ledger)
        assert (blob.device, blob.state, blob.nbytes, blob.arrays) == (None, "sealed", BLOB_BYTES, 2)
        assert [user.pid for user in blob.users] == [device.pid for device in pool.devices]
        supervision, findings = examine(pool.run_dir, DEADLINE_S)
        assert supervision is Supervision.ANSWERS
        assert {each.state for each in findings} == {State.OK}
        pids = ", ".join(str(pid) for pid in sorted(device.pid for device in pool.devices))
        assert f"resident memory of {BLOB_BYTES:,} bytes, used by pid {pids}" in [each.what for each in findings]
        assert pool.status().resident_bytes == BLOB_BYTES
    assert len(ledger.runs("fills")) == 1


@contextlib.contextmanager
def starting(ledger: Ledger, *actors: str, **settings: Any) -> Iterator[Future[atomr_mp.Pool]]:
    """Start a pool whose processes wait for somebody; yield what will be the pool, which is closed at the end."""
    with ThreadPoolExecutor(1) as executor:
        pool = executor.submit(ledger.start, *actors, **settings)
        try:
            yield pool
        finally:
            with contextlib.suppress(errors.AtomrError):
                pool.result(DEADLINE_S).close()


@on_host
def test_who_waits_takes_over_from_a_filler_that_dies(ledger: Ledger) -> None:
    """Half-filled memory is discarded; a client that came meanwhile can call both."""
    with ledger.gate("filling") as gate, starting(ledger, HOUSED, gpus=2, **RESTARTING) as started:
        (filler,) = gate.wait()
        assert settled(lambda: sum(len(blob.users) for blob in residents(ledger)) == 2)
        (blob,) = residents(ledger)
        assert blob.state == "filling"
        with (
            OperatorSession(ledger.run_dir() / "session.sock") as observer,
            pytest.raises(errors.InvalidRequest, match="being filled"),
        ):
            observer.free_resident("weights", force=True)
        with atomr_mp.connect(run_dir=ledger.run_dir()) as early:
            os.kill(filler, signal.SIGKILL)
            (second,) = gate.wait()
            assert second != filler
            assert second in [user.pid for user in blob.users]
            gate.open(2)
            for each in (started.result(DEADLINE_S), early):
                for device in range(2):
                    wait_state(each, DeviceState.READY, device)
                    assert each.call("Housed.total", device=device).result()[1] == total()
    assert len(ledger.runs("fills")) == 2


@pytest.mark.parametrize("fault", [testing.Kill(), testing.Fail()], ids=repr)
def test_what_was_begun_is_filled_anew(ledger: Ledger, fault: testing.Fault) -> None:
    """The next process fills it, after its filler was killed or has raised."""
    with ledger.start(HOUSED, faults=[testing.At("fill", fault, of="weights")], **RESTARTING) as pool:
        assert pool.call("Housed.total").result()[1:] == [total(), BIAS]
        assert pool.devices[0].generation == 2
        assert len(residents(ledger)) == 1
    assert ledger.runs("fills") == ["0-2:1"]


@on_host
@pytest.mark.parametrize("how", ["write", "write_kept"])
def test_python_refuses_to_write_it(ledger: Ledger, how: str) -> None:
    """NumPy says that it is read-only, even through the arrays that `fill` was given."""
    with ledger.start(HOUSED) as pool:
        before = pool.call("Housed.total").result()
        failed = pool.call(f"Housed.{how}").exception()
        assert isinstance(failed, errors.ActorFailed)
        assert "read-only" in failed.message
        assert pool.call("Housed.total").result() == before


@on_host
def test_a_stray_write_ends_its_process_and_nobody_else_s(ledger: Ledger) -> None:
    """The content is unchanged, for the next process and for those of other devices."""
    with ledger.start(HOUSED, gpus=2, **RESTARTING) as pool:
        other = pool.call("Housed.total", device=1).result()
        lost = pool.call("Housed.write_by_address", device=0).exception()
        assert isinstance(lost, errors.WorkerLost)
        assert "SIGSEGV" in lost.message
        wait_generation(pool, 2, 0)
        assert pool.call("Housed.total", device=0).result()[1:] == [total(), BIAS]
        assert pool.call("Housed.total", device=1).result() == other
    assert len(ledger.runs("fills")) == 1


def test_it_is_asked_for_in_setup_only(ledger: Ledger) -> None:
    """Later the control channel belongs to the loop."""
    with ledger.start(HOUSED) as pool:
        with pytest.raises(errors.InvalidRequest, match="in `setup`"):
            pool.call("Housed.ask_again").result()
        assert pool.call("Housed.total").result()[1] == total()


def test_a_new_version_takes_the_place_of_the_old(ledger: Ledger) -> None:
    """Callers get the new content after a reload; the old goes with the last process that has it."""
    with ledger.start(HOUSED, gpus=1) as pool:
        want(ledger, version="2", times=2.0, rows=128)
        pool.restart(0)
        wait_generation(pool, 2)
        assert pool.call("Housed.total").result()[1] == total(128, 2.0)
        assert [(blob.version, blob.state) for blob in residents(ledger)] == [("2", "sealed")]
        assert pool.status().resident_bytes == BLOB_BYTES
    assert ledger.runs("fills") == ["0-1:1", "0-2:2"]


def test_a_standby_has_the_version_of_its_own_code(ledger: Ledger) -> None:
    """Both are there as long as both are in use."""
    with ledger.start(HOUSED, standby="hot", **RESTARTING) as pool:
        wait_standby(pool, 2)
        want(ledger, version="2", times=3.0)
        pool.restart(0)
        wait_generation(pool, 2)
        wait_standby(pool, 3)
        assert pool.call("Housed.total").result()[1] == total()
        assert sorted((blob.version, len(blob.users)) for blob in residents(ledger)) == [("1", 1), ("2", 1)]
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 3)
        assert pool.call("Housed.total").result()[1] == total(times=3.0)
        assert settled(lambda: [blob.version for blob in residents(ledger)] == ["2"])
    assert ledger.runs("fills") == ["0-1:1", "0-3:2"]


def test_another_layout_needs_another_version(ledger: Ledger) -> None:
    """The device stops with a typed error, and goes on once the conflicting memory was freed."""
    with ledger.start(HOUSED, **RESTARTING) as pool:
        want(ledger, rows=32)
        pool.restart(0)
        stopped = wait_state(pool, DeviceState.STOPPED)
        assert stopped.error is not None
        assert stopped.error.code == errors.ResidentMismatch.code
        assert "atomr-mp resident free weights" in stopped.reason
        assert ledger.runs("refused") == ["0-2:resident_mismatch"]
        with OperatorSession(ledger.run_dir() / "session.sock") as observer:
            assert [blob.name for blob in observer.free_resident("weights")] == ["weights"]
        pool.restart(0)
        wait_generation(pool, 3)
        assert pool.call("Housed.total").result()[1] == total(32)


def test_more_than_the_quota_is_refused_before_it_is_made(ledger: Ledger) -> None:
    """The typed error says how much is taken."""
    with pytest.raises(errors.SetupFailed, match="resident_max_bytes"):
        ledger.start(HOUSED, resident_max_bytes=BLOB_BYTES - 1, max_restarts=0)
    assert ledger.runs("refused") == ["0-1:out_of_memory"]
    assert ledger.runs("fills") == []


def test_a_limit_that_a_reload_raises_holds_for_its_workers(ledger: Ledger) -> None:
    """The new version is filled beside the old one, which left no room before."""
    file = ledger.path / "pool.toml"
    file.write_text(f"resident_max_bytes = {BLOB_BYTES}")
    with ledger.start(HOUSED, config=file) as pool:
        want(ledger, version="2")
        file.write_text(f"resident_max_bytes = {2 * BLOB_BYTES}")
        assert pool.reload() == []
        assert pool.call("Housed.total").result()[1] == total()
        assert [blob.version for blob in residents(ledger)] == ["2"]


@on_host
def test_what_is_freed_is_given_back(ledger: Ledger) -> None:
    """Unused memory goes at once. Used memory needs force, and goes with its last user."""
    with ledger.start(HOUSED, **RESTARTING) as pool, OperatorSession(pool.run_dir / "session.sock") as observer:
        worker = pool.devices[0].pid
        supervisor = pool.status().supervisor_pid
        assert held(ledger) == {worker, supervisor}
        with pytest.raises(errors.InvalidRequest, match="in use by device 0 generation 1"):
            observer.free_resident("weights")
        observer.free_resident("weights", force=True)
        assert held(ledger) == {worker}
        assert [blob.state for blob in observer.residents().residents] == ["freed"]
        assert pool.call("Housed.total").result()[1] == total()
        want(ledger, version="2")
        pool.restart(0)
        wait_generation(pool, 2)
        assert held(ledger) == {pool.devices[0].pid, supervisor}
        assert [(blob.version, blob.state) for blob in observer.residents().residents] == [("2", "sealed")]
        assert pool.status().resident_bytes == BLOB_BYTES
    assert held(ledger) == set()
