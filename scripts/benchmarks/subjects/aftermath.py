"""SIGKILL of an application, and of its worker's supervisor: counts the processes and shared memory that are left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes

if TYPE_CHECKING:
    import psutil

PATIENCE_S: Final = 5.0
"""How long started processes may take to end."""
LOOK_S: Final = 0.002
"""Time between looks at processes that are not children: no event tells of their end."""
SHARED: Final = Path("/dev/shm")


def aftermath(contestant: Contestant, _sizes: Sizes) -> dict[str, float]:
    """Return how many processes are left after a while, or the time until none was, and the bytes left in /dev/shm."""
    found = _killed(contestant, "application", lambda _supervisor, application: application)
    return found | _killed(contestant, "supervisor", lambda supervisor, _application: supervisor)


def _killed(contestant: Contestant, name: str, victim: Callable[[int, int], int]) -> dict[str, float]:
    import psutil

    directory = contestant.directory / name[0]  # short, for sockets' paths must be
    directory.mkdir()
    before = _shared()
    command = [sys.executable, "-m", "benchmarks.processes.application", contestant.name, str(directory)]
    started: list[psutil.Process] = []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline()
            if not line:
                raise RuntimeError("the application did not start")
            supervisor = next(map(int, line.split()), 0)
            started = psutil.Process(program.pid).children(recursive=True)
            killed = victim(supervisor, program.pid)
            if not killed:
                return {}  # the application is the supervisor
            begun = perf_counter()
            os.kill(killed, signal.SIGKILL)
            if killed == program.pid:
                program.wait()
            left = _left(started, begun)
            gone_s = perf_counter() - begun
        finally:
            program.kill()
            for process in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            shutil.rmtree(directory, ignore_errors=True)
    found = {f"{name}_left": float(len(left)), f"{name}_shm": (_shared() - before) / 2**20}
    return found if left else found | {f"{name}_gone": gone_s * 1e3}


def _left(started: list[psutil.Process], begun: float) -> list[psutil.Process]:
    """Wait for the end of processes; return those that go on."""
    while (left := [each for each in started if _runs(each)]) and perf_counter() - begun < PATIENCE_S:
        sleep(LOOK_S)
    return left


def _runs(process: psutil.Process) -> bool:
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _shared() -> int:
    """Return how many bytes there are in files of shared memory."""
    return sum(path.stat().st_size for path in SHARED.iterdir() if path.is_file())
