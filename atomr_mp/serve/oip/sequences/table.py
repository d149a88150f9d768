"""The records of open sequences, in memory that the front ends share, with a lock for each sequence.

The parent makes the memory, and it is gone with the last process that has it. A front end takes a sequence's lock, a
record lock of POSIX (see fcntl(2)) that the kernel gives back when the process ends, before it reads or writes the
record. Nothing here blocks. A record that a process has left half written is of a sequence that is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Final

from atomr_mp.serve.oip.sequences.life import SequenceRecord, SequenceState

MEMORY: Final = "atomr-mp-serve-sequences"
"""Name of the memory that front ends share."""

KEY_BYTES: Final = 16

FREE: Final = bytes(KEY_BYTES)
"""The key of a slot that has no record."""

_KEY_WORDS: Final = 2
_RECORD_WORDS: Final = 5
"""Of 64 bits each: the place and the state, the end, the epoch in two, and a checksum of the key and these."""

_WORD_BYTES: Final = 8

_PAIR: Final = struct.Struct("<QQ")

_SLOT_LOCKS: Final = 2**60
"""Locks of slots that are being taken begin behind those of sequences."""

_LOCK_BITS: Final = 56
"""Bits of a key that number its sequence's lock: an offset of a file has 63."""

BROKEN: Final = SequenceRecord(SequenceState.LOST, bytes(16), 0, 0, 0)
"""Stands for a record that is half written: its sequence has ended."""


def key_of(model: str, sequence: int | str) -> bytes:
    """Return the key of a sequence. Numbers and texts are different sequences, and so are those of two models."""
    kind = "t" if isinstance(sequence, str) else "n"
    text = f"{len(model)}:{model}{kind}{sequence}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=KEY_BYTES).digest()


def shared_bytes(slots: int) -> int:
    """Return how many bytes a table of so many sequences takes."""
    return slots * (_KEY_WORDS + _RECORD_WORDS) * _WORD_BYTES


class SequenceTable:
    """The records of all sequences. Used by one thread of a process, which has one table of each memory.

    Args:
        slots: Most sequences that are open at a time.
        descriptor: Descriptor of the shared memory; None for memory of this process alone.
    """

    def __init__(self, slots: int, descriptor: int | None = None) -> None:
        self._slots: Final = slots
        self._descriptor: Final = descriptor
        self._held: Final[set[bytes]] = set()
        """The keys whose locks this process has: the kernel would give it each of them again."""
        self._memory: Final = mmap.mmap(-1 if descriptor is None else descriptor, shared_bytes(slots))
        self._words: Final = memoryview(self._memory).cast("Q")

    def lock(self, key: bytes) -> bool:
        """Take a sequence's lock; False if this or another process has it."""
        if key in self._held or not self._lock(_lock_of(key)):
            return False
        self._held.add(key)
        return True

    def unlock(self, key: bytes) -> None:
        """Give back a sequence's lock."""
        self._held.discard(key)
        self._unlock(_lock_of(key))

    def read(self, key: bytes) -> SequenceRecord | None:
        """Return the record of a sequence whose lock this process has; None if there is none."""
        slot = self._slot_of(key)
        return None if slot is None else self._record(slot, key)

    def write(
        self,
        key: bytes,
        record: SequenceRecord,
        now_ns: int,
        is_lost: Callable[[SequenceRecord], bool] = lambda _record: False,
    ) -> bool:
        """Write the record of a sequence whose lock this process has; False if too many are open.

        Args:
            key: The sequence.
            record: The record.
            now_ns: CLOCK_MONOTONIC; the records of sequences that have ended by now make room.
            is_lost: Says of a record whether its sequence's state is lost: where no other makes room, that does.
        """
        slot = self._slot_of(key)
        if slot is not None:
            self._put(slot, key, record)
            return True
        if self._insert(key, record):
            return True
        for gives_way in (lambda each: each.until_ns <= now_ns, is_lost):
            if self._sweep(gives_way) and self._insert(key, record):
                return True
        return False

    def forget(self, key: bytes) -> None:
        """Remove the record of a sequence whose lock this process has, if there is one."""
        slot = self._slot_of(key)
        if slot is not None:
            self._set_key(slot, FREE)

    def load(self, epoch: bytes, now_ns: int) -> Counter[int]:
        """Return how many sequences of a pool are open, by device."""
        import numpy as np

        words = np.frombuffer(self._memory, "<u8")
        keys = words[: _KEY_WORDS * self._slots].reshape(-1, _KEY_WORDS)
        places, ends, first, second, _ = words[_KEY_WORDS * self._slots :].reshape(-1, _RECORD_WORDS).T
        states, own = places & 0xFF, _PAIR.unpack(epoch)
        is_open = (states == SequenceState.OPEN) | (states == SequenceState.RUNNING)
        is_own = (first == own[0]) & (second == own[1]) & keys.any(axis=1) & (ends > now_ns)
        found = (places[is_open & is_own] >> 8) & 0xFFFF
        return Counter(found.tolist())

    # --- slots -----------------------------------------------------------------------------------------------------

    def _slot_of(self, key: bytes, begin: int = 0) -> int | None:
        """Return the first slot, from one on, that has a key; None if there is none."""
        at, end = begin * KEY_BYTES, self._slots * KEY_BYTES
        while (at := self._memory.find(key, at, end)) >= 0:
            if not at % KEY_BYTES:
                return at // KEY_BYTES
            at += 1
        return None

    def _insert(self, key: bytes, record: SequenceRecord) -> bool:
        """Write a new record into a free slot; False if there is none."""
        slot = self._slot_of(FREE)
        while slot is not None:
            if self._lock(_SLOT_LOCKS + slot):  # else another process takes it now
                try:
                    if self._key(slot) == FREE:
                        self._put(slot, key, record)
                        return True
                finally:
                    self._unlock(_SLOT_LOCKS + slot)
            slot = self._slot_of(FREE, slot + 1)
        return False

    def _sweep(self, gives_way: Callable[[SequenceRecord], bool]) -> bool:
        """Free the slots of sequences that give way; return whether there were any.

        One that is marked as running and whose lock is free is of a process that has died.
        """
        found = False
        for slot in range(self._slots):
            key = self._key(slot)
            if key == FREE or not gives_way(self._record(slot, key)) or not self.lock(key):
                continue
            try:
                if self._key(slot) == key and gives_way(self._record(slot, key)):
                    self._set_key(slot, FREE)
                    found = True
            finally:
                self.unlock(key)
        return found

    def _key(self, slot: int) -> bytes:
        at = _KEY_WORDS * slot
        return _PAIR.pack(self._words[at], self._words[at + 1])

    def _set_key(self, slot: int, key: bytes) -> None:
        """Write a key. One that a process has left half written is of a record with a wrong checksum."""
        at = _KEY_WORDS * slot
        self._words[at], self._words[at + 1] = _PAIR.unpack(key)

    def _record(self, slot: int, key: bytes) -> SequenceRecord:
        at, words = self._at(slot), self._words
        place, until_ns, first, second = (words[at + each] for each in range(4))
        if words[at + 4] != _checksum(key, place, until_ns, first, second):
            return BROKEN
        state, device, generation = place & 0xFF, (place >> 8) & 0xFFFF, place >> 32
        return SequenceRecord(SequenceState(state), _PAIR.pack(first, second), device, generation, until_ns)

    def _put(self, slot: int, key: bytes, record: SequenceRecord) -> None:
        place = record.state | record.device << 8 | record.generation << 32
        content = place, record.until_ns, *_PAIR.unpack(record.epoch)
        at = self._at(slot)
        for number, word in enumerate((*content, _checksum(key, *content))):
            self._words[at + number] = word
        self._set_key(slot, key)  # last: a slot with a key is in use

    def _at(self, slot: int) -> int:
        return _KEY_WORDS * self._slots + _RECORD_WORDS * slot

    # --- locks -----------------------------------------------------------------------------------------------------

    def _lock(self, number: int) -> bool:
        if self._descriptor is None:
            return True
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number, os.SEEK_SET)
        except OSError:
            return False
        return True

    def _unlock(self, number: int) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, number, os.SEEK_SET)


def _lock_of(key: bytes) -> int:
    found: int = _PAIR.unpack(key)[0] % 2**_LOCK_BITS
    return found


def _checksum(key: bytes, *words: int) -> int:
    return zlib.crc32(key + repr(words).encode())
