"""Repairs a map's journal that is damaged in the middle: saves its records, and keeps the damaged file.

`Pool.map(repair_journal=True)` calls it before it opens the journal.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.mapping.journal import (
    VERSION,
    Header,
    Record,
    Sent,
    Unsent,
    check_index,
    decoded,
    framed,
    sync_directory,
    writing,
)
from atomr_mp.mapping.journal_frames import Frame, frames, most_frames

_LOG: Final = logging.getLogger("atomr_mp")


def repair(path: Path, method: str, parameters: Sequence[str]) -> None:
    """Replace a damaged journal by one of its whole records; do nothing if it is whole, or does not exist.

    The damaged file stays beside it, as PATH.damaged. An item that may have been sent and lost its record is in the new
    journal as sent: it is set aside if its method is not idempotent.

    Args:
        path: The journal.
        method: "Actor.method" of the job, used if the journal's own header is lost.
        parameters: Names of its parameters.

    Raises:
        ConfigurationError: The files cannot be read or written, or another map uses the journal.
        JournalMismatch: It has a record that no journal of its size can have.
    """
    if not path.exists():
        return
    with writing(path), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise errors.ConfigurationError(f"the journal {path} is in use by another map") from error
        if not os.fstat(file.fileno()).st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            saved = _Saved(path, data)
            if saved.lost_bytes and not saved.is_of_other_version:
                damaged = _replace(path, saved.content(Header(VERSION, method, list(parameters))))
                _LOG.warning(
                    "the journal %s had %d damaged bytes; %d records are saved, the damaged file is %s",
                    *(path, saved.lost_bytes, saved.count, damaged),
                )


class _Saved:
    """The part of a damaged journal that can be saved."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.count = 0
        self.lost_bytes = 0
        self.is_of_other_version = False
        """Whether it is the journal of another version, which may have records that this one does not know."""
        self._data = data
        self._parts: list[bytes] = []
        self._has_header = False
        self._lost_records = 0
        """Most records that the damaged bytes can have held."""
        self._known: dict[int, bool] = {}
        """Items with records, and whether the last one says that the item may have run."""
        end = behind = 0
        for frame in frames(data):
            record, behind = decoded(frame.record), frame.end
            if record is not None and not (isinstance(record, Header) and self.count):
                check_index(path, record, len(data))
                if frame.at > end:
                    self._lose(end, frame.at)
                self._save(frame, record)
                end = frame.end
        if behind > end:  # at the end too, a whole record that is unknown is no torn one
            self._lose(end, behind)

    def content(self, header: Header) -> list[bytes]:
        """Return the parts of the new file.

        Args:
            header: The new file's header if the damaged file has none.
        """
        first = [] if self._has_header else [framed(header)]
        return [*first, *self._parts, *(framed(Sent(index, b"")) for index in self._doubtful())]

    def _lose(self, at: int, end: int) -> None:
        self.lost_bytes += end - at
        self._lost_records += most_frames(self._data, at, end)
        # The lost part may say that items whose sending was taken back were sent again.
        self._known = {index: sent for index, sent in self._known.items() if sent}

    def _save(self, frame: Frame, record: Record) -> None:
        self.count += 1
        self._parts.append(self._data[frame.at : frame.end])
        if isinstance(record, Header):
            self._has_header = True
            self.is_of_other_version = record.version != VERSION
        else:
            self._known[record.index] = not isinstance(record, Unsent)

    def _doubtful(self) -> list[int]:
        """Return the items without a record that may have been sent. Items are sent in order."""
        most = max(self._known, default=-1) + 1 + self._lost_records
        return [index for index in range(most) if index not in self._known]


def _replace(path: Path, content: list[bytes]) -> Path:
    """Replace a damaged journal by a new one; return where the damaged one is now."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        damaged = _set_aside(path)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    sync_directory(path.parent)
    return damaged


def _set_aside(path: Path) -> Path:
    """Link a file to a name that no other file has."""
    for number in range(1, 1000):
        damaged = path.with_name(f"{path.name}.damaged{'' if number == 1 else f'.{number}'}")
        try:
            damaged.hardlink_to(path)
        except FileExistsError:
            continue
        return damaged
    raise errors.ConfigurationError(f"{path} was repaired many times; remove {path}.damaged*")
