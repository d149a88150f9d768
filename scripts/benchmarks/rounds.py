"""Runs a scenario in processes of its own, and leaves none of them behind, nor any file."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.metrics import Value
from benchmarks.sizes import Sizes

TIMEOUT_S: Final = 240.0
MARK: Final = "ATOMR_MP_BENCH_ROUND"
"""Environment variable by which a round's processes are known, whoever their parent is by now."""


class RoundFailedError(Exception):
    """A round gave no numbers. The others do not depend on it."""


def run_round(scenario: str, contestant: str, sizes: Sizes) -> dict[str, Value]:
    """Return the numbers of one round.

    Raises:
        RoundFailedError: It failed, or took longer than `TIMEOUT_S`.
    """
    mark = secrets.token_hex(8)
    # Short, because a socket's path must be; and therefore not under $TMPDIR.
    with tempfile.TemporaryDirectory(prefix="atomr-mp-bench-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        command = [
            *(sys.executable, "-m", "benchmarks.one_round"),
            *(scenario, contestant, directory, json.dumps(dataclasses.asdict(sizes))),
        ]
        try:
            status, output, errors = _run(command, {**_environment(), MARK: mark})
        finally:
            while left := _kill_marked(mark):  # again, for a supervisor may have replaced what was killed before it
                print(f"bench: killed what {contestant} left behind: {', '.join(left)}", file=sys.stderr)
                time.sleep(0.1)
    if status != 0:
        lines = errors.splitlines() or ["it said nothing"]
        raise RoundFailedError(f"ended with status {status}: {lines[-1]}")
    found: dict[str, Value] = json.loads(output.splitlines()[-1])  # some packages print on their own
    return found


def _environment() -> dict[str, str]:
    # Bytecode is written, as pip does for what it installs: to compile is no part of a start.
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Return the status, output and errors of a command."""
    # Files, because the end of a pipe comes only when all that the command has started are gone.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).parent.parent,  # where this package is found
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for the one that cleans up
        )
        try:
            status = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise RoundFailedError(f"took longer than {TIMEOUT_S:g} s") from error
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        errors.seek(0)
        return status, output.read(), errors.read()


def _kill_marked(mark: str) -> list[str]:
    """Kill what a round has left behind, and return what it was."""
    import psutil

    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{process.pid} ({' '.join(process.cmdline())})")
                process.kill()
        except psutil.Error:  # gone meanwhile, or another user's
            continue
    return left
