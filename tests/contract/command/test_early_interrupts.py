"""Ctrl-C while the command, or the supervisor that it becomes, imports its modules: an end without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support import BACKEND, DEADLINE_S, PROBE, Ledger

HOOK: Final = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == os.environ.get("INTERRUPT_AT"):
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""

INTERRUPTED: Final = 130


def interrupted(folder: Path, at: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command, with a SIGINT at the import of a module."""
    (folder / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "atomr_mp", *arguments],
        env=os.environ | {"PYTHONPATH": path, "INTERRUPT_AT": at},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize("at", ["atomr_mp.cli", "argparse", "atomr_mp.cli.map", "atomr_mp.process.files.rundir"])
def test_the_command_ends_without_a_traceback(tmp_path: Path, at: str) -> None:
    """Wherever it is in its imports."""
    done = interrupted(tmp_path, at, "ready", "--run-dir", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


def test_a_supervisor_in_the_foreground_ends_without_a_traceback(tmp_path: Path, ledger: Ledger) -> None:
    """It is started by then, and has nothing yet."""
    run_dir = ledger.run_dir()
    done = interrupted(
        tmp_path,
        "atomr_mp.supervisor.supervisor",
        *("start", "--backend", BACKEND, "--gpus", "1", "--actor", PROBE, "--run-dir", str(run_dir)),
    )
    assert done.returncode == INTERRUPTED, done.stderr
    assert "Traceback" not in done.stderr
