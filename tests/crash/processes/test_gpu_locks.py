from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atomr_mp import errors
from atomr_mp.protocol import process_tags
from atomr_mp.ray.gpu_locks import GpuLocks
from atomr_mp.ray.raylet import wait_gone
from tests.support import Ledger, settled

UUID = "GPU-11111111-2222-3333-4444-555555555555"

HOLD = """
import sys
from pathlib import Path
from atomr_mp.ray.gpu_locks import GpuLocks
locks = GpuLocks(Path(sys.argv[1]), Path(sys.argv[2]))
locks.take([sys.argv[3]], 5.0)
print("held", flush=True)
sys.stdin.read()
"""


def holder(directory: Path, run_dir: Path) -> subprocess.Popen[str]:
    """Return a process that holds the lock until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory), str(run_dir), UUID],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_gpu_has_one_pool_at_a_time(ledger: Ledger) -> None:
    """While its owner lives, another start fails typed; after a kill, it succeeds."""
    directory, locks = ledger.path / "locks", GpuLocks(ledger.path / "locks", ledger.path / "mine")
    with holder(directory, ledger.path / "theirs") as other:
        with pytest.raises(errors.PoolBusy, match=f"{UUID} is held by the pool at .*theirs"):
            locks.take([UUID], 0.1)
        other.kill()
        other.wait()
        locks.take([UUID], 5.0)
    locks.take([UUID], 0.0)  # what is held is kept
    locks.close()


def test_a_gpu_is_not_free_before_every_process_of_the_old_pool_has_gone(ledger: Ledger) -> None:
    """A worker that outlives its owner still uses the GPU: the next pool waits for it, and names it."""
    directory, theirs = ledger.path / "locks", ledger.path / "theirs"
    locks = GpuLocks(directory, ledger.path / "mine")
    with (
        holder(directory, theirs) as other,
        subprocess.Popen(["/bin/sleep", "60"], env={process_tags.RUN_DIR: str(theirs)}) as worker,
    ):
        other.kill()
        other.wait()
        try:
            with pytest.raises(errors.PoolBusy, match=f"pid {worker.pid}") as raised:
                locks.take([UUID], 0.3)
            assert raised.value.supervisor_pid == worker.pid
        finally:
            worker.kill()
            worker.wait()
    locks.take([UUID], 5.0)
    locks.close()


def test_a_lock_in_a_place_that_others_can_write_is_refused(ledger: Ledger) -> None:
    """Another user could hold our GPUs there."""
    directory = ledger.path / "open"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(errors.ConfigurationError):
        GpuLocks(directory, ledger.path / "mine").take([UUID], 0.0)


def test_a_dead_process_is_seen_though_nobody_reaps_it() -> None:
    """A zombie raylet counts as gone."""
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        pidfd = os.pidfd_open(process.pid)
        process.kill()
        wait_gone(pidfd, process.pid, stopped_s=60.0)
        os.close(pidfd)


def test_a_process_that_is_stopped_for_long_counts_as_gone() -> None:
    """A stopped raylet's pidfd stays silent while Ray goes on elsewhere; one that resumes in time does not count."""
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            os.kill(process.pid, signal.SIGSTOP)
            began = time.monotonic()
            wait_gone(pidfd, process.pid, stopped_s=0.3, look_s=0.05)
            assert time.monotonic() - began >= 0.3
            assert settled(lambda: process.poll() is None, 1.0)
        finally:
            process.kill()
            os.close(pidfd)
