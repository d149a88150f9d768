"""The latest sample of the pool in memory that all front ends share: one of them watches, the others read.

The one that watches holds a lock of the kernel's, which ends with its process. The memory has two places, and a sample
is written into that of the older one. Each begins with aligned words: the sample's number, which is 0 while the place
is being written, two lengths and a checksum. So readers find a whole sample at any moment, also after a writer that was
killed while it wrote; one that the writer overtakes reads again.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import zlib
from typing import Final

SAMPLE_BYTES: Final = 4 * 2**20
"""Size of a place, which takes memory only as far as it is written: a sample has some hundred kilobytes."""

PLACES: Final = 2

ATTEMPTS: Final = 100
"""How often one reads what the writer overtakes."""

_NUMBER, _LENGTH, _HISTORY_LENGTH, _CHECKSUM = range(4)
"""Words of a place. Behind the sample lies the history, for the next process that watches."""

_HEAD_BYTES: Final = 32


class SharedSample:
    """The latest sample. For the threads that watch.

    Args:
        descriptor: Descriptor of the shared memory; None for memory of this process alone.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is not None:
            os.ftruncate(descriptor, PLACES * SAMPLE_BYTES)
        self._descriptor: Final = descriptor
        """Stays open: closing any descriptor of this memory here would end the kernel's lock."""
        self._memory: Final = mmap.mmap(-1 if descriptor is None else descriptor, PLACES * SAMPLE_BYTES)
        view = memoryview(self._memory).cast("Q")
        self._heads: Final = [
            view[at // 8 : (at + _HEAD_BYTES) // 8] for at in range(0, len(self._memory), SAMPLE_BYTES)
        ]
        self._ours: Final = threading.Lock()
        """The kernel's lock belongs to the process; this one is for its threads."""

    def acquire(self) -> bool:
        """Become the process that watches; return False if another watches."""
        if not self._ours.acquire(blocking=False):
            return False
        if self._descriptor is not None:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._ours.release()
                return False
        return True

    def release(self) -> None:
        """Let another process watch. The latest sample is forgotten, since readers would take it for a new one."""
        self.publish(b"")
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        self._ours.release()

    def publish(self, sample: bytes) -> None:
        """Write a sample; empty for none. The history stays.

        Raises:
            ValueError: It is too long.
        """
        self._write(sample, self.history())

    def publish_history(self, history: bytes) -> None:
        """Write data for the next process that watches, to go on from; the sample stays.

        Raises:
            ValueError: It is too long.
        """
        self._write(self._read()[1], history)

    def _write(self, sample: bytes, history: bytes) -> None:
        both = sample + history
        if len(both) > SAMPLE_BYTES - _HEAD_BYTES:
            raise ValueError(f"a sample of {len(both)} bytes, at most {SAMPLE_BYTES - _HEAD_BYTES} are shared")
        place, number = self._newest()
        older = 1 - place
        head, begin = self._heads[older], older * SAMPLE_BYTES + _HEAD_BYTES
        head[_NUMBER] = 0
        self._memory[begin : begin + len(both)] = both  # no word: the number and the checksum guard it
        head[_LENGTH], head[_HISTORY_LENGTH], head[_CHECKSUM] = len(sample), len(history), zlib.crc32(both)
        head[_NUMBER] = number + 1

    def latest(self, after: int = 0) -> tuple[int, bytes] | None:
        """Return the latest sample and its number, None if there is none newer than `after`."""
        number, sample, _ = self._read()
        return (number, sample) if number != after and sample else None

    def history(self) -> bytes:
        """Return the history of the latest sample; empty if there was none."""
        return self._read()[2]

    def _read(self) -> tuple[int, bytes, bytes]:
        place, number = self._newest()
        for _ in range(ATTEMPTS):
            head, begin = self._heads[place], place * SAMPLE_BYTES + _HEAD_BYTES
            length, more, checksum = head[_LENGTH], head[_HISTORY_LENGTH], head[_CHECKSUM]
            both = self._memory[begin : begin + min(length + more, SAMPLE_BYTES - _HEAD_BYTES)]
            if head[_NUMBER] == number:
                return (number, both[:length], both[length:]) if zlib.crc32(both) == checksum else (number, b"", b"")
            place, number = self._newest()
        return number, b"", b""

    def _newest(self) -> tuple[int, int]:
        """Return the place of the newest sample, and its number."""
        first, second = (head[_NUMBER] for head in self._heads)
        return (1, second) if second > first else (0, first)
