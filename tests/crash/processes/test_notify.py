"""Notifications to systemd, whose place a socket of the test takes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from atomr_mp import testing
from atomr_mp.process.notify import Notifier
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger, needs_devices


class Manager:
    """Takes systemd's place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(DEADLINE_S)

    def hear(self) -> list[str]:
        """Return the lines of the next message."""
        return self.socket.recv(4096).decode().splitlines()

    def hear_until(self, line: str) -> list[str]:
        """Return all lines that come, up to the message with this one."""
        heard: list[str] = []
        while line not in heard:
            heard += self.hear()
        return heard


@pytest.fixture
def manager(ledger: Ledger) -> Iterator[Manager]:
    """A service manager."""
    made = Manager(ledger.path / "notify")
    yield made
    made.socket.close()


def start(
    ledger: Ledger, manager: Manager, *options: str, watchdog_s: float = 0, variables: Mapping[str, str] = {}
) -> subprocess.Popen[bytes]:
    """Start a pool as a service."""
    environment = {**os.environ, "NOTIFY_SOCKET": str(manager.path), **variables}
    if watchdog_s:
        environment["WATCHDOG_USEC"] = f"{watchdog_s * 1e6:.0f}"
    command = [sys.executable, "-m", "atomr_mp.cli", "start", "--backend", BACKEND, "--run-dir", str(ledger.run_dir())]
    return subprocess.Popen(
        [*command, *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_a_service_is_up_when_all_devices_are_and_says_when_it_stops(ledger: Ledger, manager: Manager) -> None:
    """Its workers cannot speak for it; a signal ends it in order."""
    needs_devices(2)
    with start(ledger, manager, "--gpus", "2") as service:
        heard = manager.hear_until("READY=1")
        assert heard[-1] == "READY=1" or heard[-2:] == ["READY=1", "STATUS=2 of 2 devices ready"]
        assert "STATUS=1 of 2 devices ready" in heard
        for pid in ledger.processes():
            if pid != service.pid:
                assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
        service.send_signal(signal.SIGTERM)
        assert "STOPPING=1" in manager.hear_until("STOPPING=1")
        assert service.wait(DEADLINE_S) == 0


def test_a_reload_is_told_from_its_beginning_to_its_end(ledger: Ledger, manager: Manager) -> None:
    """SIGHUP asks for it, as `systemctl reload` does."""
    config = ledger.path / "pool.toml"
    config.write_text("gpus = '1'\n")
    with start(ledger, manager, "--config", str(config)) as service:
        manager.hear_until("READY=1")
        service.send_signal(signal.SIGHUP)
        heard = manager.hear_until("RELOADING=1")
        assert heard[-1].startswith("MONOTONIC_USEC=")
        assert "READY=1" not in heard
        assert "STATUS=1 of 1 device ready" in manager.hear_until("READY=1")
        service.send_signal(signal.SIGTERM)
        assert service.wait(DEADLINE_S) == 0


def test_the_watchdog_is_fed_while_the_loop_turns(ledger: Ledger, manager: Manager) -> None:
    """A supervisor that hangs feeds it no more."""
    with start(ledger, manager, "--gpus", "1", watchdog_s=0.2) as service:
        manager.hear_until("READY=1")
        for _ in range(3):
            manager.hear_until("WATCHDOG=1")
        service.send_signal(signal.SIGSTOP)
        manager.socket.settimeout(1.0)
        with pytest.raises(TimeoutError):
            manager.hear_until("never said")
        service.send_signal(signal.SIGCONT)
        manager.socket.settimeout(DEADLINE_S)
        manager.hear_until("WATCHDOG=1")
        service.send_signal(signal.SIGTERM)
        assert service.wait(DEADLINE_S) == 0


def test_one_broken_device_does_not_keep_a_service_down(ledger: Ledger, manager: Manager) -> None:
    """It is up with the others, and says how many they are."""
    config = ledger.path / "pool.toml"
    needs_devices(2)
    config.write_text(f"gpus = '2'\nmax_restarts = 0\nactors = ['{ACTORS}/probe.py:Probe']\n")
    with testing.Faults() as faults:
        faults.declare([testing.At("setup", testing.Exit())])
        with start(ledger, manager, "--config", str(config), variables=faults.environment) as service:
            assert "STATUS=1 of 2 devices ready" in manager.hear_until("READY=1")
            service.send_signal(signal.SIGTERM)
            assert service.wait(DEADLINE_S) == 0


def test_without_a_manager_nothing_is_said(tmp_path: Path) -> None:
    """A manager that has gone causes no error; abstract addresses work."""
    Notifier({}).ready("well")
    gone = {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "PATH": "/bin"}
    notifier = Notifier(gone)
    notifier.stopping()
    assert gone == {"PATH": "/bin"}
    assert notifier.watchdog_s == 0, "it watches another process"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind(f"\0atomr-mp-test-{os.getpid()}")
        abstract.settimeout(DEADLINE_S)
        Notifier({"NOTIFY_SOCKET": f"@atomr-mp-test-{os.getpid()}"}).ready("well")
        assert abstract.recv(100) == b"READY=1\nSTATUS=well"
