"""EDGE: clients' files in /dev/shm, which are opened for each use and never mapped.

What is not a regular file of this server's user looks to a client as what is not there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.serve.oip.region import Region, RegionPart, Wish, file_name, shown

DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 - the files are clients'

SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What keeps the server from opening a file for a reason of its own."""

_SAFE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class SharedFiles:
    """Looks at clients' files, reads them and writes them.

    Args:
        directory: Where they are.

    Raises:
        ConfigurationError: There is no such folder.
    """

    def __init__(self, directory: Path = DIRECTORY) -> None:
        try:
            self._directory: Final = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise errors.ConfigurationError(f"{directory} is needed for shared memory: {error}") from error

    def close(self) -> None:
        """Close the folder; may not be called twice."""
        os.close(self._directory)

    def identity(self, wish: Wish) -> tuple[int, int]:
        """Return the device and the inode of the file that a client wants to register.

        Raises:
            InvalidRequest: There is no such file, or it is too short.
            Overloaded: The server cannot open files now.
        """
        with self._opened(wish.key, os.O_RDONLY) as descriptor:
            if descriptor is None:
                raise errors.InvalidRequest(
                    f"Unable to open shared memory region: there is no regular file {shown(wish.key)} of this server's "
                    "user in /dev/shm"
                )
            found = os.fstat(descriptor)
            if wish.offset + wish.byte_size > found.st_size:
                raise errors.InvalidRequest(
                    f"failed to register shared memory region {shown(wish.name)}: {wish.byte_size} bytes at offset "
                    f"{wish.offset} are not within its file, which has {found.st_size}"
                )
            return found.st_dev, found.st_ino

    @contextlib.contextmanager
    def reading(self, region: Region) -> Iterator[int]:
        """Return a descriptor of a region's file in the `with` block, from which one can read.

        Raises:
            InvalidRequest: It is not the registered file any more, or has become too short.
            Overloaded: The server cannot open files now.
        """
        with self._registered(region, os.O_RDONLY) as descriptor:
            yield descriptor

    @contextlib.contextmanager
    def writing(self, region: Region) -> Iterator[int]:
        """Return a descriptor of a region's file in the `with` block, into which one can write; see `reading`."""
        with self._registered(region, os.O_WRONLY) as descriptor:
            yield descriptor

    @contextlib.contextmanager
    def _registered(self, region: Region, how: int) -> Iterator[int]:
        with self._opened(region.key, how) as descriptor:
            found = None if descriptor is None else os.fstat(descriptor)
            if descriptor is None or found is None or (found.st_dev, found.st_ino) != (region.device, region.inode):
                raise errors.InvalidRequest(
                    f"{shown(region.key)} in /dev/shm is not the file any more that was registered as shared memory "
                    f"region {shown(region.name)}, or may not be used so: unregister the region, and register it again"
                )
            if found.st_size < region.end:
                raise too_short(region, found.st_size)
            yield descriptor

    @contextlib.contextmanager
    def _opened(self, key: str, how: int) -> Iterator[int | None]:
        """Open a file in the `with` block; None if there is none that is ours."""
        descriptor = None
        try:
            descriptor = self._open(file_name(key), how)
        except OSError as error:
            if error.errno in SHORTAGES:
                why = f"the server cannot open files now ({error.strerror}); try again"
                raise errors.Overloaded(why, maybe_executed=False) from error
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _open(self, name: str, how: int) -> int | None:
        if not _is_ours(os.stat(name, dir_fd=self._directory, follow_symlinks=False)):
            return None  # and is not opened: a FIFO would let its writer go on
        descriptor = os.open(name, how | _SAFE, dir_fd=self._directory)
        if not _is_ours(os.fstat(descriptor)):
            os.close(descriptor)
            return None
        return descriptor


def _is_ours(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def read(descriptor: int, extent: RegionPart, into: memoryview) -> None:
    """Fill memory from an extent, which has as many bytes. Blocks.

    Raises:
        InvalidRequest: The file ends before.
    """
    region = extent.region
    assert region is not None
    begin, at = region.offset + extent.offset, 0
    while at < len(into):
        try:
            count = os.preadv(descriptor, [into[at:]], begin + at)
        except OSError as error:
            raise errors.InvalidRequest(
                f"the shared memory region {shown(region.name)} cannot be read: {error.strerror}"
            ) from error
        if not count:
            raise too_short(region, begin + at)
        at += count


def write(descriptor: int, extent: RegionPart, data: memoryview) -> None:
    """Write bytes at the beginning of an extent, which has as many at least. Blocks.

    Raises:
        InvalidRequest: They cannot be written, as where /dev/shm is full.
    """
    region = extent.region
    assert region is not None
    assert len(data) <= extent.byte_size
    begin, at = region.offset + extent.offset, 0
    while at < len(data):
        try:
            at += os.pwritev(descriptor, [data[at:]], begin + at)
        except OSError as error:
            raise errors.InvalidRequest(
                f"the shared memory region {shown(region.name)} cannot be written: {error.strerror}",
                maybe_executed=True,
            ) from error


def too_short(region: Region, nbytes: int) -> errors.InvalidRequest:
    """Return the error of a region that goes beyond its file."""
    return errors.InvalidRequest(
        f"the file of the shared memory region {shown(region.name)} has become shorter than the region: it ends at "
        f"{nbytes}, and the region at {region.end}"
    )
