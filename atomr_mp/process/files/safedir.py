"""A directory that only its user can reach, even below one that everybody writes, such as /tmp.

An edge over files.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from atomr_mp import errors

MAX_SOCKET_PATH_BYTES: Final = 107
"""sun_path has 108 bytes and ends in a zero, see unix(7)."""


def check_socket_paths(directory: Path, names: Iterable[str]) -> None:
    """Refuse a directory in which sockets of these names would have too long a path.

    Raises:
        ConfigurationError: They would.
    """
    longest = max(len(os.fsencode(directory / name)) for name in names)
    if longest > MAX_SOCKET_PATH_BYTES:
        raise errors.ConfigurationError(
            f"the run directory {directory} is too long: a socket in it would have a path of {longest} "
            f"bytes, and the system's limit is {MAX_SOCKET_PATH_BYTES}; choose one that is at least "
            f"{longest - MAX_SOCKET_PATH_BYTES} bytes shorter"
        )


def make(path: Path) -> None:
    """Make the directory and, if need be, the one above; never more, so that a typing error makes no tree.

    Raises:
        ConfigurationError: It cannot be made.
    """
    try:
        for directory in (path.parent, path):
            with contextlib.suppress(FileExistsError):
                directory.mkdir(mode=0o700)
    except OSError as error:
        raise errors.ConfigurationError(f"the run directory {path} cannot be made: {error}") from error


def check(path: Path) -> None:
    """Refuse a directory that another user made, may enter, or could lead us away from.

    Raises:
        ConfigurationError: It is not safe; says what to do.
    """
    for directory in (path.parent, path):
        mode = _check_owner(directory, may_be_the_systems=directory != path)
        if not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode):
            raise errors.ConfigurationError(f"{directory} is not a directory; choose another run directory")
    if mode & 0o077:
        raise errors.ConfigurationError(
            f"others may enter the run directory {path} (mode {stat.S_IMODE(mode):04o}); allow only "
            f"yourself: chmod 700 {path}"
        )
    for directory in {*path.parents, *path.resolve().parents}:
        _check_sticky(directory)


def inode(of: Path | int) -> tuple[int, int] | None:
    """Return the device and inode of a path, links not followed, or of a descriptor; None if the path is free."""
    try:
        found = os.fstat(of) if isinstance(of, int) else of.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def private_mode(path: Path) -> bool:
    """Return whether `path`, links followed, is a directory of ours that only we may enter."""
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _check_sticky(directory: Path) -> None:
    """Refuse a directory in which everybody may rename what is ours, and put something else in its place."""
    try:
        mode = directory.stat().st_mode
    except OSError as error:
        raise errors.ConfigurationError(f"the run directory cannot be used: {error}") from error
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise errors.ConfigurationError(
            f"everybody may write {directory} (mode {stat.S_IMODE(mode):04o}) and it has no sticky bit, so another "
            f"user could put a directory in the place of the run directory: chmod o-w {directory} (or +t, as /tmp has "
            "it), or choose another run directory"
        )


def _check_owner(directory: Path, *, may_be_the_systems: bool) -> int:
    """Return the mode of a directory, or of root's link to one, such as /tmp can be."""
    try:
        found = directory.lstat()
    except OSError as error:
        raise errors.ConfigurationError(f"the run directory cannot be used: {error}") from error
    user = os.geteuid()
    if found.st_uid != user and (found.st_uid != 0 or not may_be_the_systems):
        raise errors.ConfigurationError(
            f"{directory} belongs to the user with uid {found.st_uid}, not to us (uid {user}); choose "
            "another run directory"
        )
    if stat.S_ISLNK(found.st_mode) and found.st_uid == user:
        raise errors.ConfigurationError(
            f"{directory} is a symbolic link; name the run directory by its real path, see `realpath`"
        )
    return found.st_mode
