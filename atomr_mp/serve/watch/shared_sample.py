"""The latest sample of the pool in memory that all front ends share: one of them watches, the others read.

The one that watches holds a lock of the kernel's, which ends with its process. It writes a sample with its number, its
length and its checksum. A reader that finds a wrong checksum has read during a write, and reads again later.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
import zlib
from typing import Final

SAMPLE_BYTES: Final = 4 * 2**20
"""Size of the shared memory, which is only taken as far as it is written: a sample has some hundred kilobytes."""

ATTEMPTS: Final = 3
"""How often one reads what somebody else writes at that moment, or has left torn."""

_HEAD: Final = struct.Struct("=QIII")
"""Number, length of the sample, length of the next one's history, checksum of both."""


class SharedSample:
    """The latest sample. For the threads that watch.

    Args:
        descriptor: Descriptor of the shared memory; None for memory of this process alone.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is not None:
            os.ftruncate(descriptor, SAMPLE_BYTES)
        self._descriptor: Final = descriptor
        """Stays open: closing any descriptor of this memory here would end the kernel's lock."""
        self._memory: Final = mmap.mmap(-1 if descriptor is None else descriptor, SAMPLE_BYTES)
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
        if len(both) > SAMPLE_BYTES - _HEAD.size:
            raise ValueError(f"a sample of {len(both)} bytes, at most {SAMPLE_BYTES - _HEAD.size} are shared")
        number = _HEAD.unpack_from(self._memory)[0]
        self._memory[_HEAD.size : _HEAD.size + len(both)] = both
        _HEAD.pack_into(self._memory, 0, number + 1, len(sample), len(history), zlib.crc32(both))

    def latest(self, after: int = 0) -> tuple[int, bytes] | None:
        """Return the latest sample and its number, None if there is none newer than `after`."""
        number, sample, _ = self._read()
        return (number, sample) if number != after and sample else None

    def history(self) -> bytes:
        """Return the history of the latest sample; empty if there was none."""
        return self._read()[2]

    def _read(self) -> tuple[int, bytes, bytes]:
        for _ in range(ATTEMPTS):
            number, length, more, checksum = _HEAD.unpack_from(self._memory)
            both = self._memory[_HEAD.size : _HEAD.size + length + more]
            if zlib.crc32(both) == checksum:
                return number, both[:length], both[length:]
        return number, b"", b""
