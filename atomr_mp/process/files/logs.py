"""Files that take a child's output and stay bounded while it writes. An edge.

A pipe could fill and stop the child, so it writes to the file itself. Its descriptor cannot be exchanged from
outside; the file is therefore copied away and cut back to nothing (the descriptor appends, so the child goes
on at the start). What the child writes between the last copy and the cut, some microseconds, is lost.
"""

from __future__ import annotations

import io
import logging
import logging.handlers
import os
from pathlib import Path
from typing import Final, Self

from atomr_mp import errors, output
from atomr_mp.process import points
from atomr_mp.process.files import disk
from atomr_mp.process.files.safedir import inode


class RotatedOutput:
    """The log of one device's workers, in turn: PATH, and older parts in PATH.1 (the newest) and so on.

    Args:
        path: The file; made with mode 0600, continued if it exists.
        max_bytes: Size from which `check` rotates. Of a file that has grown to more than twice as much since
            the last check, the beginning is left out.
        keep: Number of older parts.

    Raises:
        ConfigurationError: The file cannot be opened.
    """

    def __init__(self, path: Path, *, max_bytes: int = 16 * 2**20, keep: int = 3) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        try:
            self._fd = open_for_append(path)
        except OSError as error:
            raise errors.ConfigurationError(f"the log {path} cannot be opened: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor for the child's standard output and error; not inheritable as it is."""
        return self._fd

    def new_incarnation(self, header: str) -> None:
        """Write one line that tells a new worker's output from its predecessor's; call it before `spawn`."""
        begin = "" if ends_whole(self._fd) else "\n"  # the predecessor may have ended in the middle of a line
        self.add(begin + " ".join(header.split()))

    def add(self, text: str) -> None:
        """Write lines of our own among the child's."""
        try:
            points.point("disk")
            if inode(self._fd) != inode(self.path):  # somebody removed the file
                removed, self._fd = self._fd, open_for_append(self.path)  # kept if that fails: children need a file
                os.close(removed)
            os.write(self._fd, f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            disk.STATE.failed(self.path, error)
        else:
            disk.STATE.written(self.path)

    def check(self) -> None:
        """Rotate if the file has grown too large. Costs a few ms for 16 MiB; never raises OSError."""
        disk.STATE.look(self.path.parent)  # since a full disk refuses what the child writes, and nothing tells of it
        try:
            size = os.fstat(self._fd).st_size
            if size <= self._max_bytes:
                return
            if self._keep:
                new = Path(f"{self.path}.new")
                _copy_end(self._fd, new, 2 * self._max_bytes)
                shift(self.path, self._keep)
            os.ftruncate(self._fd, 0)
            if self._keep:
                # Last: who follows the log takes a new PATH.1 for the sign that PATH begins anew.
                Path(f"{self.path}.new").rename(f"{self.path}.1")
        except OSError as error:
            disk.STATE.failed(self.path, error)
        else:
            disk.STATE.written(self.path)

    def close(self) -> None:
        """Close the file; a child that has it goes on writing. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PrivateFileHandler(logging.handlers.RotatingFileHandler):
    """Writes a log of this process to files that only its user can read; those of an earlier life become so too."""

    def _open(self) -> io.TextIOWrapper:
        fd = open_for_append(Path(self.baseFilename))
        os.fchmod(fd, 0o600)
        return output.open_file(fd)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, into a new file if somebody has removed the present one."""
        if self.stream is not None and inode(self.stream.fileno()) != inode(Path(self.baseFilename)):
            self.stream.close()
            self.stream = None  # opened by the next line, as `delay` has it
        super().emit(record)

    def handleError(self, _record: logging.LogRecord) -> None:  # noqa: N802 - the name is that of `logging`
        """Lose the line: the files cannot be exchanged, and there is no other place to say so."""


def shift(path: Path, keep: int) -> None:
    """Rename PATH.1 to PATH.2 and so on; the last of `keep` is replaced."""
    for number in range(keep - 1, 0, -1):
        older = Path(f"{path}.{number}")
        if older.exists():
            older.rename(f"{path}.{number + 1}")


def open_for_append(path: Path) -> int:
    """Return a descriptor of a file of ours that only we may read, made if it is missing.

    Raises:
        OSError: It cannot be opened, or is another user's, who has put it there since the directory was removed.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise PermissionError(f"{path} belongs to another user")
    return fd


def ends_whole(fd: int) -> bool:
    """Return whether a file that is open for writing ends with a whole line, or is empty."""
    try:
        size = os.fstat(fd).st_size
        reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(reading, 1, size - 1) == b"\n" if size else True
        finally:
            os.close(reading)
    except OSError:  # no descriptor is left
        return True


def _copy_end(fd: int, target: Path, max_bytes: int) -> None:
    """Copy the last `max_bytes` of a file that is open for writing, and what comes meanwhile, to `target`."""
    # By its descriptor: the same file, even if it was removed.
    source = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            start = max(0, os.fstat(source).st_size - max_bytes)
            if start:
                os.write(out, b"[%d bytes left out]\n" % start)
            end = start + 2 * max_bytes  # a child that writes as fast as we copy must not hold us
            while start < end and (count := os.sendfile(out, source, start, min(_CHUNK_BYTES, end - start))):
                start += count
        except OSError:
            target.unlink(missing_ok=True)
            raise
        finally:
            os.close(out)
    finally:
        os.close(source)


_CHUNK_BYTES: Final = 2**20
