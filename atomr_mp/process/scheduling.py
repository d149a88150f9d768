"""Processes' progress, from the kernel: their states, and how long threads ran and waited for a processor. An edge."""

from __future__ import annotations

import contextlib
from pathlib import Path

from atomr_mp.process.cgroup import frozen_path
from atomr_mp.supervision.standstill import Standstill, judge, silent
from atomr_mp.supervision.watchdog import Thread


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal, such as SIGSTOP; not by a debugger, nor if it has ended."""
    return _state(pid) == "T"


def standstill(pid: int) -> Standstill | None:
    """Return why a process does not run although it lives; None if it does, or has ended."""
    return judge(pid, state, frozen_path(pid)) if (state := _state(pid)) else None


def silence(pid: int, waited_s: float) -> str:
    """Return why a supervisor does not answer, as the kernel tells it, and what to do; see `standstill.silent`."""
    return silent(pid, waited_s, _state(pid), standstill(pid))


def _state(pid: int) -> str:
    """Return the letter of a process's state; empty if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].strip()[:1]


def threads(pid: int) -> dict[int, Thread]:
    """Return a process's threads by their ids; those that end meanwhile are left out."""
    found = {}
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name may have anything in it, but no further ")" comes behind it.
                stat = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                try:
                    ran, delayed, _ = map(int, (path / "schedstat").read_text(encoding="ascii").split())
                except FileNotFoundError:  # a kernel that does not count it
                    ran, delayed = int(stat[11]) + int(stat[12]), 0  # in ticks; only a change of it counts
                found[int(path.name)] = Thread(stat[0], ran, delayed)
    return found
