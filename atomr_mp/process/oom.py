"""The kernel's choice of what to kill when memory ends: whom it takes first, and how often it has done so. An edge."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, NamedTuple

from atomr_mp.process.cgroup import own_path

FIRST: Final = 500
"""Thousandths of the machine's memory that a process which is replaced counts for beside its own, see proc(5),
/proc/pid/oom_score_adj. More than the supervisor needs, and less than an application with most of the memory has."""

MOST: Final = 1000


def offer(pid: int) -> None:
    """Let the kernel kill a child rather than this process when memory ends. Needs no privilege.

    Processes that the child starts later are like it.
    """
    try:
        ours = int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(min(MOST, ours + FIRST)), encoding="ascii")
    except (OSError, ValueError) as error:  # it has ended, or this /proc shows it to nobody
        _LOG.debug("process %d is not offered to the kernel when memory ends: %s", pid, error)


class KillCount(NamedTuple):
    """A file in which the kernel counts the processes that it has killed for their memory."""

    path: Path
    whose: str
    """The owner of the processes that it counts, in words."""

    def read(self) -> int | None:
        """Return the count, None if there is none."""
        try:
            lines = self.path.read_text(encoding="ascii").splitlines()
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
        except (OSError, ValueError, IndexError):
            return None


class OomKills:
    """Tells whether the kernel has lately killed for memory; which process it was, it hides from the unprivileged.

    Args:
        counters: Where the kernel may count; the first that does is read.
    """

    def __init__(self, counters: list[KillCount] | None = None) -> None:
        found = [(each, count) for each in counters or _counters() if (count := each.read()) is not None]
        self._counter: Final = found[0][0] if found else None
        count = found[0][1] if found else 0
        self._looks = count, count
        """The counts at the last two looks."""

    def look(self) -> None:
        """Note the count; to be called every few seconds."""
        self._looks = self._looks[1], self._read()

    def rise(self) -> str:
        """Return how the count has risen since the look before the last, in words; empty if it has not."""
        before, now = self._looks[0], self._read()
        if self._counter is None or now <= before:
            return ""
        return rise_in_words(self._counter.whose, before, now)

    def _read(self) -> int:
        count = None if self._counter is None else self._counter.read()
        return self._looks[1] if count is None else count


def rise_in_words(whose: str, before: int, now: int) -> str:
    """Return the words for kills that the kernel has counted."""
    return f"the oom_kill count of {whose} rose from {before} to {now}, so memory has run out"


def _counters() -> list[KillCount]:
    machine = KillCount(Path("/proc/vmstat"), "the machine")
    try:
        path = own_path()
    except (OSError, ValueError):
        path = None
    return [machine] if path is None else [KillCount(path / "memory.events", "the pool's cgroup"), machine]


_LOG: Final = logging.getLogger(__name__)
