"""The latest look at the pool in memory that all front ends share: one of them watches, the others read.

The one that watches holds a lock of the kernel's, which ends with its process. It writes a look with its number, its
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

LOOK_BYTES: Final = 4 * 2**20
"""Size of the shared memory, which is only taken as far as it is written: a look has some hundred kilobytes at most."""

ATTEMPTS: Final = 3
"""How often one reads what somebody else writes at that moment, or has left torn."""

_HEAD: Final = struct.Struct("=QIII")
"""Number, length of the look, length of the next one's basis, checksum of both."""


class SharedLook:
    """The latest look. For the threads that watch.

    Args:
        descriptor: Descriptor of the shared memory; None for memory of this process alone.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is not None:
            os.ftruncate(descriptor, LOOK_BYTES)
        self._descriptor: Final = descriptor
        """Stays open: closing any descriptor of this memory here would end the kernel's lock."""
        self._memory: Final = mmap.mmap(-1 if descriptor is None else descriptor, LOOK_BYTES)
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
        """Let another process watch. The latest look is forgotten, since readers would take it for a new one."""
        self.publish(b"")
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        self._ours.release()

    def publish(self, look: bytes) -> None:
        """Write a look; empty for none. The basis stays.

        Raises:
            ValueError: It is too long.
        """
        self._write(look, self.basis())

    def publish_basis(self, basis: bytes) -> None:
        """Write data for the next process that watches, to go on from; the look stays.

        Raises:
            ValueError: It is too long.
        """
        self._write(self._read()[1], basis)

    def _write(self, look: bytes, basis: bytes) -> None:
        both = look + basis
        if len(both) > LOOK_BYTES - _HEAD.size:
            raise ValueError(f"a look of {len(both)} bytes, at most {LOOK_BYTES - _HEAD.size} are shared")
        number = _HEAD.unpack_from(self._memory)[0]
        self._memory[_HEAD.size : _HEAD.size + len(both)] = both
        _HEAD.pack_into(self._memory, 0, number + 1, len(look), len(basis), zlib.crc32(both))

    def latest(self, after: int = 0) -> tuple[int, bytes] | None:
        """Return the latest look and its number, None if there is none newer than `after`."""
        number, look, _ = self._read()
        return (number, look) if number != after and look else None

    def basis(self) -> bytes:
        """Return the basis of the latest look; empty if there was none."""
        return self._read()[2]

    def _read(self) -> tuple[int, bytes, bytes]:
        for _ in range(ATTEMPTS):
            number, length, more, checksum = _HEAD.unpack_from(self._memory)
            both = self._memory[_HEAD.size : _HEAD.size + length + more]
            if zlib.crc32(both) == checksum:
                return number, both[:length], both[length:]
        return number, b"", b""
