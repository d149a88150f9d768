"""What clients say of their regions: names, keys and extents. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeGuard

import msgspec

from atomr_mp import errors
from atomr_mp.serve.problems import Problem

MOST_NAME_BYTES: Final = 255
"""Most bytes of a region's name, and of a key: a file's name has no more."""

END: Final = 2**63
"""Offsets and sizes are below, as those of files."""


class Region(msgspec.Struct, frozen=True):
    """A registered region. Its file is known by its inode, since another one may get the same key."""

    name: str
    key: str
    """As the client has given it."""
    offset: int
    """Where it begins in the file, in bytes."""
    byte_size: int
    device: int
    """The file system's number."""
    inode: int
    slot: int
    """Its place among the times of the latest uses."""

    @property
    def end(self) -> int:
        """Where it ends in the file."""
        return self.offset + self.byte_size


class RegionPart(NamedTuple):
    """A part of a region, for one tensor."""

    name: str
    """The region's."""
    offset: int
    """Bytes from the beginning of the region."""
    byte_size: int
    region: Region | None = None
    """Its registration; None until it has been looked up."""


class Wish(NamedTuple):
    """What a client asks to have registered; checked."""

    name: str
    key: str
    offset: int
    byte_size: int


def wish_of(name: object, key: object, offset: object, byte_size: object) -> Wish:
    """Return a registration that is asked for.

    Raises:
        InvalidRequest: It cannot be one.
    """
    if not isinstance(name, str) or not 0 < _length(name) <= MOST_NAME_BYTES:
        raise errors.InvalidRequest(f"a region has a name of 1 to {MOST_NAME_BYTES} bytes, not {shown(name)}")
    if not isinstance(key, str):
        raise errors.InvalidRequest(f"region {shown(name)}: `key` is a text, not {shown(key)}")
    file_name(key)
    if not is_size(offset) or not is_size(byte_size) or not byte_size or offset + byte_size >= END:
        raise errors.InvalidRequest(
            f"region {shown(name)}: `offset` is a number of bytes from 0, and `byte_size` one from 1; they are "
            f"{shown(offset)} and {shown(byte_size)}"
        )
    return Wish(name, key, offset, byte_size)


def file_name(key: str) -> str:
    """Return the name of the file of a key in /dev/shm.

    Raises:
        InvalidRequest: It is no name in that folder itself.
    """
    name = key.removeprefix("/")
    if not 0 < _length(name) <= MOST_NAME_BYTES or name in {".", ".."} or "/" in name or "\0" in name:
        raise errors.InvalidRequest(
            f"the key {shown(key)} is no name of shared memory: that is 1 to {MOST_NAME_BYTES} bytes, perhaps with one "
            "/ in front"
        )
    return name


def resolved(extent: RegionPart, region: Region | None) -> RegionPart:
    """Return an extent with its registration.

    Raises:
        Problem: 404, no such region is registered.
        InvalidRequest: It is not within the region.
    """
    if region is None:
        raise unknown(extent.name)
    if extent.offset + extent.byte_size > region.byte_size:
        raise errors.InvalidRequest(
            f"{extent.byte_size} bytes at offset {extent.offset} are not within the shared memory region "
            f"{shown(extent.name)}, which has {region.byte_size}"
        )
    return extent._replace(region=region)


def unknown(name: str, kind: str = "system") -> Problem:
    """Return the refusal of a name by which no region of a kind is registered; its first words are Triton's."""
    why = f"Unable to find {kind} shared memory region: {shown(name)}; a region that was not used for long is forgotten"
    return Problem(404, "region_not_found", why)


def is_size(given: object) -> TypeGuard[int]:
    """Return whether a value is an offset or a size."""
    return type(given) is int and 0 <= given < END


def shown(given: object) -> str:
    """Return a client's value for a message."""
    return repr(given)[:100]


def _length(name: str) -> int:
    """Return how many bytes a name has; 0 if it is no text, as of a path that is no UTF-8."""
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        return 0
