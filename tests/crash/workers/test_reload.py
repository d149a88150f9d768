"""Reloads: new code and new settings, device by device, unnoticed; and failed reloads."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator import doctor
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.messages.devices import DeviceState
from tests.support import (
    BACKEND,
    DEADLINE_S,
    Ledger,
    needs_devices,
    running,
    settled,
    standby_of,
    wait_generation,
    wait_state,
)

ACTOR = """
from atomr_mp_workers import Actor, Context, method
class Versioned(Actor):
    def setup(self, context: Context) -> None:
        {setup}
    @method
    def version(self) -> str:
        return {version!r}
"""


ARRIVE = "open('{gate}.here', 'a').write('1\\n'); open('{gate}.go', 'rb', buffering=0).read(1)"


class Versions:
    """An actor's file with several versions."""

    def __init__(self, ledger: Ledger) -> None:
        self.path = ledger.path / "versioned.py"
        self.target = f"{self.path}:Versioned"

    def write(self, version: str, setup: str = "pass") -> None:
        """Write the file anew."""
        self.path.write_text(ACTOR.format(version=version, setup=setup))


@pytest.fixture
def versions(ledger: Ledger) -> Versions:
    """The first version."""
    made = Versions(ledger)
    made.write("first")
    return made


def events(run_dir: Path, name: str) -> list[dict[str, Any]]:
    """Return a pool's events of a kind."""
    return [event for event in read_events(run_dir / "events.jsonl") if event["event"] == name]


def test_a_save_of_the_same_length_in_the_same_second_is_loaded(
    ledger: Ledger, versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself would take the bytecode of the earlier text."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    second = (int(time.time()) + 10) * 10**9  # not the present one, which could end amid the test
    os.utime(versions.path, ns=(second, second))
    with ledger.start(versions.target) as pool:
        assert pool.call("Versioned.version").result(DEADLINE_S) == "first"
        versions.write("other")
        os.utime(versions.path, ns=(second, second + 10**8))
        pool.reload()
        assert pool.call("Versioned.version").result(DEADLINE_S) == "other"


def test_a_reload_under_load_is_not_noticed(ledger: Ledger, versions: Versions) -> None:
    """Every call is answered, by one version or the other; in the end all devices have the second."""
    with ledger.start(versions.target, gpus=2) as pool:
        answers: list[str] = []
        go_on = threading.Event()
        go_on.set()

        def use() -> None:
            while go_on.is_set():
                replies = [pool.call("Versioned.version") for _ in range(10)]
                answers.extend(str(reply.exception() or reply.result()) for reply in replies)

        thread = threading.Thread(target=use)
        thread.start()
        try:
            assert settled(lambda: "first" in answers)
            versions.write("the second")
            assert pool.reload() == []
            assert settled(lambda: "the second" in answers)  # at the latest the next call's
        finally:
            go_on.clear()
            thread.join()
        assert set(answers) == {"first", "the second"}
        for device in range(2):
            wait_generation(pool, 2, device)
            assert pool.call("Versioned.version", device=device).result() == "the second"
            assert pool.devices[device].restarts == 0


def test_code_that_cannot_be_imported_takes_nothing_down(ledger: Ledger, versions: Versions) -> None:
    """It is imported beside the workers that run, which go on; the error is the command's."""
    with ledger.start(versions.target, gpus=2) as pool:
        before = pool.devices
        for code, why in (
            ("class Versioned(:\n", r"nothing was reloaded: .*SyntaxError"),
            ("raise SystemExit('as a program does')", "nothing was reloaded: .*SystemExit: as a program does"),
            ("import os; os._exit(3)", r"ended with status 3"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", r"ended with status -11"),
        ):
            versions.path.write_text(code)
            with pytest.raises(errors.ActorLoadFailed, match=why):
                pool.reload()
            assert pool.call("Versioned.version").result() == "first"
        assert pool.devices == before
        assert len(events(pool.run_dir, "reload_failed")) == 4
        versions.write("repaired")
        assert pool.reload() == []
        assert pool.call("Versioned.version").result() == "repaired"


def test_code_that_is_not_imported_in_time_is_given_up(ledger: Ledger, versions: Versions) -> None:
    """The process that imports it ends; the workers go on."""
    config = ledger.path / "pool.toml"
    config.write_text(f"actors = ['{versions.target}']\nbackend = '{BACKEND}'\n")
    with (
        ledger.gate("gate") as gate,
        atomr_mp.start(config=config, gpus=1, run_dir=ledger.run_dir()) as pool,
    ):
        config.write_text(config.read_text() + "start_timeout_s = 0.5\n")
        versions.path.write_text(ARRIVE.format(gate=gate.path))
        with pytest.raises(errors.ActorLoadFailed, match=r"not imported within 0\.5 s"):
            pool.reload()
        assert pool.devices[0].generation == 1
        assert pool.call("Versioned.version").result() == "first"


def test_with_a_standby_a_version_that_does_not_start_takes_nothing_down(ledger: Ledger, versions: Versions) -> None:
    """It is set up beside the worker that runs, which goes on; the error is the command's."""
    with ledger.start(versions.target, gpus=2, standby="hot") as pool:
        before = [(device.generation, device.pid, device.restarts) for device in pool.devices]
        for setup, why in (
            (
                "raise ValueError('no such weights')",
                r"before device 0, .*such weights; .* keeps its old worker; 1 other device keeps",
            ),
            ("import os; os._exit(3)", r"stopped before device 0, .*exited with status 3"),
        ):
            versions.write("broken", setup)
            with pytest.raises(errors.SetupFailed, match=why):
                pool.reload()
            assert pool.call("Versioned.version").result() == "first"
        assert [(device.generation, device.pid, device.restarts) for device in pool.devices] == before
        versions.write("repaired")
        assert pool.reload() == []
        for device in range(2):
            assert pool.call("Versioned.version", device=device).result() == "repaired"
            ended = pool.devices[device]
            os.kill(ended.pid, signal.SIGKILL)
            wait_generation(pool, ended.generation + 1, device)
            assert pool.call("Versioned.version", device=device).result() == "repaired"


def test_a_worker_that_dies_while_the_next_is_set_up_is_followed_by_that(ledger: Ledger, versions: Versions) -> None:
    """The reload goes on with the next worker that was being set up, unless that ends too."""
    with (
        ledger.start(versions.target, gpus=1, standby="hot") as pool,
        ledger.gate("gate") as gate,
        ledger.gate("other") as other,
    ):
        assert settled(lambda: standby_of(pool).state == "ready")
        versions.write("slow", setup=ARRIVE.format(gate=gate.path))
        with concurrent.futures.ThreadPoolExecutor() as threads:
            reload = threads.submit(pool.reload)
            gate.wait()
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_state(pool, DeviceState.STARTING)
            gate.open(10)
            reload.result(DEADLINE_S)
            assert pool.call("Versioned.version").result() == "slow"
            assert settled(lambda: standby_of(pool).state == "ready")  # it has read the file
            versions.write("bad", setup=ARRIVE.format(gate=other.path) + "; raise RuntimeError('not this one')")
            reload = threads.submit(pool.reload)
            other.wait()
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_state(pool, DeviceState.STARTING)
            other.open(10)
            assert "not this one" in str(reload.exception(DEADLINE_S))


def test_a_version_that_does_not_start_stops_the_reload(ledger: Ledger, versions: Versions) -> None:
    """The error is the new worker's, and says how far it came. Operators see it until a reload succeeds."""
    begun = time.time()
    with ledger.start(versions.target, gpus=2, max_restarts=1, give_up=True) as pool:
        versions.write("broken", setup="raise ValueError('no such weights')")
        with pytest.raises(errors.SetupFailed, match=r"stopped at device 0, .*weights; .*; 1 other device keeps"):
            pool.reload()
        wait_state(pool, DeviceState.STOPPED)
        assert pool.devices[1].generation == 1
        assert pool.call("Versioned.version", device=1).result() == "first"
        told = events(pool.run_dir, "reload_failed")[0]["text"]
        assert "no such weights" in told
        assert ("is stopped and has no worker" in told) or ("its next worker loads what is there then" in told)
        assert (pool.status().reload_failed, (pool.status().reload_failed_at or 0) > begun) == (told, True)
        findings = doctor.examine(pool.run_dir, 0.0)[1]
        assert [each.what for each in findings if each.kind == "reload"] == [f"the last reload failed: {told}"]
        versions.write("broken otherwise", setup="import os; kept = b'x' * 2**28; os._exit(3)")
        with pytest.raises(errors.SetupFailed, match="status 3"):  # not as its last worker before that
            pool.reload()
        wait_state(pool, DeviceState.STOPPED)
        versions.write("repaired")
        assert pool.reload() == []
        assert (pool.status().reload_failed, pool.status().reload_failed_at) == ("", None)
        for device in range(2):
            wait_state(pool, DeviceState.READY, device)
            assert pool.call("Versioned.version", device=device).result() == "repaired"


def test_a_reload_starts_workers_and_standbys_anew(ledger: Ledger, versions: Versions) -> None:
    """A standby has the old code: it makes room for one that has the new, which takes over."""
    with ledger.start(versions.target, gpus=1, standby="hot") as pool:

        def standby() -> int:
            told = standby_of(pool)
            assert told.restarts == 0
            return (told.state == "ready" and told.generation) or 0

        assert settled(lambda: standby() == 2)
        versions.write("the second")
        assert pool.reload() == []
        wait_generation(pool, 3)
        assert pool.call("Versioned.version").result() == "the second"
        assert settled(lambda: standby() == 4)
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 4)
        assert pool.call("Versioned.version").result() == "the second"
        assert not events(pool.run_dir, "standby_end")
        # It is written down after the clients were told.
        assert settled(lambda: [event["generation"] for event in events(pool.run_dir, "promoted")] == [3, 4])


def test_settings_are_read_again(ledger: Ledger, versions: Versions) -> None:
    """By SIGHUP too; unchangeable settings are named; an invalid file changes nothing, and is reported."""
    config = ledger.path / "pool.toml"
    config.write_text(f"actors = ['{versions.target}']\nmax_restarts = 3\nbackend = '{BACKEND}'\n")
    run_dir = ledger.run_dir()
    with atomr_mp.start(config=config, gpus=1, run_dir=run_dir) as pool:
        config.write_text(f"actors = ['Other={versions.target}']\nmax_restarts = 0\nwindow_requests = 7\n")
        assert pool.reload() == ["window_requests"]
        wait_generation(pool, 2)
        assert pool.methods == ["Other.version"]
        config.write_text("actors = 3\n")
        with pytest.raises(errors.ConfigurationError, match=r"nothing was reloaded.*pool\.toml"):
            pool.reload()
        assert pool.devices[0].generation == 2
        config.write_text(f"actors = ['{versions.target}']\nmax_restarts = 0\ngive_up = true\n")
        os.kill(pool.supervisor_pid, signal.SIGHUP)
        wait_generation(pool, 3)
        assert settled(lambda: len(events(run_dir, "reload_end")) == 2)
        assert pool.call("Versioned.version").result() == "first"
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_state(pool, DeviceState.STOPPED)  # the new settings hold


def test_settings_that_do_not_start_are_put_back(ledger: Ledger, versions: Versions) -> None:
    """Replaced modules come back as they were before."""
    other = Versions(ledger)
    other.path, other.target = ledger.path / "other.py", f"{ledger.path}/other.py:Versioned"
    other.write("never", setup="raise ValueError('no such weights')")
    config = ledger.path / "pool.toml"
    config.write_text(f"actors = ['{versions.target}']\nbackend = '{BACKEND}'\n")
    with atomr_mp.start(config=config, gpus=1, run_dir=ledger.run_dir()) as pool:
        config.write_text(f"actors = ['{other.target}']\nbackend = '{BACKEND}'\n")
        with pytest.raises(errors.SetupFailed, match="no such weights"):
            pool.reload()
        assert wait_generation(pool, 3).generation == 3
        assert pool.call("Versioned.version").result() == "first"


def test_orders_during_a_reload_are_done_after_it(ledger: Ledger, versions: Versions) -> None:
    """All of them by one further reload: it loads what has changed meanwhile, whichever device the first was at."""
    needs_devices(2)
    config = ledger.path / "pool.toml"
    config.write_text(f"actors = ['{versions.target}']\nbackend = '{BACKEND}'\n")
    with (
        atomr_mp.start(config=config, gpus=2, run_dir=ledger.run_dir()) as pool,
        concurrent.futures.ThreadPoolExecutor(4) as ordering,
        ledger.gate("gate") as gate,
    ):
        versions.write("slow", setup=ARRIVE.format(gate=gate.path))
        orders = [ordering.submit(pool.reload, DEADLINE_S)]
        gate.wait()  # the first device's new worker has the second version
        versions.write("the last")
        orders += [ordering.submit(pool.reload, DEADLINE_S) for _ in range(3)]
        assert settled(lambda: len(events(pool.run_dir, "reload_waits")) == 1)
        for _ in range(3):
            os.kill(pool.supervisor_pid, signal.SIGHUP)
        gate.open(2)
        assert [order.result(DEADLINE_S) for order in orders] == [[]] * 4
        assert settled(lambda: len(events(pool.run_dir, "reload_end")) == len(events(pool.run_dir, "reload_start")))
        assert len(events(pool.run_dir, "reload_start")) <= 3  # a signal may come when the orders are being done
        for device in range(2):
            assert pool.call("Versioned.version", device=device).result() == "the last"


def test_orders_that_wait_for_a_reload_end_with_the_pool(ledger: Ledger, versions: Versions) -> None:
    """No caller waits for a reload that never comes."""
    with (
        ledger.start(versions.target, gpus=1) as pool,
        concurrent.futures.ThreadPoolExecutor(2) as ordering,
        ledger.gate("gate") as gate,
    ):
        versions.write("slow", setup=ARRIVE.format(gate=gate.path))
        orders = [ordering.submit(pool.reload, DEADLINE_S)]
        gate.wait()
        orders.append(ordering.submit(pool.reload, DEADLINE_S))
        assert settled(lambda: len(events(pool.run_dir, "reload_waits")) == 1)
        os.kill(pool.supervisor_pid, signal.SIGTERM)
        for order in orders:
            assert isinstance(order.exception(DEADLINE_S), errors.PoolLost)
        gate.open()


def test_orders_that_a_start_meets_do_not_begin_it_anew(ledger: Ledger, versions: Versions) -> None:
    """Restarts by several while a worker starts are all met by it; a reload, which wants new code, is not."""
    with ledger.gate("gate") as gate:
        versions.write("first", ARRIVE.format(gate=gate.path))
        gate.open()
        with ledger.start(versions.target) as pool:
            gate.wait()
            pool.restart(0)
            gate.wait()
            command = [sys.executable, "-m", "atomr_mp", "restart", "0", "--run-dir", str(pool.run_dir)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ordered, running(ordered):
                for _ in range(5):
                    pool.restart(0)
                assert settled(lambda: _restarts(pool) == 7)
                gate.open()
                assert ordered.wait(DEADLINE_S) == 0
                assert ordered.stdout is not None
                assert "generation 2" in ordered.stdout.read()
            assert wait_generation(pool, 2).generation == 2
            pool.restart(0)
            gate.wait()
            assert pool.status().devices[0].state is DeviceState.STARTING
            versions.write("second")
            pool.reload(DEADLINE_S)
            assert pool.call("Versioned.version").result() == "second"
            assert pool.status().devices[0].restarts == 0


def _restarts(pool: atomr_mp.Pool) -> int:
    return sum(each["event"] == "restart" for each in read_events(pool.run_dir / "events.jsonl"))
