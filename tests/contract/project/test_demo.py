from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Ledger

DEMO = Path(__file__).parents[3] / "scripts" / "demo.py"
RUN_S = 100.0
"""Longest that all of it may take: a pool's start, a restart and its end; 3 s, on a busy core ten times that."""


def test_demonstration_shows_what_it_promises(ledger: Ledger) -> None:
    """A small run ends well: every image read, the stated accuracy, one worker killed and back, no process left."""
    done = subprocess.run(
        [sys.executable, str(DEMO), "--repeat", "4", "--backend", "host"],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    told = " ".join(done.stdout.split())
    assert "1,797 images of handwritten digits, read 4 times: 7,188 requests" in told
    assert "kill -9" in told
    assert "killed by SIGKILL" in told
    assert "ready again, generation 2" in told
    assert "images read 7,188 of 7,188" in told
    assert "workers restarted 1" in told
    assert "failed 0" in told
    assert "processes left 0 of 4" in told
    assert done.stdout.splitlines()[-1].startswith("Proven: a worker was killed in the middle of 7,188 requests.")
    assert not ledger.processes()


def test_clients_over_http_see_no_error_while_workers_are_killed(ledger: Ledger) -> None:
    """Each answer is right, each worker's end costs no call, and nothing is left."""
    for module in ("httptools", "uvloop"):
        pytest.importorskip(module)
    done = subprocess.run(
        [sys.executable, str(DEMO.with_name("demo_http.py")), "--kills", "2", "--backend", "host"],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill -9") == 2
    assert " 0 failed" in done.stdout
    assert done.stdout.splitlines()[-1] == "Proven: 2 workers were killed under 4 HTTP clients, and no call failed."
    assert not ledger.processes()
