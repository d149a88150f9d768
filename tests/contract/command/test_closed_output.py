"""Standard input, output and error that are closed, or cannot be written, when a program of ours begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import BACKEND, DEADLINE_S, PROBE, Ledger

APPLICATION: Final = """
import sys, atomr_mp
with atomr_mp.start(actors=[sys.argv[1]], gpus=1, backend=sys.argv[2], run_dir=sys.argv[3]) as pool:
    sys.exit(40 + pool.call("Probe.echo", 2).result(60))
"""


def run(redirections: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program with redirections in the words of a shell."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)


@pytest.mark.parametrize("redirections", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_an_application_starts_a_pool_whatever_is_closed(ledger: Ledger, redirections: str) -> None:
    """No socket takes the place of standard error, in this process or the supervisor's."""
    done = run(redirections, sys.executable, "-c", APPLICATION, PROBE, BACKEND, ledger.run_dir())
    assert done.returncode == 42, done


@pytest.mark.parametrize("redirections", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_commands_do_their_work_whatever_is_closed(ledger: Ledger, redirections: str) -> None:
    """And say by their status that they did."""
    cli, where = (sys.executable, "-m", "atomr_mp.cli"), ("--run-dir", ledger.run_dir())
    begun = run(redirections, *cli, "start", "--detach", "--backend", BACKEND, "--gpus", "1", "--actor", PROBE, *where)
    assert begun.returncode == 0, begun
    for command in ("status", "stop"):
        done = run(redirections, *cli, command, *where)
        assert done.returncode == 0, done


def test_a_start_that_cannot_say_so_has_failed(ledger: Ledger) -> None:
    """It leaves nothing running, and says why in one line."""
    where = ("--run-dir", ledger.run_dir())
    begun = run(
        ">/dev/full", sys.executable, "-m", "atomr_mp.cli", "start", "--detach", "--backend", BACKEND, "--gpus", "1",
        "--actor", PROBE, *where,
    )  # fmt: skip
    assert begun.returncode == 1
    assert begun.stderr.splitlines()[-1].startswith("atomr-mp: ")
    assert "No space left" in begun.stderr
    with pytest.raises(errors.PoolUnreachable):
        atomr_mp.connect(run_dir=ledger.run_dir())
