"""A map's journal: the outcomes of its items, in a file that outlives every process. An edge over one file.

The file is a sequence of msgpack arrays [CRC-32, record]: a header, and a record for each outcome, in the order in
which they came. Each record is one `write`, so a process that is killed can tear only the last record, which is dropped
when the journal is opened again. The file is synced to the disk once a second (`SYNC_S`) and at the end: a crash of the
machine loses the outcomes of the last second. A bad record before whole ones is damage, not a torn end: such a file is
refused, and `journal_repair` saves the whole records.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import time
import weakref
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.client.fingerprint import fingerprint
from atomr_mp.mapping.journal_frames import LEAST_BYTES, frames
from atomr_mp.mapping.schedule import Failure, RecordedResult
from atomr_mp.protocol import values
from atomr_mp.protocol.codec import ErrorInfo, Message
from atomr_mp.protocol.decoders import decoder
from atomr_mp.protocol.words import counted

VERSION: Final = 1
"""The version of the file's format."""

SYNC_S: Final = 1.0
"""Longest time that an outcome waits for the disk while others come."""

Index = Annotated[int, msgspec.Meta(ge=0)]
"""An item's place in the input."""

MOST_UNRECORDED: Final = 2**20
"""Most items before one with a record that have none themselves: those under way. No pool has so many."""

MAX_RECORD_BYTES: Final = 2**31 - 1
"""Longest record: the results of one item."""

RECORD_MARGIN_BYTES: Final = 2**20
"""Most bytes of a record beside its results, and most of the next record that a reader may hold."""

READ_BYTES: Final = 2**16
"""Bytes read from the file at a time."""

_LOG: Final = logging.getLogger("atomr_mp")


class Header(Message, frozen=True, tag="atomr-mp map journal"):
    """The job that the journal belongs to."""

    version: int
    method: str
    """ "Actor.method"."""
    parameters: list[str]


class Sent(Message, frozen=True, tag="sent"):
    """An item of a method that is not idempotent is about to be sent: from now on it may have run."""

    index: Index
    item: bytes
    """The item's fingerprint; empty in a repaired journal, where the item's own record was lost."""


class Unsent(Message, frozen=True, tag="unsent"):
    """An item that was about to be sent has certainly not run."""

    index: Index


class Done(Message, frozen=True, tag="done"):
    """An item's result."""

    index: Index
    item: bytes
    body: bytes
    frames: list[bytes]


class Failed(Message, frozen=True, tag="failed"):
    """An item is set aside: it failed, and will not be tried again."""

    index: Index
    item: bytes
    error: ErrorInfo
    attempts: int


Record = Header | Sent | Unsent | Done | Failed


class Journal:
    """A map's journal, open for writing. One process at a time; not thread-safe.

    Args:
        path: The file; made if it does not exist.
        method: The items' method.
        parameters: Names of its parameters.
        idempotent: Whether items may run twice. If not, those that were sent when the job was interrupted are set
            aside: they may have run.
        retry_failed: Try again the items that were set aside.

    Raises:
        JournalMismatch: The file is the journal of another job, or not a journal.
        JournalDamaged: Its middle is damaged.
        ConfigurationError: The file cannot be used, or another process does.
    """

    def __init__(
        self, path: Path, method: str, parameters: Sequence[str], *, idempotent: bool, retry_failed: bool = False
    ) -> None:
        self.path: Final = path
        self._method: Final = method
        self._writes_sent: Final = not idempotent
        self._retry_failed: Final = retry_failed
        self._places = array("q")
        """Each item's place in the file: where its last record that counts begins, 0 if it has none."""
        self._end = 0
        """The place behind the last record."""
        self._known = 0
        """One more than the greatest index of an item that is certainly in the input."""
        self._items: dict[int, bytes] = {}
        """Fingerprints of the items that are under way."""
        self.poisonous: Final[dict[int, bytes]] = {}
        """Fingerprints of items that ended as `PoisonRequest` in an earlier run and are tried again."""
        self._sent: set[int] = set()
        """Items that the file has as sent in this run."""
        self._synced_s = time.monotonic()
        self._dirty = False
        with writing(path):
            self._fd, made = _open_or_make(path)
        self._closing: Final = weakref.finalize(self, _close, self._fd, os.getpid())
        try:
            self._open(Header(VERSION, method, list(parameters)), made=made)
        except BaseException:
            self._closing()
            raise

    @property
    def items(self) -> int:
        """Number of items that the journal knows: one more than the greatest index."""
        return self._known

    def is_whole(self, items: int) -> bool:
        """Whether each of so many items, and no other, has an outcome."""
        return self._known == len(self._places) == items and all(self._places)

    def outcome(self, index: int, item: object) -> RecordedResult | Failure | None:
        """Return an item's outcome of an earlier run, None if it has none yet.

        Raises:
            JournalMismatch: The journal has another item at this index.
            InvalidRequest: The item cannot be sent.
        """
        digest = fingerprint(self._method, (item,))
        if digest is None:
            raise errors.InvalidRequest(
                f"item {index}, counted from 0, has a ref, which names no content: a map with a journal takes values"
            )
        place = self._places[index] if index < len(self._places) else 0
        if not place:
            self._items[index] = digest
            return None
        record = self._read(place)
        assert isinstance(record, Sent | Done | Failed)
        if record.item and record.item != digest:
            raise errors.JournalMismatch(
                f"item {index}, counted from 0, is another than that of the journal {self.path}; go on with the input "
                "it was begun with, or use a new journal"
            )
        match record:
            case Done():
                return RecordedResult(values.Decoder[Any]().decode(record.body, record.frames))
            case Failed():
                return Failure(index, record.error.error(), record.attempts)
            case Sent():
                why = (
                    "it was under way when an earlier run was interrupted"
                    if record.item
                    else "it may have run, and the journal was damaged where its record may have been"
                )
                interrupted = errors.Cancelled(
                    f"{why}; its method is not idempotent, so it is not sent again", maybe_executed=True
                )
                return Failure(index, interrupted, 1)

    def sending(self, index: int) -> None:
        """Record that an item is about to be sent, if it matters."""
        if self._writes_sent and index not in self._sent:
            self._sent.add(index)
            self._append(Sent(index, self._items[index]))

    def unsent(self, index: int) -> None:
        """Record that an item, recorded as about to be sent, has certainly not run and has no outcome."""
        del self._items[index]
        if index in self._sent:
            self._sent.discard(index)
            self._append(Unsent(index))

    def done(self, index: int, result: object) -> RecordedResult:
        """Keep an item's result; return the stand-in for it.

        Raises:
            InvalidRequest: The result cannot be kept: it has refs, arrays of more than 16 MiB, or some 2 GiB in all.
        """
        try:
            body, frames, placed = values.encode(result, payload_bytes=MAX_RECORD_BYTES)
        except errors.InvalidRequest as error:
            error.add_note(f"The result of item {index} cannot be kept in a journal.")
            raise
        if placed:
            raise errors.InvalidRequest(
                f"the result of item {index} has a ref, which ends with its worker and cannot be kept in a journal",
                maybe_executed=True,
            )
        nbytes = len(body) + sum(map(len, frames))
        if nbytes > MAX_RECORD_BYTES - RECORD_MARGIN_BYTES:
            raise errors.InvalidRequest(
                f"the result of item {index} takes {nbytes} bytes, more than can be kept in a journal",
                maybe_executed=True,
            )
        self._append(Done(index, self._settled(index), body, [bytes(frame) for frame in frames]))
        return RecordedResult(result)

    def failed(self, failure: Failure) -> None:
        """Set an item aside."""
        digest = self._settled(failure.index)
        self._append(Failed(failure.index, digest, ErrorInfo.of(failure.error), failure.attempts))

    def ended(self, items: int) -> None:
        """Take in that the input has ended, and how many items it had.

        Raises:
            JournalMismatch: The journal knows of more items.
        """
        if items < self.items:
            raise errors.JournalMismatch(
                f"the input has {counted(items, 'item')}, the journal {self.path} knows of {self.items}; go on with "
                "the input it was begun with, or use a new journal"
            )

    def sync(self) -> None:
        """Sync new records to the disk if `SYNC_S` have passed since the last time."""
        now_s = time.monotonic()
        if self._dirty and now_s - self._synced_s > SYNC_S:
            self._synced_s = now_s
            self._put_on_disk()

    def close(self) -> None:
        """Sync everything to the disk and close the file; may be called twice."""
        if self._closing.alive:
            try:
                if self._dirty:
                    self._put_on_disk()
            finally:
                self._closing()

    def _open(self, header: Header, *, made: bool) -> None:
        with writing(self.path):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise errors.ConfigurationError(f"the journal {self.path} is in use by another map") from error
            size = os.fstat(self._fd).st_size
            self._end = self._take_in(header)
            if self._end < size:
                self._refuse_damage(size)
                _LOG.warning("the last %d bytes of the journal %s are no record: dropped", size - self._end, self.path)
                os.ftruncate(self._fd, self._end)
            if not self._end:
                self._begin(header, made=made)

    def _begin(self, header: Header, *, made: bool) -> None:
        """Write the header; if that is not possible, remove a file that was made for it."""
        try:
            self._append(header)
            self._put_on_disk()
        except BaseException:
            if made:
                self.path.unlink(missing_ok=True)
            raise
        sync_directory(self.path.parent)

    def _take_in(self, header: Header) -> int:
        """Read all records; return the place behind the last."""
        end, size = 0, os.fstat(self._fd).st_size
        for record, at, behind in _records(self._fd):
            check_index(self.path, record, size)
            if not end:
                self._check_header(record, header)
            elif not self._count(record, at):
                return end
            end = behind
        if not end and not framed(header).startswith(os.pread(self._fd, 2**16, 0)):
            self._refuse_damage(size)
            raise errors.JournalMismatch(f"{self.path} is no journal of a map; name another file, or remove it")
        return end

    def _refuse_damage(self, size: int) -> None:
        """Refuse a file in which whole records follow a bad one; a bad end that nothing whole follows was torn."""
        with mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) as data:
            whole = [(frame.at, decoded(frame.record) is not None) for frame in frames(data)]
        behind = [at for at, _ in whole if at >= self._end]
        if not behind:
            return
        bad = (
            f"the bytes from {self._end:,} to {behind[0]:,} are no record, and whole records follow"
            if behind[0] > self._end
            else f"the record at {self._end:,} is none of this journal"
        )
        saved = sum(known for _, known in whole)
        raise errors.JournalDamaged(
            f"the journal {self.path} is damaged: {bad}. {saved:,} records can be saved: run the same command with "
            "--repair-journal (in a program: `repair_journal=True`). The damaged file stays beside the new one, as "
            f"{self.path.name}.damaged. Items whose record is lost run again if their method is idempotent, and are "
            "set aside otherwise"
        )

    def _check_header(self, record: Record, header: Header) -> None:
        if not isinstance(record, Header) or record.version != VERSION:
            raise errors.JournalMismatch(f"{self.path} is no journal of this version; finish it with the one before")
        if record != header:
            raise errors.JournalMismatch(
                f"{self.path} is the journal of {record.method}({', '.join(record.parameters)}), this job is of "
                f"{header.method}({', '.join(header.parameters)}); name another file"
            )

    def _count(self, record: Record, at: int) -> bool:
        """Take a record in; return whether it makes sense."""
        match record:
            case Header():
                return False
            case Unsent(index):
                place = 0
            case Sent(index):
                place = 0 if self._retry_failed or not self._writes_sent else at
            case Failed(index, item, error):
                place = 0 if self._retry_failed else at
                if self._retry_failed and error.code == errors.PoisonRequest.code:
                    self.poisonous[index] = item
            case Done(index):
                place = at
                self.poisonous.pop(index, None)
        if not isinstance(record, Sent) or record.item:
            self._known = max(self._known, index + 1)
        if index >= len(self._places):
            self._places.extend([0] * (index + 1 - len(self._places)))
        self._places[index] = place
        return True

    def _settled(self, index: int) -> bytes:
        self._sent.discard(index)
        return self._items.pop(index)

    def _read(self, place: int) -> Record:
        for record, _, _ in _records(self._fd, place):
            return record
        raise errors.JournalDamaged(
            f"the journal {self.path} is damaged at byte {place:,}, since it was opened; run the same command with "
            "--repair-journal (in a program: `repair_journal=True`)"
        )

    def _append(self, record: Record) -> None:
        """Write a record whole or not at all."""
        data = framed(record)
        with writing(self.path):
            written = 0
            try:
                while written < len(data):
                    written += os.pwrite(self._fd, data[written:], self._end + written)
            except OSError:
                os.ftruncate(self._fd, self._end)
                raise
        self._end += len(data)
        self._dirty = True

    def _put_on_disk(self) -> None:
        with writing(self.path):
            os.fdatasync(self._fd)
        self._dirty = False


def _close(fd: int, owner: int) -> None:
    """Close a journal's file and end its lock, which forks of the owning process share."""
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _open_or_make(path: Path) -> tuple[int, bool]:
    """Open a journal's file; return its descriptor, and whether it was made."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        return os.open(path, flags | os.O_CREAT, 0o666), False


def header_of(path: Path) -> Header | None:
    """Return a journal's header; None if the file does not begin with one, or there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # which does not wait for a pipe's other end
    except OSError:
        return None
    try:
        record = next((record for record, _, _ in _records(fd)), None)
    except OSError:
        return None
    finally:
        os.close(fd)
    return record if isinstance(record, Header) else None


def _records(fd: int, at: int = 0) -> Iterator[tuple[Record, int, int]]:
    """Yield the records from a place on, each with its place and the place behind it, up to the first bad one."""
    import msgpack

    unpacker = msgpack.Unpacker(
        max_buffer_size=MAX_RECORD_BYTES,
        max_bin_len=MAX_RECORD_BYTES,
        max_array_len=2,
        max_map_len=0,
        max_str_len=0,
        max_ext_len=0,
    )
    begin, fed, behind = at, at, at
    try:
        while data := os.pread(fd, READ_BYTES, fed):
            fed += len(data)
            unpacker.feed(data)
            for frame in unpacker:
                match frame:
                    case [int(check), bytes(encoded)] if check == zlib.crc32(encoded):
                        at, behind = behind, begin + unpacker.tell()
                        yield _DECODER.decode(encoded), at, behind
                    case _:
                        return
    except (ValueError, msgpack.UnpackException, msgspec.DecodeError, RecursionError):
        return


def decoded(encoded: bytes) -> Record | None:
    """Return the record in a frame, None if this version has no such record."""
    try:
        record: Record = _DECODER.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record


def check_index(path: Path, record: Record, size: int) -> None:
    """Refuse a record of an item that no journal of this size can have come to: it would take memory without bound.

    Raises:
        JournalMismatch: It is one.
    """
    if not isinstance(record, Header) and record.index > MOST_UNRECORDED + size // LEAST_BYTES:
        raise errors.JournalMismatch(
            f"{path} is no journal that can be used: it has a record of item {record.index:,}, and its {size:,} bytes "
            "cannot hold those of the items before; name another file"
        )


def framed(record: Record) -> bytes:
    """Return a record in the file's form, with its checksum."""
    encoded = msgspec.msgpack.encode(record)
    return msgspec.msgpack.encode((zlib.crc32(encoded), encoded))


def sync_directory(path: Path) -> None:
    """Sync a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Translate system errors about the journal."""
    try:
        yield
    except OSError as error:
        raise errors.ConfigurationError(f"the journal {path} cannot be used: {error}") from error


_DECODER: Final = decoder(Record)
