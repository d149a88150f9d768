"""Follows a log file that another process writes and `RotatedOutput` rotates. An edge over files.

The file is looked at now and then, for no event tells of a file that grows. A look also reads the lines that a rotation
has moved into the older part since the last look, and reads a bounded number of bytes, however many were written.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 2**16
"""Most that one look reads; of more, the beginning is left out."""

MOST_HALF_BYTES: Final = 2**14
"""Longest line that is waited for; of a longer one, what is there is shown."""

_LEFT_OUT: Final = re.compile(rb"\[(\d+) bytes left out\]\n")
"""Begins an older part whose own beginning is left out; see `RotatedOutput`."""


class FollowedLog:
    """A log that is followed.

    Args:
        path: The file; it need not exist. What it has already is passed over.
        whole: Whether to begin with what it has already.
    """

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self._path: Final = path
        self._older: Final = Path(f"{path}.1")
        self._moved: int = _inode(self._older)
        self._at = 0 if whole else _size(path)
        self._half = b""
        self._was_cut = False

    def more(self) -> tuple[list[bytes], int]:
        """Return the lines that were written since the last look, and how many bytes before them were left out.

        Lines have no line end. The last line of all comes once it is whole.
        """
        data, skipped = b"", 0
        moved = _inode(self._older)
        if moved and moved != self._moved:
            self._moved = moved
            begin, skipped = _begin_in(self._older, self._at)
            data, more_skipped = _tail(self._older, begin, MOST_BYTES)
            skipped += more_skipped
            self._at = 0
            self._was_cut = False
        elif _size(self._path) < self._at:
            if not self._was_cut:  # a rotation that is half done, or somebody has emptied or removed it: wait and see
                self._was_cut = True
                return [], 0
            self._at, self._was_cut = 0, False
        now = _size(self._path)
        newer, more_skipped = _tail(self._path, self._at, MOST_BYTES, now)
        self._at = max(self._at, now)
        if more_skipped:
            skipped += len(data) + more_skipped + len(self._half)
            data = self._half = b""
        elif skipped:
            skipped += len(self._half)
            self._half = b""
        data = self._half + data + newer
        *lines, self._half = data.split(b"\n")
        if len(self._half) > MOST_HALF_BYTES:
            lines.append(self._half)
            self._half = b""
        return lines, skipped

    def rest(self) -> list[bytes]:
        """Return the last line, though it has no line end, without waiting further."""
        half, self._half = self._half, b""
        return [half] if half else []


def _begin_in(older: Path, at: int) -> tuple[int, int]:
    """Return where an offset of a log is in its older part, and how many bytes behind it are in none."""
    try:
        with older.open("rb") as file:
            head = _LEFT_OUT.match(file.read(64))
    except OSError:
        return at, 0
    if head is None:
        return at, 0
    gone = int(head[1])
    return head.end() + max(0, at - gone), max(0, gone - at)


def _tail(path: Path, begin: int, most: int, end: int | None = None) -> tuple[bytes, int]:
    """Return at most the last bytes of a file between two offsets, and how many before them were left out."""
    try:
        with path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size if end is None else end
            start = max(begin, end - most)
            file.seek(start)
            return file.read(max(0, end - start)), start - begin if start > begin else 0
    except OSError:
        return b"", 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
