"""Who runs the pool of a run directory, whatever becomes of the files there. An edge.

The supervisor binds a unix socket with an abstract name, made from its user and the directory's path. Such a name is
no file that could be removed; one process has it at a time, and the kernel gives it back when that ends. It holds
within a network namespace, and names the mount namespace: containers that share the host's network may have different
directories at the same path. A lock on the directory itself holds beyond, see `rundir`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
from pathlib import Path
from typing import Final

BACKLOG: Final = 128


class Beacon:
    """The name of a run directory, held until `close`.

    Raises:
        BlockingIOError: Another process of this user has it.
        OSError: It cannot be had.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(_name(path))
            self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            if holder(path):
                raise BlockingIOError(*error.args) from error
            raise

    def let_go(self) -> None:
        """Take leave of those who have looked."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Give the name back; may be called twice."""
        self._socket.close()


def holder(path: Path) -> int:
    """Return the pid of this user's process that has the name of a run directory; 0 if there is none that we see."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(_name(path))
            pid, uid, _ = _UCRED.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        except OSError:
            return 0
    return int(pid) if uid == os.geteuid() else 0


def _name(path: Path) -> bytes:
    try:
        mounts = Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:
        mounts = 0
    found = f"{mounts}:{os.path.realpath(path)}"  # the folder itself may be gone
    return f"\0atomr-mp/{os.geteuid()}/{hashlib.sha256(os.fsencode(found)).hexdigest()[:40]}".encode()


_UCRED: Final = struct.Struct("3i")
