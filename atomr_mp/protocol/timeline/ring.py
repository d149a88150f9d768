"""A ring of records in shared memory, with one process that writes and one that reads. Pure over a memoryview.

A record is a word with its length and its checksum, and its bytes, up to the next whole word. The word `HEAD` counts
the words written so far, and guards them; `TAIL` counts those that were read. The reader believes nothing: whatever
does not fit ends the ring for it, and is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from zlib import crc32

from atomr_mp import errors
from atomr_mp.protocol.timeline.records import RECORDS, Record

RING_BYTES: Final = 4 * 2**20
"""Size of a ring: some 30,000 records, which the tracer reads twenty times a second. Only used pages are memory."""

MAX_RECORD_BYTES: Final = 8192
"""Longest record; nearly all have less than 200 bytes."""

MAGIC: Final = 0x61746F6D74726331

_MAGIC: Final = 0
_GENERATION: Final = 1
_PID: Final = 2
_HEAD: Final = 3
_TAIL: Final = 4
_DROPPED: Final = 5
_FIRST: Final = 512
"""Word where the records begin."""

_WORDS: Final = RING_BYTES // 8 - _FIRST

_encode: Final = RECORDS.encode


class RecordWriter:
    """The worker's side. One thread at a time.

    Args:
        memory: `RING_BYTES` writable bytes, zero at first.
        generation: The incarnation that writes.
        pid: Its process.
    """

    def __init__(self, memory: memoryview, generation: int, pid: int) -> None:
        self._words = memory.cast("Q")
        self._bytes = memory
        self._head = self._dropped = 0
        self._words[_GENERATION] = generation
        self._words[_PID] = pid
        self._words[_MAGIC] = MAGIC

    def write(self, record: Record) -> None:
        """Write a record, or count it as dropped if there is no room."""
        data = _encode(record)
        nbytes = len(data)
        count = 1 + (nbytes + 7) // 8
        words, head = self._words, self._head
        at = head % _WORDS
        skipped = _WORDS - at if at + count > _WORDS else 0
        # A reader that is ahead of the writer is not ours; it may have what it likes of the ring.
        if head + skipped + count - words[_TAIL] > _WORDS or nbytes > MAX_RECORD_BYTES:
            self._dropped += 1
            words[_DROPPED] = self._dropped
            return
        if skipped:
            words[_FIRST + at] = 0  # the next record is at the beginning
            at = 0
        first = 8 * (_FIRST + at + 1)
        self._bytes[first : first + nbytes] = data  # no word: HEAD and a checksum guard these bytes
        words[_FIRST + at] = nbytes << 32 | crc32(data)
        self._head = words[_HEAD] = head + skipped + count

    def release(self) -> None:
        """Let the memory go."""
        self._words.release()
        self._bytes.release()


class RecordReader:
    """The tracer's side.

    Args:
        memory: The ring, writable.
    """

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("Q")
        self._bytes = memory
        self._tail = 0
        self.garbled = ""
        """Why nothing more is read: what was found is no worker's."""

    @property
    def generation(self) -> int:
        """The incarnation that writes, 0 if none has begun."""
        return self._words[_GENERATION] if self._words[_MAGIC] == MAGIC else 0

    @property
    def pid(self) -> int:
        """Its process."""
        return self._words[_PID]

    @property
    def dropped(self) -> int:
        """How many records have found no room."""
        return self._words[_DROPPED]

    def read(self) -> Iterator[Record]:
        """Yield the records that have come since, and make room for further ones."""
        words = self._words
        if self.garbled or words[_MAGIC] != MAGIC:
            return
        head = words[_HEAD]
        if not 0 <= head - self._tail <= _WORDS:
            self.garbled = "its end is before its beginning"
        try:
            while not self.garbled and self._tail < head:
                record = self._next(head - self._tail)
                if record is not None:
                    yield record
        finally:  # the caller may take no more
            words[_TAIL] = self._tail

    def release(self) -> None:
        """Let the memory go."""
        self._words.release()
        self._bytes.release()

    def _next(self, available: int) -> Record | None:
        """Return the record at the tail; None if there is none yet, or what is there is none."""
        at = self._tail % _WORDS
        word = self._words[_FIRST + at]
        if not word:
            self._tail += _WORDS - at
            if _WORDS - at > available or not at:
                self.garbled = "a record is empty"
            return None
        nbytes, checksum = word >> 32, word & 0xFFFFFFFF
        count = 1 + (nbytes + 7) // 8
        if nbytes > MAX_RECORD_BYTES or count > available or at + count > _WORDS:
            self.garbled = f"a record of {nbytes} bytes"
            return None
        first = 8 * (_FIRST + at + 1)
        data = bytes(self._bytes[first : first + nbytes])
        self._tail += count
        if crc32(data) != checksum:
            self.garbled = "a record differs from its checksum"
            return None
        try:
            return RECORDS.decode(data)
        except errors.ProtocolError as error:
            self.garbled = error.message
            return None
