"""Removes what dead members' NCCL and CUDA have left in /dev/shm.

A file there is left over if no process has it open or mapped. Whoever makes one has it open until it has mapped it, and
keeps that until its end. So files are listed first, then open descriptors are read, then mappings.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SHM: Final = Path("/dev/shm")  # noqa: S108 - no file is made there

NAMES: Final = re.compile(r"nccl-\w+|cuda\.shm\.[0-9a-f.]+")
"""Names of NCCL's files, and of the driver's."""

LEAST_AGE_S: Final = 2.0
"""Younger files may be of a process that cannot be seen from here."""


def sweep(directory: Path = SHM, processes: Path = Path("/proc"), now_s: float | None = None) -> list[str]:
    """Remove what is left over of this user's, and return its names.

    Args:
        directory: Where the files are.
        processes: Where processes are seen.
        now_s: The time, in seconds since 1970; None for now.
    """
    now_s = time.time() if now_s is None else now_s
    found = {each.name for each in _candidates(directory, now_s)}
    if found:
        found -= set(_used(directory, processes))
    for name in found:
        with contextlib.suppress(OSError):
            (directory / name).unlink()
    return sorted(found)


def _candidates(directory: Path, now_s: float) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for each in directory.iterdir():
            if NAMES.fullmatch(each.name):
                with contextlib.suppress(OSError):
                    facts = each.lstat()
                    if facts.st_uid == os.getuid() and now_s - facts.st_mtime >= LEAST_AGE_S:
                        yield each


def _used(directory: Path, processes: Path) -> Iterator[str]:
    """Yield the names of files that processes have open or mapped."""
    start = f"{directory}/"
    numbers = [each for each in processes.iterdir() if each.name.isdigit()]
    for process in numbers:
        with contextlib.suppress(OSError):
            for each in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(each.readlink())
                    if target.startswith(start):
                        yield target.removeprefix(start)
    for process in numbers:
        with contextlib.suppress(OSError), (process / "maps").open(encoding="utf-8", errors="replace") as maps:
            for line in maps:
                _, _, path = line.partition(start)
                if path:
                    yield path.rstrip("\n")
