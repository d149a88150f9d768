"""Workers that are forked from a process which has imported what they need; and what is done where that cannot be."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol import process_tags
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.supervision.standby import MAX_FAILURES
from tests.support import (
    ACTORS,
    BACKEND,
    PROBE,
    Ledger,
    Watched,
    settled,
    standby_of,
    standby_pid,
    wait_generation,
    wait_state,
    wait_until,
)

STANDING: Final = f"{ACTORS}/standing.py:Standing"
FD_SETSIZE: Final = 1024
MANY: Final = 2 * FD_SETSIZE
WARM: Final[dict[str, Any]] = {"standby": "warm", "max_restarts": 1000, "backoff_initial_s": 0.05}


def process_of(pool: atomr_mp.Pool, device: int = 0) -> dict[str, Any]:
    """Return what a worker's process has of its own."""
    found: dict[str, Any] = pool.call("Standing.process", device=device).result()
    return found


def is_forked(process: dict[str, Any]) -> bool:
    """Return whether a worker was forked: it shows the zygote's command."""
    return "zygote" in process["command"]


def made_ahead(pool: atomr_mp.Pool) -> set[int]:
    """Return the pids of forked processes without a device; not of ended ones, which may not be reaped yet."""
    others = {standby_of(pool).pid, *(device.worker_pid for device in pool.devices)}
    return {each.pid for each in psutil.Process(pool.supervisor_pid).children() if is_ahead(each)} - others


def is_ahead(process: psutil.Process) -> bool:
    """Return whether a process was forked and has not ended; on a GPU there is one that was not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "atomr_mp_workers.boot.zygote" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def renewed(pool: atomr_mp.Pool, device: int, before: int) -> bool:
    """Return whether a device takes calls by another process than before."""
    now = pool.devices[device]
    return now.admitted and now.worker_pid != before


def events(ledger: Ledger) -> dict[str, str]:
    """Return the kinds of events that were logged, with the last text of each."""
    return {str(event["event"]): str(event["text"]) for event in read_events(ledger.run_dir() / "events.jsonl")}


def counted(ledger: Ledger, kind: str) -> int:
    """Return how many events of a kind were logged."""
    return sum(event["event"] == kind for event in read_events(ledger.run_dir() / "events.jsonl"))


def test_a_forked_worker_is_like_any_other(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent, group, environment, limits, output and descriptors are; and its random numbers are its own."""
    monkeypatch.setenv("ATOMR_MP_TEST_MARK", "\udcff")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    with ledger.start(STANDING, gpus=2, run_dir="cold", preload=["tests.actors.threaded"], **WARM) as pool:
        cold = process_of(pool)
    with ledger.start(STANDING, gpus=2, **WARM) as pool:
        one, other = process_of(pool), process_of(pool, 1)
        assert is_forked(one)
        assert is_forked(other)
        assert not is_forked(cold)
        assert one["parent"] == pool.supervisor_pid
        assert one["group"] == pool.devices[0].pid
        assert one["random"][0] != other["random"][0]
        assert one["random"][1] != other["random"][1]
        for fact in ("environment", "core", "threads"):
            assert one[fact] == cold[fact], fact
        assert len(one["open"]) == len(cold["open"])
        log = (ledger.run_dir() / "device-0.log").read_text()
        assert log.count("generation 1 speaks") == 1
        zygote = standby_of(pool)
        assert (zygote.mode, zygote.state, zygote.note) == ("warm", "ready", "")
        assert len(list(Path(f"/proc/{zygote.pid}/task").iterdir())) == 1
    assert events(ledger)["zygote_ready"].endswith("what they need")


@pytest.mark.parametrize("standby", ["none", "warm", "hot"])
def test_every_worker_is_forked_and_shown_as_what_it_is(ledger: Ledger, standby: str) -> None:
    """With any standby, first or later, on any device: by its title, and by its pool's mark in its environment."""
    with ledger.start(STANDING, gpus=2, **{**WARM, "standby": standby}) as pool:
        for generation in (1, 2):
            for device in (0, 1):
                process, pid = process_of(pool, device), pool.devices[device].pid
                assert is_forked(process)
                pool_name = pool.status().pool
                assert f"--title=atomr-mp {pool_name} device {device} generation" in process["command"]
                mark = f"{process_tags.RUN_DIR}={pool.run_dir}".encode()
                assert mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if generation == 1:
                    os.kill(pid, signal.SIGKILL)
                    wait_until(pool, functools.partial(renewed, pool, device, pid))
    assert "cold_start" not in events(ledger)


@pytest.mark.parametrize("how", ["kill", "exit", "segv"])
def test_a_lost_worker_is_forked_anew(ledger: Ledger, how: str) -> None:
    """This works as often as needed."""
    with ledger.start(PROBE, STANDING, **WARM) as pool:
        for generation in range(1, 4):
            assert pool.call("Standing.where").result()[1] == generation
            assert isinstance(pool.call("Probe.fail", how).exception(), errors.WorkerLost)
            assert is_forked(process_of(pool))
        assert standby_of(pool).restarts == 0


def test_the_next_worker_is_forked_ahead(ledger: Ledger) -> None:
    """It waits to hear what it has to become."""
    with ledger.start(STANDING, gpus=2, **WARM) as pool:
        assert settled(lambda: len(made_ahead(pool)) == 2)
        ahead = made_ahead(pool)
        for device in (0, 1):
            os.kill(pool.devices[device].pid, signal.SIGKILL)
            wait_generation(pool, 2, device)
        assert {device.pid for device in pool.devices} == ahead
        assert settled(lambda: len(made_ahead(pool)) == 2)
        assert pool.status().devices[0].restarts == 1


def test_nothing_is_ahead_for_a_device_that_is_not_started_again(ledger: Ledger) -> None:
    """It might have the device's driver open; the other device keeps what it has, and an operator starts all anew."""
    with ledger.start(STANDING, gpus=2, **{**WARM, "max_restarts": 0, "give_up": True}) as pool:
        assert settled(lambda: len(made_ahead(pool)) == 2)
        ahead = made_ahead(pool)
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_state(pool, DeviceState.STOPPED)
        assert settled(lambda: len(made_ahead(pool)) == 1)
        assert made_ahead(pool) < ahead
        pool.restart(0)
        wait_generation(pool, 2)
        assert settled(lambda: len(made_ahead(pool)) == 2)


def test_what_was_forked_ahead_and_ends_is_replaced_but_not_for_ever(ledger: Ledger) -> None:
    """Such an end is no fault, and costs nothing. A worker that is needed then is forked at that time."""
    with ledger.start(STANDING, **WARM) as pool:
        for _ in range(MAX_FAILURES):
            assert settled(lambda: len(made_ahead(pool)) == 1)
            (ahead,) = made_ahead(pool)
            with Watched([ahead]) as watched:
                os.kill(ahead, signal.SIGKILL)
                assert watched.left() == []
        assert pool.call("Standing.where").result()[1] == 1
        assert made_ahead(pool) == set()
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 2)
        assert is_forked(process_of(pool))


def test_a_killed_zygote_is_replaced_quietly(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its children go on; who is needed meanwhile, but for the first, is started cold, and that is said."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ledger.path), os.environ.get("PYTHONPATH", "")]))
    with ledger.gate("imports") as imports:
        module = ledger.path / "waiting_preload.py"
        module.write_text(f"from tests.actors.probe import arrive\narrive({imports.path!r})\n")
        imports.open()
        with ledger.start(STANDING, preload=["waiting_preload"], **WARM) as pool:
            (before,) = imports.wait()
            assert standby_of(pool).pid == before
            assert settled(lambda: len(made_ahead(pool)) == 1)
            worker = pool.devices[0].pid
            os.kill(before, signal.SIGKILL)
            imports.wait()  # the next has begun, and forks nothing before it is let go
            assert pool.call("Standing.where").result() == [worker, 1]
            os.kill(worker, signal.SIGKILL)
            wait_generation(pool, 2)
            assert is_forked(process_of(pool))
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, 3)
            assert not is_forked(process_of(pool))
            imports.open()
            assert settled(lambda: standby_of(pool).state == "ready" and standby_of(pool).pid not in {None, before})
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, 4)
            assert is_forked(process_of(pool))
            assert standby_of(pool).restarts == 1
    assert "killed by signal 9" in events(ledger)["zygote_end"]
    assert "a fresh interpreter is started" in events(ledger)["cold_start"]


@pytest.mark.parametrize("standby", ["none", "hot"])
def test_a_killed_zygote_of_any_pool_is_replaced(ledger: Ledger, standby: str) -> None:
    """Its worker goes on, and the one after the next zygote is forked again."""
    with ledger.start(STANDING, gpus=1, **{**WARM, "standby": standby}) as pool:
        with OperatorSession(pool.run_dir / "session.sock") as asking:
            (zygote,) = (held.pid for held in asking.inventory().processes if held.role == "zygote")
        os.kill(zygote, signal.SIGKILL)
        assert pool.call("Standing.where").result()[1] == 1
        assert settled(lambda: counted(ledger, "zygote_ready") == 2)
        worker = pool.devices[0].pid
        os.kill(worker, signal.SIGKILL)
        wait_until(pool, functools.partial(renewed, pool, 0, worker))
        assert is_forked(process_of(pool))


def test_a_zygote_is_asked_whatever_the_number_of_its_channel(ledger: Ledger) -> None:
    """With a thousand sessions the number is above what select(2) can take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY:
        pytest.skip(f"needs {MANY} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY), hard))
    try:
        with ledger.start(STANDING, **WARM | {"backoff_initial_s": 6.0}) as pool, contextlib.ExitStack() as stack:
            assert settled(lambda: len(made_ahead(pool)) == 1)
            for _ in range(FD_SETSIZE):
                stack.enter_context(OperatorSession(pool.run_dir / "session.sock"))
            os.kill(standby_pid(pool), signal.SIGKILL)
            assert settled(lambda: standby_of(pool).pid is None)
            for _ in range(8):  # what the zygote had is theirs
                stack.enter_context(OperatorSession(pool.run_dir / "session.sock"))
            assert standby_of(pool).pid is None
            assert settled(lambda: standby_of(pool).state == "ready")
            for generation in (2, 3):
                os.kill(pool.devices[0].pid, signal.SIGKILL)
                wait_generation(pool, generation)
                assert is_forked(process_of(pool))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_zygote_with_a_thread_refuses_and_workers_are_started_cold(ledger: Ledger) -> None:
    """`status` and the event log say so, and why."""
    with ledger.start(STANDING, preload=["tests.actors.threaded"], **WARM) as pool:
        assert not is_forked(process_of(pool))
        zygote = standby_of(pool)
        assert zygote.state == "failed"
        assert "2 threads" in zygote.note
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 2)
        assert not is_forked(process_of(pool))
    assert "2 threads" in events(ledger)["cold_start"]


def test_what_cannot_be_imported_beforehand_is_told(ledger: Ledger) -> None:
    """Workers are forked all the same."""
    with ledger.start(STANDING, preload=["nonexistent.module", "json"], **WARM) as pool:
        assert is_forked(process_of(pool))
    assert "nonexistent.module: ModuleNotFoundError" in events(ledger)["zygote_ready"]


def test_a_module_that_ends_the_zygote_leaves_cold_starts(ledger: Ledger) -> None:
    """The pool starts without it, and it is not tried without end."""
    with ledger.start(STANDING, preload=["tests.actors.leaving"], **WARM) as pool:
        assert not is_forked(process_of(pool))
        assert settled(lambda: standby_of(pool).state == "failed")
        assert "3 have ended in a row" in standby_of(pool).note
        assert "exited with status 7" in standby_of(pool).note


def test_a_reload_imports_anew_what_is_preloaded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """And waits for it: no worker is started cold."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ledger.path), os.environ.get("PYTHONPATH", "")]))
    weights = ledger.path / "preloaded_weights.py"
    weights.write_text("VERSION = 'first'\n")
    actor = ledger.path / "weighing.py"
    actor.write_text(
        "import preloaded_weights\n"
        "from atomr_mp_workers import Actor, method\n"
        "class Weighing(Actor):\n"
        "    @method\n"
        "    def version(self) -> str:\n"
        "        return preloaded_weights.VERSION\n"
    )
    with ledger.start(f"{actor}:Weighing", preload=["preloaded_weights"], **WARM) as pool:
        before = standby_of(pool).pid
        assert pool.call("Weighing.version").result() == "first"
        weights.write_text("VERSION = 'the second'\n")
        assert pool.reload() == []
        wait_generation(pool, 2)
        assert pool.call("Weighing.version").result() == "the second"
        assert standby_of(pool).pid != before
        assert standby_of(pool).restarts == 0
    assert "cold_start" not in events(ledger)


def test_a_stop_ends_the_zygote(ledger: Ledger) -> None:
    """The workers are torn down first."""
    pool = ledger.start(STANDING, **WARM)
    assert settled(lambda: len(made_ahead(pool)) == 1)
    with Watched([standby_pid(pool), pool.devices[0].pid, *made_ahead(pool)]) as watched:
        pool.close()
        assert watched.left() == []
    assert ledger.runs("teardowns") == ["0-1"]


@pytest.mark.skipif(BACKEND != "host", reason="what imports CUDA is said by the backend's own tests")
def test_the_zygote_imports_what_workers_need(ledger: Ledger) -> None:
    """It imports no actor's module, and no CUDA."""
    with ledger.start(STANDING, **WARM) as pool:
        mapped = Path(f"/proc/{standby_of(pool).pid}/maps").read_text()
        assert "numpy" in mapped
        assert "libcuda" not in mapped
