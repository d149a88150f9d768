"""The disk cache of compiled code, which all workers of a user share. An edge over files.

Each code is one file, written under another name and renamed, so that a reader sees all of it or none. Nothing is
synced to the disk: a file that a lost machine has cut off does not have its checksum, and is a miss. What is used least
recently goes first when the folder has grown too large; whoever reads a file meanwhile has it to the end.

A code can end the process that loads it. So each load has a marker (`loading`), a file that is locked as long as its
process lives. A marker without a lock has a dead owner: its entry is set aside, and the code is compiled anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp_workers.compiling import entries
from atomr_mp_workers.compiling.jobs import CompiledCode

MAX_BYTES: Final = 2**30
"""How large the folder may grow."""

LEAVE: Final = 0.9
"""The part that eviction leaves."""

ABANDONED_S: Final = 3600.0
"""Age from which a file that is being written has been left behind."""

_ENTRY: Final = ".code"
_ASIDE: Final = ".aside"
_UNFINISHED: Final = ".new"
_MARKERS: Final = "loading"
_NAME: Final = re.compile(r"[0-9a-f]{64}(?:\.code|\.aside|\.[0-9a-f]{16}\.new)")
"""Files of ours: no other is ever removed."""

_LOG: Final = logging.getLogger("atomr_mp.worker")


def default_folder() -> Path:
    """Return the folder of this user's cache; make nothing."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if base.startswith("/") else Path.home() / ".cache", "atomr-mp", "kernels")


class CodeCache:
    """A folder of compiled codes. Any number of threads and processes may use it at a time.

    Args:
        folder: The folder, which only this user may enter. It is made if need be, also when it was removed meanwhile.
        most_bytes: How large it may grow.

    Raises:
        ConfigurationError: The folder cannot be made, or is not private.
    """

    def __init__(self, folder: Path, most_bytes: int = MAX_BYTES) -> None:
        self._folder: Final = folder
        self._most_bytes: Final = most_bytes
        self._refused = False
        try:
            with self._opened():
                pass
        except OSError as error:
            raise errors.ConfigurationError(
                f"the folder for compiled code {folder} cannot be used: {error}; name one that only you may enter"
            ) from error

    def get(self, key: str) -> CompiledCode | None:
        """Return a code, None if there is none, or none that is intact. Takes note of its use."""
        try:
            with self._opened() as folder:
                if _died_loading(folder, key):
                    _set_aside(folder, key)
                    return None
                entry = _read(folder, key + _ENTRY)
                code = None if entry is None else entries.decode(key, entry)
                if entry is not None and code is None:
                    _remove(folder, key + _ENTRY)
                elif code is not None:
                    with contextlib.suppress(OSError):  # it has gone since
                        os.utime(key + _ENTRY, dir_fd=folder, follow_symlinks=False)
                return code
        except OSError as error:
            self._note(error)
            return None

    def put(self, key: str, code: CompiledCode) -> None:
        """Keep a code. That it cannot be kept, as on a full disk, is logged, and no error."""
        entry = entries.encode(key, code)
        if len(entry) > min(entries.MAX_ENTRY_BYTES, int(self._most_bytes * LEAVE)):
            return
        try:
            with self._opened() as folder:
                unfinished = f"{key}.{secrets.token_hex(8)}{_UNFINISHED}"
                try:
                    _write(folder, unfinished, entry)
                    os.rename(unfinished, key + _ENTRY, src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    _remove(folder, unfinished)
                    raise
                _evict(folder, self._most_bytes)
            self._refused = False
        except OSError as error:
            self._note(error)

    @contextlib.contextmanager
    def loading(self, key: str) -> Iterator[None]:
        """Mark a code as being loaded into the driver, inside `with`.

        If this process ends meanwhile, the entry is set aside by the next `get`, and the code is compiled anew.
        """
        with contextlib.ExitStack() as undo:
            try:
                folder = undo.enter_context(self._opened())
                markers = undo.enter_context(_markers(folder))
                undo.enter_context(_marker(markers, key))
            except OSError as error:
                self._note(error)
            yield

    def set_aside(self, key: str) -> None:
        """Have an entry be used no more, as one that the driver does not load; it is kept until it is evicted."""
        try:
            with self._opened() as folder:
                _set_aside(folder, key)
        except OSError as error:
            self._note(error)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the folder, and see that it is private. All files are reached through this descriptor.

        Raises:
            OSError: It cannot be made or opened, or is not private.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            folder = os.open(self._folder, flags)
        except FileNotFoundError:
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
            folder = os.open(self._folder, flags)
        try:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise PermissionError(
                    f"others than this user may enter it, or own it (uid {found.st_uid}, mode "
                    f"{stat.S_IMODE(found.st_mode):04o}); allow only yourself: chmod 700 {self._folder}"
                )
            yield folder
        finally:
            os.close(folder)

    def _note(self, error: OSError) -> None:
        """Log the first of several failures."""
        if not self._refused:
            _LOG.warning("compiled code is not kept in %s: %s", self._folder, error)
        self._refused = True


def _read(folder: int, name: str) -> bytes | None:
    """Return a file's content, None if there is none; remove anything there that is not a file of ours."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError:  # a symbolic link, a socket, or a file that this user may not read
        _remove(folder, name)
        return None
    try:
        found = os.fstat(descriptor)
        if not (stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()):
            _remove(folder, name)
            return None
        if found.st_size > entries.MAX_ENTRY_BYTES:
            return b""
        parts = []
        left = found.st_size + 1  # one byte more tells of a file that grows
        while left and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _write(folder: int, name: str, entry: bytes) -> None:
    descriptor = os.open(name, _MAKE, 0o600, dir_fd=folder)
    try:
        left = memoryview(entry)
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


def _remove(folder: int, name: str) -> None:
    """Remove what has a name, a link itself; a folder only if it is empty."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _set_aside(folder: int, key: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another process has done it
        os.rename(key + _ENTRY, key + _ASIDE, src_dir_fd=folder, dst_dir_fd=folder)


def _evict(folder: int, most_bytes: int) -> None:
    """Remove what was used least recently if the folder is too large, and what writers have left behind."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # another process does it
        return
    found = []
    now_s = time.time()
    with os.scandir(folder) as files:
        for each in files:
            if not _NAME.fullmatch(each.name):
                continue
            try:
                status = each.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if each.name.endswith(_UNFINISHED):
                if now_s - status.st_mtime > ABANDONED_S:
                    _remove(folder, each.name)
                continue
            found.append((status.st_mtime_ns, each.name, status.st_size))
    total = sum(size for _, _, size in found)
    if total <= most_bytes:
        return
    for _, name, size in sorted(found):
        if total <= most_bytes * LEAVE:
            break
        _remove(folder, name)
        total -= size


# --- markers ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _markers(folder: int) -> Iterator[int]:
    """Open the folder of markers."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(_MARKERS, 0o700, dir_fd=folder)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(_MARKERS, flags, dir_fd=folder)
    try:
        yield opened
    finally:
        os.close(opened)


@contextlib.contextmanager
def _marker(markers: int, key: str) -> Iterator[None]:
    """Have a marker, locked; it gets its name only then, and loses it before the lock."""
    name = f"{key}.{secrets.token_hex(8)}"
    unfinished = f".{name}"
    descriptor = os.open(unfinished, _MAKE, 0o600, dir_fd=markers)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(unfinished, name, src_dir_fd=markers, dst_dir_fd=markers)
        yield
    finally:
        _remove(markers, name)
        _remove(markers, unfinished)
        os.close(descriptor)


def _died_loading(folder: int, key: str) -> bool:
    """Return whether a process has ended while it loaded a code; remove its markers."""
    died = False
    try:
        opened = os.open(_MARKERS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:  # nobody has ever loaded a code
        return False
    try:
        for name in os.listdir(opened):  # noqa: PTH208 - by a descriptor
            if name.startswith(key) and _has_dead_owner(opened, name):
                died = True
                # Its entry first: whoever finds no marker takes the entry.
                _set_aside(folder, key)
                _remove(opened, name)
    finally:
        os.close(opened)
    return died


def _has_dead_owner(markers: int, name: str) -> bool:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=markers)
    except OSError:
        return False
    try:
        # Shared: two who look at a time must not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_nlink > 0  # its owner removes it before it lets go
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
