"""Tells a process from later ones that get the same pid. An edge.

A pid alone is not enough for what is read from a file of an earlier life. The kernel's start time (in clock
ticks since boot) and the boot's id, together with the pid, never repeat.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atomr_mp import errors

PROC: Final = Path("/proc")


@dataclass(frozen=True)
class Identity:
    """One process, for ever; `str` and `parse` are its form on disk."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat, see proc_pid_stat(5)."""
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of a running process, or of a zombie.

        Raises:
            ProcessLookupError: There is no such process.
        """
        return cls(pid, start_ticks(pid), boot_id())

    @classmethod
    def parse(cls, text: str) -> Identity | None:
        """Return the identity in a text that `str` made, None for any other text, or half of one."""
        words = text.split()
        if len(words) != 3 or not all(word.isascii() and word.isdigit() for word in words[:2]):
            return None
        pid, ticks, boot = words
        if len(boot) != _BOOT_ID_CHARS or not 0 < int(pid) < _PID_LIMIT:
            return None
        return cls(int(pid), int(ticks), boot)

    def __str__(self) -> str:
        return f"{self.pid} {self.start_ticks} {self.boot_id}"

    def open_pidfd(self) -> int | None:
        """Return a pidfd of this process, which the caller closes, or None if it has ended (a zombie has).

        Raises:
            ConfigurationError: /proc hides it.
        """
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        except OSError:
            if (PROC / str(self.pid)).exists():
                raise
            return None
        # The descriptor came first: whatever the pid means now, it means for as long as the descriptor is
        # open.
        try:
            same = Identity.of(self.pid) == self
        except ProcessLookupError:
            if not wait_ended([pidfd], 0):
                os.close(pidfd)
                raise errors.ConfigurationError(
                    f"process {self.pid} runs, and {PROC} does not show it: {PROC} is mounted with hidepid, or a "
                    "service manager hides it (ProtectProc); let this user see its own processes there"
                ) from None
            same = False
        except BaseException:
            os.close(pidfd)
            raise
        if same and not wait_ended([pidfd], 0):
            return pidfd
        os.close(pidfd)
        return None

    def alive(self) -> bool:
        """Return whether this process runs."""
        pidfd = self.open_pidfd()
        if pidfd is None:
            return False
        os.close(pidfd)
        return True


def age_s(identity: Identity) -> float:
    """Return how long ago a process was started; what the machine has slept counts too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - identity.start_ticks / os.sysconf("SC_CLK_TCK")


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot.

    Raises:
        ProcessLookupError: There is no such process.
    """
    return int(stat_fields(pid)[_START_TIME])


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on, as text: the second, a name, may hold anything.

    Of a thread too, by its own number.

    Raises:
        ProcessLookupError: There is no such process.
    """
    try:
        with open(f"{PROC}/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - a path costs as much as the read
            text = file.read().decode(errors="replace")
    except FileNotFoundError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    return text.rpartition(")")[2].split()


def boot_id() -> str:
    """Return the id that this boot of the machine drew.

    Raises:
        ConfigurationError: /proc does not show it.
    """
    path = PROC / "sys/kernel/random/boot_id"
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise
        raise errors.ConfigurationError(
            f"{path} cannot be read ({error.strerror}): {PROC} is not mounted, or only in part (subset=pid, a service "
            "manager's ProcSubset); mount all of it"
        ) from error


def wait_ended(pidfds: Iterable[int], timeout_s: float) -> set[int]:
    """Wait until all these processes have ended, or `timeout_s` is over; return the pidfds that tell so."""
    poll = select.poll()
    waiting = set(pidfds)
    for pidfd in waiting:
        poll.register(pidfd, select.POLLIN)
    ended: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while waiting:
        left_s = max(0.0, deadline - time.monotonic())
        ready = {pidfd for pidfd, _ in poll.poll(left_s * 1000)}
        if not ready and time.monotonic() >= deadline:
            break
        for pidfd in ready:
            poll.unregister(pidfd)
        waiting -= ready
        ended |= ready
    return ended


_START_TIME = 22 - 3
_BOOT_ID_CHARS = 36
_PID_LIMIT = 2**22
"""PID_MAX_LIMIT of 64-bit kernels."""
