"""Ends and removes what a node's actor leaves behind, however it ends. A process of its own, see `sweep_after`.

Ray may kill an actor at any time, as at `ray.shutdown`. The pool ends by itself then, and its files would stay. This
process waits for the actor's end. It is no child of the actor's, and in no group of its processes: Ray kills both.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from atomr_mp import errors, output
from atomr_mp.process import interpreter
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.process.identity import wait_ended
from atomr_mp.ray.gpu_locks import wait_pool_gone

ORDERLY_S: Final = 1.0
"""How long the supervisor may take to tell clients which calls had started, before it is killed."""

GONE_S: Final = 30.0
"""How long the pool's processes may take to end."""


def sweep_after(run_dir: Path, *others: Path) -> int:
    """Start the process; return a descriptor whose closing, also by this process's end, sets it going.

    Args:
        run_dir: The run directory of this process's pool, which is removed.
        others: Further directories to remove.
    """
    ours, theirs = os.pipe()[::-1]
    try:
        subprocess.run(
            interpreter.module("atomr_mp.ray.sweeper", str(run_dir), *map(str, others)),
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return ours


def main() -> None:
    """Wait for the end of the actor, then for that of its pool, and remove the directories."""
    output.protect()
    run_dir, *others = map(Path, sys.argv[1:])
    if os.fork():
        os._exit(0)
    while os.read(0, 1):
        pass
    end_supervisor(run_dir)
    wait_pool_gone(run_dir, time.monotonic() + GONE_S)
    for path in (run_dir, *others):
        shutil.rmtree(path, ignore_errors=True)


def end_supervisor(run_dir: Path) -> None:
    """Wait for the end of a supervisor whose owner has ended; kill it if it takes too long, or is stopped."""
    try:
        pidfd = RunDirectory.open(run_dir).supervisor.open_pidfd()
    except errors.AtomrError:
        return
    if pidfd is not None:
        if not wait_ended([pidfd], ORDERLY_S):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


if __name__ == "__main__":
    main()
