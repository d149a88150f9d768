"""Processes that live and do not run, as after SIGSTOP: every view of the pool tells it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import atomr_mp
from atomr_mp.operator.doctor import examine
from atomr_mp.process import cgroup
from atomr_mp.process.scheduling import standstill
from atomr_mp.serve.watch.snapshot import StatusSample, snapshot
from atomr_mp.supervision.standstill import judge
from tests.support import Ledger, running, settled, stopped

STOPPED = "its process is stopped by a signal (SIGSTOP); `kill -CONT {pid}` (SIGCONT) has it go on"


@contextlib.contextmanager
def halted(pid: int) -> Iterator[None]:
    """Have a process stand still, for certain; it goes on afterwards."""
    with stopped(pid):
        assert settled(lambda: standstill(pid) is not None)
        yield
    assert settled(lambda: standstill(pid) is None)


def test_a_stopped_worker_is_shown_until_it_goes_on(ledger: Ledger) -> None:
    """By `status`, the page and the doctor; the state of the pool and the exit status count it as not ready."""
    with ledger.start(gpus=2) as pool:
        pid = pool.devices[1].pid or 0
        with halted(pid):
            shown = pool.status()
            text = STOPPED.format(pid=pid)
            assert [(each.stands_still, each.reason) for each in shown.devices] == [(False, ""), (True, text)]
            assert shown.state == "degraded"
            page = snapshot(None, StatusSample(0.0, pool.figures()))
            assert (page["devices"][1]["still"], page["devices"][1]["reason"]) == (True, text)
            printed = command(pool, "status")
            assert printed.returncode == 1
            assert f"device 1 is ready: {text}" in printed.stdout
            assert "1 of 2 devices ready" in command(pool, "top", "--once").stdout
            [found] = [each for each in examine(pool.run_dir)[1] if each.state == "unwell"]
            assert (found.kind, found.pid) == ("process", pid)
            assert "worker of device 1 generation 1" in found.what
            assert f"`kill -CONT {pid}`" in found.remedy
            with halted(pool.devices[0].pid or 0):
                assert pool.status().state == "down"
        assert pool.status().state == "healthy"
        assert not [each for each in examine(pool.run_dir)[1] if each.state == "unwell"]


@pytest.mark.parametrize("standby", ["hot", "warm"])
def test_a_stopped_standby_or_zygote_is_noted(ledger: Ledger, standby: str) -> None:
    """The device takes calls, and the next fault would cost more."""

    def seen(pool: atomr_mp.Pool) -> tuple[str, str]:
        [device] = pool.status().devices
        assert device.standby is not None
        return device.standby.state, device.standby.note

    with ledger.start(standby=standby) as pool:
        assert settled(lambda: seen(pool)[0] == "ready")
        [before] = pool.status().devices
        assert before.standby is not None
        pid = before.standby.pid or 0
        with halted(pid):
            assert seen(pool)[1] == f"for the next worker: {STOPPED.format(pid=pid)}"
            [found] = [each for each in examine(pool.run_dir)[1] if each.state == "unwell"]
            assert found.pid == pid
            assert pool.status().state == "healthy"
        assert seen(pool)[1] == ""


def test_a_stranger_s_state_is_told_from_one_that_has_ended() -> None:
    """A process that runs, or has ended, does not stand still."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with running(process):
        assert standstill(process.pid) is None
        with halted(process.pid):
            found = standstill(process.pid)
            assert found is not None
            assert found.why == "stopped by a signal (SIGSTOP)"
    assert standstill(process.pid) is None


@pytest.mark.parametrize(
    ("events", "expected"), [("populated 1\nfrozen 1\n", True), ("populated 1\nfrozen 0\n", False)]
)
def test_a_process_is_frozen_as_its_cgroup_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: str, *, expected: bool
) -> None:
    """In version 2, where the process's own state does not show it."""
    monkeypatch.setattr(cgroup, "own_path", lambda _process: tmp_path)
    assert cgroup.frozen_path(os.getpid()) == "", "there is no such file"
    (tmp_path / "cgroup.events").write_text(events)
    assert cgroup.frozen_path(os.getpid()) == (str(tmp_path) if expected else "")
    found = judge(7, "S", cgroup.frozen_path(os.getpid()))
    assert (found is not None) is expected
    assert found is None or str(found).startswith(f"its process is frozen with its cgroup {tmp_path}; ")


def test_a_debugger_is_told_from_a_signal() -> None:
    """SIGCONT would not help."""
    found = judge(7, "t", "")
    assert found is not None
    assert "debugger" in str(found)


def command(pool: atomr_mp.Pool, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command on a pool."""
    whole = [sys.executable, "-m", "atomr_mp.cli", *words, "--run-dir", str(pool.run_dir)]
    return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=60)
