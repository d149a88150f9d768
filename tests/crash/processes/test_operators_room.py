"""Operators reach a pool that serves as many clients as it may."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import atomr_mp
from atomr_mp import cli, errors
from atomr_mp.client.handshake import greet
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.transport.session import SessionConnection
from tests.support import BACKEND, DEADLINE_S, PROBE, Ledger

LIMITED = 'ulimit -n "$1"; shift; exec "$@"'
COMMAND = (sys.executable, "-m", "atomr_mp")


def test_every_order_works_beside_as_many_sessions_as_there_may_be(ledger: Ledger) -> None:
    """The next session is refused, which says the limit; a call works, a worker is replaced, and the pool stops."""
    limit, run_dir = 256, ledger.run_dir()
    settings = ("--backend", BACKEND, "--gpus", "1", "--actor", PROBE, "--run-dir", str(run_dir))
    command = ["sh", "-c", LIMITED, "sh", str(limit), *COMMAND, "start", "--detach", *settings]
    subprocess.run(command, check=True, capture_output=True, timeout=2 * DEADLINE_S)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(atomr_mp.connect(run_dir=run_dir))
        refused = ""
        for _ in range(limit):
            connection = SessionConnection.connect(run_dir / "session.sock")
            stack.callback(connection.close)
            try:
                greet(connection, "one of many", observer=False)
            except errors.Overloaded as error:
                refused = error.message
                break
        assert f"{limit} open files" in refused
        assert "ulimit -n" in refused
        assert pool.call("Probe.echo", 1).result() == 1
        for order in ("status", "ready", "restart 0", "top --once --interval 0.1", "reload", "events"):
            done = subprocess.run(
                [*COMMAND, *order.split(), "--run-dir", str(run_dir)],
                capture_output=True,
                text=True,
                timeout=2 * DEADLINE_S,
                check=False,
            )
            assert done.returncode == 0, (order, done)
        assert pool.call("Probe.echo", 2).result() == 2
        subprocess.run([*COMMAND, "stop", "--run-dir", str(run_dir)], check=True, capture_output=True)


def test_a_pool_whose_supervisor_lives_is_never_said_to_be_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it cannot be reached, `status` says so, and why."""
    with RunDirectory.create(tmp_path / "run") as held:
        assert cli.main(["status", "--json", "--run-dir", str(held.path)]) == 3
        told = json.loads(capsys.readouterr().out)
        assert told["state"] == "unreachable"
        assert told["supervisor_pid"] == held.supervisor.pid
        assert "session.sock" in told["reason"]
        assert cli.main(["status", "--run-dir", str(held.path)]) == 3
        assert "is unreachable" in capsys.readouterr().out
    assert cli.main(["status", "--json", "--run-dir", str(held.path)]) == 2
