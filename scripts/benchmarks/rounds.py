"""Runs a scenario in processes of its own, and leaves none of them behind, nor any file."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.sizes import Sizes

TIMEOUT_S: Final = 120.0
MARK: Final = "ATOMR_MP_BENCH_ROUND"
"""Environment variable by which a round's processes are known, whoever their parent is by now."""

Results = dict[tuple[str, str], list[dict[str, float]]]
"""By contestant and scenario: each round's numbers by the name of their metric; none if the round failed."""


class RoundFailedError(Exception):
    """A round gave no numbers. The others do not depend on it."""


def run_round(scenario: str, contestant: str, sizes: Sizes) -> dict[str, float]:
    """Return the numbers of one round.

    Raises:
        RoundFailedError: It failed, or took longer than `TIMEOUT_S`, or left processes behind.
    """
    mark = secrets.token_hex(8)
    # Short, because a socket's path must be; and therefore not under $TMPDIR.
    with tempfile.TemporaryDirectory(prefix="atomr-mp-bench-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        command = [
            *(sys.executable, "-m", "benchmarks.one_round"),
            *(scenario, contestant, directory, json.dumps(dataclasses.asdict(sizes))),
        ]
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).parent.parent,  # where this package is found
            env={**os.environ, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the one that cleans up
        )
        try:
            output = _output(process)
        finally:
            left = _kill_marked(mark)
    if left:
        raise RoundFailedError(f"left processes behind, killed now: {', '.join(left)}")
    if process.returncode != 0:
        raise RoundFailedError(f"ended with status {process.returncode}")
    found: dict[str, float] = json.loads(output)
    return found


def _output(process: subprocess.Popen[bytes]) -> bytes:
    try:
        return process.communicate(timeout=TIMEOUT_S)[0]
    except subprocess.TimeoutExpired as error:
        raise RoundFailedError(f"took longer than {TIMEOUT_S:g} s") from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


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
