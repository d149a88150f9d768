from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atomr_mp.process.files.rundir import RunDirectory
from tests.support import DEADLINE_S, Ledger, settled

CLI = (sys.executable, "-m", "atomr_mp.cli")


@pytest.fixture
def user(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for runtime files of the test's own, as a user has one."""
    path = ledger.path / "user"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    return path


def cli(*arguments: str | Path) -> str:
    """Run a command that succeeds; return its output."""
    done = subprocess.run(
        [*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(*where: str | Path) -> None:
    """Start a pool of one device."""
    cli("start", "--detach", "--backend", "host", "--gpus", "1", *where)


def pools(below: Path) -> dict[str, dict[str, Any]]:
    """Return what `pools --json` says of the pools below a directory, by run directory; others may run here."""
    found: list[dict[str, Any]] = json.loads(cli("pools", "--json"))
    return {pool["run_dir"]: pool for pool in found if pool["run_dir"].startswith(str(below))}


def test_pools_are_found_wherever_they_run_until_they_end_in_order(ledger: Ledger, user: Path) -> None:
    """Under the default directory by their files, elsewhere by their workers; each with what it says of itself."""
    elsewhere = ledger.run_dir("elsewhere")
    assert pools(ledger.path) == {}
    start("--pool", "one")
    start("--pool", "two", "--run-dir", elsewhere)
    default = user / "atomr-mp" / "one"
    found = pools(ledger.path)
    assert {path: pool["pool"] for path, pool in found.items()} == {str(default): "one", str(elsewhere): "two"}
    for path, pool in found.items():
        assert (pool["state"], pool["reachable"], pool["reason"]) == ("healthy", True, "")
        assert pool["supervisor_pid"] == RunDirectory.open(Path(path)).supervisor.pid
        assert [device["state"] for device in pool["devices"]] == ["ready"]
        assert pool["clients"] == 0
        assert pool["since"] <= Path(path, "lock").stat().st_mtime + 60
    table = cli("pools").splitlines()
    assert [line.split()[:4] for line in table if line.endswith(str(default))] == [["one", "healthy", "1", "of"]]
    cli("stop", "--pool", "one")
    cli("stop", "--run-dir", elsewhere)
    assert pools(ledger.path) == {}


def test_pools_that_do_not_answer_and_what_killed_ones_left_are_told_apart(ledger: Ledger, user: Path) -> None:
    """The line says what to do; a pool that stands still does not hide the others."""
    start("--pool", "still")
    start("--pool", "killed")
    still, killed = (RunDirectory.open(user / "atomr-mp" / name) for name in ("still", "killed"))
    os.kill(killed.supervisor.pid, signal.SIGKILL)
    assert settled(lambda: not killed.supervisor.alive())
    os.kill(still.supervisor.pid, signal.SIGSTOP)
    try:
        found = pools(ledger.path)
        table = cli("pools")
    finally:
        os.kill(still.supervisor.pid, signal.SIGCONT)
    of_still, of_killed = found[str(still.path)], found[str(killed.path)]
    assert (of_still["state"], of_still["reachable"]) == ("unreachable", False)
    assert f"(pid {still.supervisor.pid}) does not answer: its process is stopped by a signal" in of_still["reason"]
    assert of_still["supervisor_pid"] == still.supervisor.pid
    assert (of_killed["state"], of_killed["reachable"]) == ("stale", False)
    assert "the next start there cleans up" in of_killed["reason"]
    for pool in (of_still, of_killed):
        assert f"pool {pool['pool']} is {pool['state']}: {pool['reason']}\n" in table
    cli("stop", "--pool", "still")
