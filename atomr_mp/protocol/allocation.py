"""The free bytes of a slab: first fit, neighbours joined. Pure; knows no memory, only offsets."""

from __future__ import annotations

import bisect
from typing import Final

ALIGNMENT_BYTES: Final = 512
"""Every buffer begins at a multiple: what CUDA's own allocator guarantees is 256, and TMA, cuBLASLt and cuTENSOR are
content with less."""

SLAB_BYTES: Final = 64 * 2**20
"""Usual size of a slab; a buffer larger than half of it has a slab of its own."""

PAGE_BYTES: Final = 2 * 2**20
"""Granularity of large slabs: CUDA's, and that of huge pages."""


class Space:
    """The free and taken ranges of one slab.

    Args:
        nbytes: Size of the slab.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes: Final = nbytes
        self.used_bytes = 0
        self._taken: dict[int, int] = {}
        """Bytes taken at an offset."""
        self._offsets = [0]
        """Offsets of the free ranges, ascending; no two touch."""
        self._sizes = [nbytes]

    def __bool__(self) -> bool:
        """Return whether anything is taken."""
        return bool(self._taken)

    def take(self, nbytes: int) -> int | None:
        """Return the offset of `nbytes` that are free no more, or None if they are not to be had in one piece."""
        nbytes = aligned(nbytes)
        at = next((at for at, size in enumerate(self._sizes) if size >= nbytes), None)
        if at is None:
            return None
        offset = self._offsets[at]
        if self._sizes[at] == nbytes:
            del self._offsets[at], self._sizes[at]
        else:
            self._offsets[at] += nbytes
            self._sizes[at] -= nbytes
        self._taken[offset] = nbytes
        self.used_bytes += nbytes
        return offset

    def taken(self, offset: int) -> int:
        """Return how many bytes are taken at an offset."""
        return self._taken[offset]

    def give(self, offset: int) -> None:
        """Free the range at an offset."""
        nbytes = self._taken.pop(offset)
        self.used_bytes -= nbytes
        at = bisect.bisect(self._offsets, offset)
        if at < len(self._offsets) and offset + nbytes == self._offsets[at]:
            nbytes += self._sizes[at]
            del self._offsets[at], self._sizes[at]
        if at > 0 and self._offsets[at - 1] + self._sizes[at - 1] == offset:
            self._sizes[at - 1] += nbytes
        else:
            self._offsets.insert(at, offset)
            self._sizes.insert(at, nbytes)


def aligned(nbytes: int) -> int:
    """Return the bytes that a buffer takes of its slab."""
    return max(1, -(-nbytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES


def slab_bytes_for(nbytes: int) -> int:
    """Return the size of a new slab in which there is room for a buffer of `nbytes`."""
    return SLAB_BYTES if nbytes <= SLAB_BYTES // 2 else -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def slab_bytes_within(nbytes: int) -> int:
    """Return the size of the largest slab that so many bytes allow, 0 for none."""
    return max(0, nbytes) // PAGE_BYTES * PAGE_BYTES
