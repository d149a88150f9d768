"""A channel's connection to the relay: a DEALER of libzmq with CURVE. For one thread at a time.

libzmq's descriptor tells of changes only: any use of the socket may take the signal of a packet that has come. So a
wire has a descriptor of its own, an epoll over libzmq's and an eventfd, which is written whenever such a signal was
taken by anything but `receive`.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import socket as sockets
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import zmq
import zmq.backend
from zmq.utils.monitor import recv_monitor_message

from atomr_mp import errors
from atomr_mp.protocol.tunnel.packets import MAX_FRAME
from atomr_mp.protocol.values import Buffer
from atomr_mp.remote.keys import ClientKeys
from atomr_mp.remote.wire import (
    HANDSHAKE_MS,
    HEARTBEAT_MS,
    TIMEOUT_MS,
    check_library,
    core_recv,
    core_send,
    descriptor_of,
)

TCP: Final = "tcp://"

LINGER_MS: Final = 500
"""How long a channel's end may take to be sent when its wire is closed."""

_SMALL_THREAD: Final = 1
_LARGE_THREAD: Final = 2
"""Masks of libzmq's threads: each encrypts a packet as a whole, so calls would wait behind large ones."""
_get: Final[Any] = zmq.backend.Socket.get
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_POLLOUT: Final = int(zmq.POLLOUT)
_POLLBOTH: Final = _POLLIN | _POLLOUT
_DONTWAIT: Final = int(zmq.DONTWAIT)
_REFUSED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)


class Dialler:
    """Makes wires to one relay, in a context of libzmq that ends with the last of them.

    Args:
        endpoint: "tcp://HOST:PORT".
        keys: Ours and the server's; None for no encryption, on loopback.

    Raises:
        ConfigurationError: libzmq is too old, or has no CURVE; or this is not such an endpoint.
        PoolUnreachable: The host's name leads to no address where anybody listens.
    """

    def __init__(self, endpoint: str, keys: ClientKeys | None) -> None:
        check_library()
        self.endpoint: Final = endpoint
        self._address: Final = resolved(endpoint)
        self._keys = keys
        self._context: Final[zmq.Context[zmq.Socket[bytes]]] = zmq.Context(io_threads=2)
        self._lock = threading.Lock()
        self._open = 1
        """Wires that are open, and one for the dialler."""
        self._forked = False
        _DIALLERS.add(self)

    def dial(self, *, watched: bool = False, large: bool = False) -> Wire:
        """Return a new wire, which connects in the background.

        Args:
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
                return Wire(socket, self._address, self._keys, self._closed, watched=watched, large=large)
            except BaseException:
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
        _FORKED.append(self._context)

    def _closed(self) -> None:
        with self._lock:
            self._open -= 1
            last = not self._open
        if last:
            self._context.term()


class Wire:
    """One connection. Once it has ended it stays so: another one is another wire.

    Args:
        socket: A DEALER that is not connected yet; owned from here on.
        endpoint: Where to connect, by its address.
        keys: Ours and the server's.
        closed: Called once it is closed.
        watched: Whether it is to find out that its key is not admitted.
        large: Whether its packets are left in libzmq's memory.

    Raises:
        ZMQError: libzmq takes no such endpoint.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        endpoint: str,
        keys: ClientKeys | None,
        closed: Callable[[], object],
        *,
        watched: bool = False,
        large: bool = False,
    ) -> None:
        self._copies = not large
        self._socket = socket
        self._tell_closed = closed
        self.ended = False
        """The connection has ended, and everything that had come was received."""
        self.forked = False
        """This process was forked from the wire's: nothing of it may be used."""
        self._monitor = socket.get_monitor_socket(_REFUSED) if watched else None
        _configure(socket, keys)
        socket.setsockopt(zmq.AFFINITY, _LARGE_THREAD if large else _SMALL_THREAD)
        self._bells: Final = [Bell(descriptor_of(socket))]
        self._bell: Final = self._bells[0]
        self.fileno: Final = self._bell.fileno
        self.signal: Final = self._bell.ring
        """Has the descriptor say that there is something to receive, or to look at."""
        self._closed = False
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))  # with it, libzmq takes the end of one of IPv4 for another's
        socket.connect(endpoint)
        _WIRES.add(self)

    def send(self, packet: Buffer) -> None:
        """Send a packet; it goes nowhere if the connection has ended."""
        try:
            core_send(self._socket, packet, _DONTWAIT)
        except zmq.Again:
            self.signal()  # the connection has ended, which is found out by `receive`
            return
        if _get(self._socket, _EVENTS) & _POLLBOTH != _POLLOUT:  # a packet has come, or the connection has ended
            self.signal()

    def receive(self) -> Buffer | None:
        """Return the next packet, None if there is none; then the descriptor is quiet until there is."""
        events = _get(self._socket, _EVENTS)
        if events & _POLLIN:
            packet: Buffer = core_recv(self._socket, _DONTWAIT, self._copies)
            if not self._copies:
                packet = packet.buffer  # type: ignore[union-attr]  # it is a frame
            return packet
        if not events & _POLLOUT:
            self.ended = True
        else:
            self._bell.hush()
        return None

    @property
    def signalled(self) -> bool:
        """Whether the descriptor speaks by `signal`: libzmq's own may be quiet, though something has come."""
        return self._bell.rings

    def second_bell(self) -> Bell:
        """Return a further descriptor for the same packets, for whoever receives all of them whenever it speaks."""
        self._bells.append(Bell(descriptor_of(self._socket)))
        return self._bells[-1]

    @property
    def refused(self) -> bool:
        """Whether the relay has refused the key."""
        if self._monitor is None or not self._monitor.poll(0):
            return False
        recv_monitor_message(self._monitor, zmq.DONTWAIT)
        return True

    def close(self) -> None:
        """Close it, after what was sent has left, for a bounded time; may be called twice."""
        if self._closed:
            return
        self._closed = self.ended = True
        self._close_bells()
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close(LINGER_MS)
        self._tell_closed()

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child."""
        self.forked = True
        _FORKED.append((self._socket, self._monitor))
        if not self._closed:
            self._closed = self.ended = True
            self._close_bells()

    def _close_bells(self) -> None:
        for bell in self._bells:
            bell.close()


class Bell:
    """A descriptor that speaks when libzmq's does, or when it is rung.

    Args:
        changes: libzmq's descriptor.
    """

    def __init__(self, changes: int) -> None:
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._eventfd, select.EPOLLIN)
        self._epoll.register(changes, select.EPOLLIN)
        self.fileno: Final = self._epoll.fileno
        self.rings = False
        """Whether it was rung."""

    def ring(self) -> None:
        """Have it speak until it is hushed; nothing once it is closed."""
        if not (self.rings or self._epoll.closed):
            self.rings = True
            os.eventfd_write(self._eventfd, 1)

    def hush(self) -> None:
        """End that it was rung."""
        if self.rings and not self._epoll.closed:
            self.rings = False
            os.eventfd_read(self._eventfd)

    def close(self) -> None:
        """Close it; may be called twice."""
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._eventfd)


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


def _configure(socket: zmq.Socket[bytes], keys: ClientKeys | None) -> None:
    socket.setsockopt(zmq.SNDHWM, 0)  # windows bound what is under way
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, HANDSHAKE_MS)
    # A channel begins with a packet of its own on each connection, so libzmq must not make another by itself. The end
    # of the connection is then an event: there is nowhere to send to any more.
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server.encode())


def forget_in_child() -> None:
    """Drop all wires in a forked child, before anything else there uses one; may be called twice."""
    for wire in _WIRES:
        wire.forget_in_child()
    for dialler in _DIALLERS:
        dialler.forget_in_child()


_WIRES: Final[weakref.WeakSet[Wire]] = weakref.WeakSet()
_DIALLERS: Final[weakref.WeakSet[Dialler]] = weakref.WeakSet()
_FORKED: Final[list[object]] = []
"""Sockets that a fork has brought along. They are never collected here, since that would call libzmq."""

os.register_at_fork(after_in_child=forget_in_child)
