"""Counts what a process holds, as the kernel sees it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from atomr_mp_workers.requests.off_loop.event_loop import WAITERS

MARK: Final = "ATOMR_MP_SOAK"
"""Environment variable by which all processes of a soak are known, whoever their parent is by now."""

SLABS: Final = ("memfd:atomr-mp-slab", "memfd:atomr-mp-client")


class Census(NamedTuple):
    """The holdings of a process."""

    descriptors: int
    threads: int
    slabs: int
    """Mappings of slabs."""
    own_bytes: int
    """Memory that no other process has (USS)."""

    def exceeds(self, before: Census) -> bool:
        """Whether it holds more of the things counted one by one than it may start late."""
        return self.descriptors > before.descriptors or self.threads > before.threads + WAITERS


def census(pid: int) -> Census:
    """Return the holdings of a process."""
    process = psutil.Process(pid)
    return Census(
        process.num_fds(),
        process.num_threads(),
        len(mapped_slabs(pid)),
        process.memory_full_info().uss,
    )


def mapped_slabs(pid: int) -> list[str]:
    """Return a process's mappings of slabs, as the kernel shows them; none if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [line for line in lines if any(name in line for name in SLABS)]


def descriptors(pid: int) -> list[str]:
    """Return a process's descriptors in words, for a report of too many."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(path.readlink()))
        except FileNotFoundError:
            continue
    return sorted(found)


def trim() -> None:
    """Give back freed memory that the C library keeps, so that only real growth shows."""
    ctypes.CDLL(None).malloc_trim(0)


def marked(mark: str) -> list[str]:
    """Return the processes of a soak, except this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{path.name}: {command}")
        except OSError:  # it has ended, or is another user's
            continue
    return found
