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


def silent(pid: int, waited_s: float, state: str, still: Standstill | None) -> str:
    """Return the words for a supervisor that does not answer, and what to do.

    Args:
        pid: The supervisor; 0 if it is not known.
        waited_s: How long it was waited for.
        state: Its state, as in /proc/PID/stat.
        still: Why it does not run, None if it does.
    """
    if not pid:
        return f"the supervisor did not answer within {waited_s:.3g} s"
    who = f"the supervisor (pid {pid}) does not answer"
    if still is not None:
        return f"{who}: {still}; `kill -9 {pid}` ends the pool"
    what = "waits in the kernel, as for a disk (state D)" if state == "D" else f"is not stopped (state {state or '?'})"
    return (
        f"{who} within {waited_s:.3g} s: its process {what}, so it starts, is busy or is stuck; look at the machine's "
        f"load, and with `py-spy dump --pid {pid}` at what it does; `kill -9 {pid}` ends the pool"
    )


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
