"""Frames of a map's journal, found again behind damage. Pure: decisions about bytes.

A frame is a msgpack array [CRC-32, record]. Behind damage nobody knows where the next one begins; its shape and its
checksum tell.
"""

from __future__ import annotations

import mmap
import re
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple


class Frame(NamedTuple):
    """A whole frame."""

    at: int
    """Where it begins."""
    end: int
    """Where it ends."""
    record: bytes
    """Its content; the checksum holds."""


def frames(data: bytes | mmap.mmap, at: int = 0) -> Iterator[Frame]:
    """Yield all whole frames from a place on, and pass over other bytes."""
    while found := _BEGINS.search(data, at):
        begin, size = found.end(), int.from_bytes(found["size"])
        record = data[begin : begin + size]
        if len(record) == size and zlib.crc32(record) == int.from_bytes(found["check"]):
            yield Frame(found.start(), begin + size, record)
            at = begin + size
        else:
            at = found.start() + 1


def most_frames(data: bytes | mmap.mmap, at: int, end: int) -> int:
    """Return how many frames the bytes from `at` to `end` may have been, at most."""
    found = _BEGINS.match(data, at)
    if found is not None and found.end() + int.from_bytes(found["size"]) == end:
        return 1  # a single frame of exactly this length
    return max(1, (end - at) // LEAST_BYTES)


LEAST_BYTES: Final = 24
"""Shortest frame that says that an item was sent."""

_BEGINS: Final = re.compile(
    rb"\x92(?:\xcc|\xcd(?=..)|\xce(?=....)|(?=[\x00-\x7f]))"
    rb"(?P<check>(?<=\xcc).|(?<=\xcd)..|(?<=\xce)....|[\x00-\x7f])"
    rb"(?:\xc4(?=.)|\xc5(?=..)|\xc6(?=....))"
    rb"(?P<size>(?<=\xc4).|(?<=\xc5)..|(?<=\xc6)....)"
    rb"(?=[\x91-\x9f][\xa1-\xbf])",
    re.DOTALL,
)
"""A frame up to its record, which is an array that begins with a short text. In msgpack: an array of two elements, an
unsigned integer with 0, 1, 2 or 4 bytes after its first, and bytes with a length of 1, 2 or 4 bytes."""
