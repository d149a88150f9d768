"""Why a process that lives does not run: facts of the kernel in, words for an operator out. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Standstill(NamedTuple):
    """Why a process does not run, and what has it go on."""

    why: str
    """As in "its process is ...": "stopped by a signal (SIGSTOP)"."""
    remedy: str
    """As in "`kill -CONT 7` has it go on"."""

    def __str__(self) -> str:
        return f"its process is {self.why}; {self.remedy}"


def judge(pid: int, state: str, frozen: str) -> Standstill | None:
    """Return why a process does not run; None if it does, or has ended.

    Args:
        pid: The process.
        state: Its state, as in /proc/PID/stat: `T` after SIGSTOP, `t` under a debugger.
        frozen: The directory of its cgroup if that is frozen, else empty.
    """
    if state == "T":
        return Standstill("stopped by a signal (SIGSTOP)", f"`kill -CONT {pid}` (SIGCONT) has it go on")
    if state == "t":
        return Standstill("stopped by a debugger", "it goes on when that lets it")
    if frozen:
        return Standstill(f"frozen with its cgroup {frozen}", "thawing that (0 to `cgroup.freeze`) has it go on")
    return None
