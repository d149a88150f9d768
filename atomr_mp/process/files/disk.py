"""Says when files can no longer be written, and when they can be again: once each. An edge over files and the log.

The log itself may be on the full disk. So a process whose log is a file shows these lines on standard error, too, by a
handler of `NAME`. A disk that is full is told once for all files of a folder, and any other error once for its file.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

NAME: Final = "atomr_mp.disk"
"""The logger of these lines."""

LEFT_OUT: Final = f"{NAME}.left_out"
"""The logger of events that could not be written where they belong."""

LEAST_BYTES: Final = 4096
"""A disk with less room is full."""

_LOG: Final = logging.getLogger(NAME)
_LEFT_OUT_LOG: Final = logging.getLogger(LEFT_OUT)


class DiskState:
    """What cannot be written now. One for a process; not for several threads at a time."""

    def __init__(self) -> None:
        self._failing: Final[set[Path]] = set()
        """Files that cannot be written, and folders on a full disk."""

    def failed(self, path: Path, error: OSError) -> None:
        """Record that a file could not be written or made."""
        folder = path.parent
        if folder in self._failing:
            return
        if not has_room(folder):
            self._full(folder)
        elif path not in self._failing:
            self._failing.add(path)
            _LOG.warning("%s cannot be written: %s; what belongs there is lost until it can be", path, error)

    def written(self, path: Path) -> None:
        """Record that a file was written."""
        if path in self._failing:
            self._failing.discard(path)
            _LOG.warning("%s can be written again", path)

    def look(self, folder: Path) -> None:
        """See whether the disk of a folder is full: others than this process write there, too."""
        full = not has_room(folder)
        if full and folder not in self._failing:
            self._full(folder)
        elif not full and folder in self._failing:
            self._failing.discard(folder)
            _LOG.warning("the disk of %s has room again", folder)

    def _full(self, folder: Path) -> None:
        self._failing.add(folder)
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
