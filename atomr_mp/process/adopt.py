"""End the processes that a dead worker left behind. An edge; for a subreaper, main thread only.

When a worker dies, the kernel makes its children ours (`prctl.set_child_subreaper`), also those that had left
its process group with setsid. Killing one can deliver its own children in turn.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from atomr_mp.process.identity import stat_fields


def kill_adopted(known: AbstractSet[int], timeout_s: float = 1.0) -> list[int]:
    """Kill and reap the children that are not in `known` until there are none; return those that are left.

    Args:
        known: Pids of all children that the caller started itself and has not reaped; they are never touched.
        timeout_s: Longest wait, for processes that are stuck in the kernel or multiply. With 0 it only kills
            and reaps what has ended.
    """
    deadline = time.monotonic() + timeout_s
    while adopted := adopted_children(known):
        for pid in adopted:
            _kill(pid)
        reaped = [_reap(pid) for pid in adopted]
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return adopted_children(known)
        if not any(reaped):  # a reaped process may have left children: look again at once
            _wait_for_any(adopted, left_s)
    return []


def adopted_children(known: AbstractSet[int]) -> list[int]:
    """Return the pids of this process's children that are not in `known`, zombies included."""
    return [pid for pid in _children() if pid not in known]


def still_running(children: AbstractSet[int]) -> set[int]:
    """Reap those of these children that have ended; return the others."""
    return {pid for pid in children if not _reap(pid)}


def _children() -> list[int]:
    found: set[int] = set()
    try:
        for task in Path(_TASKS).iterdir():
            try:
                found.update(map(int, (task / "children").read_bytes().split()))
            except (FileNotFoundError, ProcessLookupError):
                if task.name == str(os.getpid()):  # the main thread has not ended: this kernel has no such files
                    raise
    except (FileNotFoundError, ProcessLookupError):
        return _children_by_scan()
    return sorted(found)


def _children_by_scan() -> list[int]:
    """Look at every process, for kernels without CONFIG_PROC_CHILDREN."""
    found = []
    parent = str(os.getpid())
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with contextlib.suppress(ProcessLookupError):
            if stat_fields(pid)[1] == parent:
                found.append(pid)
    return sorted(found)


def _kill(pid: int) -> None:
    # Safe: it is our child and only we reap, so the pid is not reused. PermissionError: it changed its user.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _reap(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def _wait_for_any(pids: list[int], timeout_s: float) -> None:
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        for pid in pids[:_WATCHED]:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            stack.callback(os.close, pidfd)
            poll.register(pidfd, select.POLLIN)
        poll.poll(timeout_s * 1000)


_TASKS: Final = "/proc/self/task"
_WATCHED: Final = 64
"""Descriptors taken at a time, whatever the number of processes."""
