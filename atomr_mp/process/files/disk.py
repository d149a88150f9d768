"""Says when files can no longer be written, and when they can be again: once each. An edge over files and the log.

The log itself may be on the full disk. So a process whose log is a file shows these lines on standard error, too, by a
handler of `NAME`. A disk that is full is told once for all files of a folder, and any other error once for its file.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

NAME: Final = "atomr_mp.disk"
"""The logger of these lines."""

LEFT_OUT: Final = f"{NAME}.left_out"
"""The logger of events that could not be written where they belong."""

LEAST_BYTES: Final = 4096
"""A disk with less room is full."""

_LOG: Final = logging.getLogger(NAME)
_LEFT_OUT_LOG: Final = logging.getLogger(LEFT_OUT)


class DiskTrouble(NamedTuple):
    """Something that cannot be written now."""

    path: Path
    is_full: bool
    """Whether the disk is full, and not a file unwritable for another reason."""
    since: float
    """When that was found, in seconds since 1970."""

    def __str__(self) -> str:
        """Return the words for it, which are the same as long as it lasts."""
        what = f"the disk of {self.path} is full" if self.is_full else f"{self.path} cannot be written"
        return f"{what} since {self._time}"

    @property
    def past(self) -> str:
        """The words for it once it is over."""
        if self.is_full:
            return f"the disk of {self.path} has room again, after it was full since {self._time}"
        return f"{self.path} can be written again, after it could not be since {self._time}"

    @property
    def _time(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))


class DiskState:
    """What cannot be written now. One for a process; not for several threads at a time."""

    def __init__(self) -> None:
        self._failing: Final[dict[Path, float]] = {}
        """Files that cannot be written, and since when."""
        self._filled: Final[dict[Path, float]] = {}
        """Folders on a full disk, and since when."""
        self._first: DiskTrouble | None = None
        """What could not be written first since `take_over`."""

    @property
    def trouble(self) -> DiskTrouble | None:
        """What cannot be written now, a full disk before a file; None if all can."""
        for folder, since in self._filled.items():
            return DiskTrouble(folder, is_full=True, since=since)
        for path, since in self._failing.items():
            return DiskTrouble(path, is_full=False, since=since)
        return None

    def take_over(self) -> DiskTrouble | None:
        """Return the first trouble, once, when all files can be written again; None before that."""
        if self.trouble is not None:
            return None
        first, self._first = self._first, None
        return first

    def failed(self, path: Path, error: OSError) -> None:
        """Record that a file could not be written or made."""
        folder = path.parent
        if folder in self._filled:
            return
        if not has_room(folder):
            self._full(folder)
        elif path not in self._failing:
            self._failing[path] = time.time()
            self._first = self._first or self.trouble
            _LOG.warning("%s cannot be written: %s; what belongs there is lost until it can be", path, error)

    def written(self, path: Path) -> None:
        """Record that a file was written."""
        if self._failing.pop(path, None) is not None:
            _LOG.warning("%s can be written again", path)

    def look(self, folder: Path) -> None:
        """See whether the disk of a folder, or of one that was full, is full: others than this process write, too."""
        for each in {folder, *self._filled}:
            full = not has_room(each)
            if full and each not in self._filled:
                self._full(each)
            elif not full and self._filled.pop(each, None) is not None:
                _LOG.warning("the disk of %s has room again", each)

    def _full(self, folder: Path) -> None:
        self._filled[folder] = time.time()
        self._first = self._first or self.trouble
        _LOG.warning(
            "the disk of %s is full: workers' output and events are lost until there is room; calls go on", folder
        )


def left_out(text: str) -> None:
    """Tell an event that could not be written where it belongs."""
    _LEFT_OUT_LOG.info("%s", text)


def has_room(folder: Path) -> bool:
    """Return whether this user can write some more to the disk of a folder; True if that is not known."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return True
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return not found.f_blocks or blocks * found.f_frsize >= LEAST_BYTES


STATE: Final = DiskState()
"""That of this process."""
