"""The supervisor's event log: one JSON object a line, bounded on disk. An edge over files.

The supervisor writes, everybody may read at any time, even after its end. A full disk loses events, which are counted,
and nothing else. Former versions wrote msgpack maps into files of another ending, which are read before the lines.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, Self

import msgspec

from atomr_mp import errors
from atomr_mp.process import points
from atomr_mp.process.files import disk
from atomr_mp.process.files.logs import ends_whole, open_for_append, shift
from atomr_mp.process.files.safedir import inode
from atomr_mp.protocol.decoders import json_decoder

Scalar = str | int | float | bool | None

MAX_EVENT_BYTES: Final = 2**18
"""Longest event with the end of its line: a traceback fits."""

LOST: Final = "lost_events"
"""Key that an event carries if events before it could not be written: their number."""

FORMER: Final = ".msgpack"
"""Ending of the files that former versions wrote."""

_LOG: Final = logging.getLogger(__name__)

_EVENT: Final = json_decoder(dict[str, Scalar])


class EventLog:
    """The writing side; one process at a time, which holds the run directory.

    Args:
        path: The file, continued if it exists; older parts are PATH.1 (the newest) and so on.
        max_bytes: Size at which a new file is begun.
        keep: Number of older parts.

    Raises:
        ConfigurationError: The file cannot be opened.
    """

    def __init__(self, path: Path, *, max_bytes: int = 4 * 2**20, keep: int = 2) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._lost = 0
        self._size = 0
        self._fd = -1
        self._begin = b""
        """What the next event begins with: after a crash of the machine, half an event spoils its own line alone."""
        try:
            self._open()
        except OSError as error:
            self.close()
            raise errors.ConfigurationError(f"the event log {path} cannot be opened: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def append(self, event: Mapping[str, Scalar]) -> None:
        """Write an event whole or not at all; the next one counts those that were lost (`LOST`)."""
        data = _encode({**event, LOST: self._lost} if self._lost else event)
        if len(data) > MAX_EVENT_BYTES:
            _LOG.warning("an event of %d bytes is too long for the event log", len(data))
            self._lost += 1
            return
        try:
            points.point("disk")
            if self._size and self._size + len(data) > self._max_bytes:
                self._rotate()
            if self._fd >= 0 and inode(self._fd) != inode(self._path):  # somebody removed the file
                self.close()
            if self._fd < 0:
                self._open()
            self._write(data)
        except OSError as error:
            disk.STATE.failed(self._path, error)
            device = f"device {event['device']} generation {event.get('generation')}: " if "device" in event else ""
            disk.left_out(f"{device}{event.get('text') or event.get('event')}")
            self._lost += 1
        else:
            disk.STATE.written(self._path)
            self._lost = 0

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = open_for_append(self._path)
        self._begin = b"" if ends_whole(self._fd) else b"\n"
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self.close()
        self._size = 0
        if self._keep:
            shift(self._path, self._keep)
            self._path.rename(f"{self._path}.1")
        else:
            self._path.unlink()

    def _write(self, data: bytes) -> None:
        data = self._begin + data
        written = os.write(self._fd, data)
        if written < len(data):  # a disk that is nearly full takes a part
            os.ftruncate(self._fd, self._size)
            raise OSError(f"only {written} of {len(data)} bytes fitted")
        self._size += written
        self._begin = b""


def read_events(path: Path, *, on_skipped: Callable[[Path, int], None] | None = None) -> Iterator[dict[str, Scalar]]:
    """Yield the events of a log and its older parts, oldest first, those of former versions before them.

    A line that is no event is left out. Memory stays bounded whatever the files hold. Rotation meanwhile neither
    repeats nor leaves out a part.

    Args:
        path: The log's newest part; it need not exist.
        on_skipped: Called with the file and the number of its bytes that could not be read.

    Raises:
        OSError: A file exists but cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        parts = [(part, _read_former(file)) for part, file in _open_parts(path.with_suffix(FORMER), stack)]
        parts += [(part, _read_lines(file)) for part, file in _open_parts(path, stack)]
        for part, reading in parts:
            skipped = yield from reading
            if skipped and on_skipped is not None:
                on_skipped(part, skipped)


def _open_parts(path: Path, stack: contextlib.ExitStack) -> list[tuple[Path, BinaryIO]]:
    """Return the open parts of a log, oldest first."""
    # Newest first: what a rotation moves on meanwhile is met again, and known by its inode.
    parts: dict[int, tuple[Path, BinaryIO]] = {}
    number = missing = 0
    while missing < 2:  # a rotation leaves a gap for a moment
        part = Path(f"{path}.{number}") if number else path
        number += 1
        try:
            file: BinaryIO = stack.enter_context(part.open("rb"))
        except FileNotFoundError:
            missing += 1
        else:
            parts.setdefault(os.fstat(file.fileno()).st_ino, (part, file))
    return list(reversed(parts.values()))


class Follower:
    """Reads new lines of an event log, across its rotations.

    Args:
        path: The log's newest part; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        with contextlib.suppress(FileNotFoundError):
            self._file = path.open("rb")
            self._file.seek(0, os.SEEK_END)

    def more(self) -> list[dict[str, Scalar]]:
        """Return the events since the last call."""
        # Looked at first: when a newer part is there, nothing more comes into the one we have.
        newer = self._is_rotated()
        found = self._read()
        if newer:
            if self._file is not None:
                self._file.close()
                self._file = None  # what is in the file's place may be none that can be opened
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:  # between two steps of a rotation
                return found
            found += self._read()
        return found

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_rotated(self) -> bool:
        if self._file is None:
            return True
        try:
            return self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return False

    def _read(self) -> list[dict[str, Scalar]]:
        found: list[dict[str, Scalar]] = []
        while self._file is not None and (line := self._file.readline(MAX_EVENT_BYTES)):
            if not line.endswith(b"\n") and len(line) < MAX_EVENT_BYTES:
                self._file.seek(-len(line), os.SEEK_CUR)  # its end is not written yet
                break
            if (event := _event(line)) is not None:
                found.append(event)
        return found


def _read_lines(file: BinaryIO) -> Generator[dict[str, Scalar], None, int]:
    """Yield the events of a part; return how many bytes are none."""
    skipped = 0
    while line := file.readline(MAX_EVENT_BYTES):  # a longer line comes in pieces, which are no events
        event = _event(line)
        if event is None:
            skipped += len(line)
        else:
            yield event
    return skipped


def _event(line: bytes) -> dict[str, Scalar] | None:
    try:
        return _EVENT.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _read_former(file: BinaryIO) -> Generator[dict[str, Scalar], None, int]:
    """Yield the events of a part that a former version has written, up to the first byte that belongs to none."""
    import msgpack

    # No bytes, lists or extensions, and no count is believed that the buffer could not hold.
    bounds = {"max_buffer_size": 2 * MAX_EVENT_BYTES, "max_map_len": 1024, "max_array_len": 0, "max_bin_len": 0}
    unpacker = msgpack.Unpacker(file, **bounds, max_ext_len=0)
    end = 0
    with contextlib.suppress(ValueError, msgpack.UnpackException):
        for event in unpacker:
            if not isinstance(event, dict) or not all(isinstance(each, Scalar) for each in event.values()):
                break
            end = unpacker.tell()
            yield event
    return os.fstat(file.fileno()).st_size - end


def _encode(event: Mapping[str, Scalar]) -> bytes:
    try:
        return msgspec.json.encode(event) + b"\n"
    except UnicodeEncodeError:  # a file name that is not UTF-8, read with surrogates
        return msgspec.json.encode({_utf8(key): _utf8(item) for key, item in event.items()}) + b"\n"


def _utf8(value: Scalar) -> Scalar:
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
