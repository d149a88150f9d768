"""The sockets on which front ends listen."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from atomr_mp import errors

BACKLOG: Final = 2048

LAST_PORT: Final = 65535


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address of this machine.

    Raises:
        ConfigurationError: The address cannot be used.
    """
    if not 0 <= port <= LAST_PORT:  # the C library would take it modulo 65536
        raise errors.ConfigurationError(f"port {port} is not a port: it is from 1 to {LAST_PORT}, or 0 for any")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise errors.ConfigurationError(f"{host}:{port} cannot be listened on: {error}") from error
    return listening


def reserve(host: str, port: int) -> socket.socket:
    """Return a socket that keeps an address for processes of this user, and does not listen itself.

    They bind it with SO_REUSEPORT, and share what comes to it.

    Raises:
        ConfigurationError: The address cannot be used, or another process listens there.
    """
    with listen(host, port) as trying:  # which SO_REUSEPORT would allow beside another server of this user
        family, address = trying.family, trying.getsockname()
    reserved = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address)
    except OSError as error:
        reserved.close()
        raise errors.ConfigurationError(f"{host}:{port} cannot be listened on: {error}") from error
    return reserved


def shown(address: tuple[str, int]) -> str:
    """Return an address of a socket as text, "host:port"."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_unix(path: Path) -> socket.socket:
    """Return a unix socket that listens, for this user only (0600).

    Raises:
        ConfigurationError: The socket cannot be made there, or another process listens there.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if path.is_socket():
            if _is_alive(path):
                raise errors.ConfigurationError(f"another process listens on {path}")
            path.unlink()
        before = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise errors.ConfigurationError(f"{path} cannot be listened on: {error}") from error
    except errors.ConfigurationError:
        listening.close()
        raise
    return listening


def _is_alive(path: Path) -> bool:
    """Return whether a process listens on a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trying:
        trying.settimeout(1.0)
        try:
            trying.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True
