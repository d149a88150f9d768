"""Keeps the process running that serves metrics. Its socket is made here, so that an error of it fails the start."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.process.files.safedir import inode
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.loop import Loop

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

MODULE: Final = "atomr_mp.helpers.metrics_server"

AGAIN_S: Final = 5.0
"""Delay of its next start after its end."""

UNIX: Final = "unix:"


class Exporter:
    """The exporter's process, which is started again after each end.

    Args:
        address: As `PoolSettings.metrics` has it, not "off".
        run_dir: Where a socket with a relative path is made.
        session_socket: Where it asks the supervisor.
        loop: The supervisor's loop.
        helpers: Start processes.

    Raises:
        ConfigurationError: The address cannot be used.
    """

    def __init__(self, address: str, run_dir: Path, session_socket: Path, loop: Loop, helpers: Helpers) -> None:
        self._session_socket = session_socket
        self._loop = loop
        self._helpers = helpers
        self._path = run_dir / address.removeprefix(UNIX) if address.startswith(UNIX) else None
        self._kill: Callable[[], None] = lambda: None
        """Ends the process."""
        self._socket = listen(address, run_dir)
        self._inode = None if self._path is None else inode(self._path)

    def restore(self) -> list[str]:
        """Listen anew if the socket's file was removed; return its name then.

        Raises:
            OSError: It cannot be made now.
        """
        if self._path is None or inode(self._path) == self._inode:
            return []
        made = _listen_unix(self._path)
        self._socket.close()
        self._socket, self._inode = made, inode(self._path)
        self._kill()  # the next one inherits the new socket
        return [self._path.name]

    def start(self) -> None:
        """Start it; to be called once the supervisor listens."""
        descriptor = self._socket.fileno()
        try:
            self._kill = self._helpers.start(
                MODULE, [str(descriptor), str(self._session_socket)], [descriptor], self._ended
            )
        except OSError as error:
            _LOG.warning("the metrics cannot be served: %s", error)
            self._loop.call_later(AGAIN_S, self.start)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _ended(self, status: int) -> None:
        _LOG.warning("the process that serves metrics has ended with status %d; the next starts soon", status)
        self._loop.call_later(AGAIN_S, self.start)


def listen(address: str, run_dir: Path) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        ConfigurationError: That is not possible.
    """
    try:
        if address.startswith(UNIX):
            return _listen_unix(run_dir / address.removeprefix(UNIX))
        host, port = parse(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
        return listening
    except OSError as error:
        raise errors.ConfigurationError(f"metrics = {address!r}: nothing can listen there: {error}") from error


def check(address: str) -> None:
    """Check an address as far as it can be without listening there.

    Raises:
        ConfigurationError: It cannot be used.
    """
    if not address.startswith(UNIX):
        parse(address)


def parse(address: str) -> tuple[str, int]:
    """Return host and port of an address that is no unix socket.

    Raises:
        ConfigurationError: It is not an address and a port, or not of this machine only.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        if not (ipaddress.ip_address(host).is_loopback and 0 < int(port) < 2**16):
            raise ValueError
    except ValueError:
        raise errors.ConfigurationError(
            f"metrics = {address!r}: use off, a loopback address with a port as 127.0.0.1:9464, or unix:PATH"
        ) from None
    return host, int(port)


def _listen_unix(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    if path.is_socket():  # left by a killed supervisor; nobody else makes a socket here
        path.unlink()
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    listening.listen()
    return listening
