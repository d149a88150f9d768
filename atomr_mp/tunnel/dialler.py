"""Makes a client's connections to the relay."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket as sockets
import threading
from typing import Final

import zmq

from atomr_mp import errors
from atomr_mp.remote.curve import HANDSHAKE_MS, check_library
from atomr_mp.remote.keys import ClientKeys
from atomr_mp.tunnel.bell import Bells
from atomr_mp.tunnel.forks import drop_in_child, keep_in_child
from atomr_mp.tunnel.wire import Wire

TCP: Final = "tcp://"

CONTEXT_DESCRIPTORS: Final = 12
"""At least as many as libzmq opens for a context with two I/O threads and its first socket: an epoll and an eventfd for
each thread and for the reaper, and eventfds of the context and of the socket."""


class Dialler:
    """Makes wires to one relay, in a context of libzmq that ends with the last of them.

    Args:
        endpoint: "tcp://HOST:PORT".
        keys: Ours and the server's; None for no encryption, on loopback.

    Raises:
        ConfigurationError: libzmq is too old, or has no CURVE; or this is not such an endpoint.
        PoolUnreachable: The host's name leads to no address where anybody listens.
        OSError: There are not enough descriptors.
    """

    def __init__(self, endpoint: str, keys: ClientKeys | None) -> None:
        check_library()
        self.endpoint: Final = endpoint
        self._address: Final = resolved(endpoint)
        self._keys = keys
        self._context: Final[zmq.Context[zmq.Socket[bytes]]] = _context()
        self._lock = threading.Lock()
        self._open = 1
        """Wires that are open, and one for the dialler."""
        self._forked = False
        drop_in_child(self)

    def dial(self, bells: Bells, *, watched: bool = False, large: bool = False) -> Wire:
        """Return a new wire, which connects in the background. Thread-safe.

        Args:
            bells: What it rings.
            watched: Whether it is to find out that its key is not admitted.
            large: Whether its packets are large, and left in libzmq's memory: Python's would come from the kernel.

        Raises:
            ConfigurationError: The endpoint cannot be connected to.
            OSError: No descriptor is left.
        """
        with self._lock:
            if not self._open or self._forked:
                raise OSError("the client was closed")
            self._open += 1
        try:
            socket = self._context.socket(zmq.DEALER)
            try:
                return Wire(socket, self._address, self._keys, bells, self._closed, watched=watched, large=large)
            except BaseException:
                bells.leave()
                socket.close(0)
                raise
        except zmq.ZMQError as error:
            self._closed()
            if error.errno == errno.EMFILE:
                raise OSError(error.errno, error.strerror) from error
            raise errors.ConfigurationError(f"{self.endpoint!r} cannot be connected to: {error.strerror}") from error
        except BaseException:
            self._closed()
            raise

    def close(self) -> None:
        """Make no further wires; libzmq's threads end with the last wire that is open."""
        if not self._forked:
            self._closed()

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child: libzmq's threads do not exist there, so nothing of it may be called."""
        self._forked = True
        keep_in_child(self._context)

    def _closed(self) -> None:
        with self._lock:
            self._open -= 1
            last = not self._open
        if last:
            self._context.term()


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a context whose threads run: they start with its first socket, and libzmq aborts if they cannot.

    Raises:
        OSError: There are not enough descriptors.
    """
    reserved: list[int] = []
    try:
        while len(reserved) < CONTEXT_DESCRIPTORS:
            reserved.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for descriptor in reserved:
            os.close(descriptor)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=2)
    context.socket(zmq.PAIR).close(0)
    return context


def resolved(endpoint: str) -> str:
    """Return an endpoint by its address: libzmq finds the end of a connection by that, and loses it by a name.

    Of a name with several addresses it is the first one where anybody listens. Blocks for a name.

    Raises:
        ConfigurationError: This is not an endpoint.
        PoolUnreachable: The name leads nowhere.
    """
    host, _, port = endpoint.removeprefix(TCP).rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise errors.ConfigurationError(f"{endpoint!r} cannot be connected to: give tcp://HOST:PORT")
    try:
        address = str(ipaddress.ip_address(host))
    except ValueError:
        try:
            with sockets.create_connection((host, int(port)), HANDSHAKE_MS / 1000) as found:
                address = found.getpeername()[0]
        except OSError as error:
            raise errors.PoolUnreachable(f"nobody answers at {endpoint}: {error}") from error
    return f"{TCP}[{address}]:{port}" if ":" in address else f"{TCP}{address}:{port}"
