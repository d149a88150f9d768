"""A channel's connection to the relay: a DEALER of libzmq with CURVE. For one thread at a time.

libzmq's descriptor tells of changes only: any use of the socket may take the signal of a packet that has come. So a
wire has a descriptor of its own, an epoll over libzmq's and an eventfd, which is written whenever such a signal was
taken by anything but `receive`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

import zmq
import zmq.backend
from zmq.utils.monitor import recv_monitor_message

from atomr_mp.protocol.tunnel.packets import MAX_FRAME
from atomr_mp.protocol.values import Buffer
from atomr_mp.remote.keys import ClientKeys
from atomr_mp.remote.wire import HANDSHAKE_MS, HEARTBEAT_MS, TIMEOUT_MS, core_recv, core_send, descriptor_of
from atomr_mp.tunnel.bell import Bell

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
        """Makes the descriptor readable, until `receive` finds nothing more."""
        self._closed = False
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))  # with it, libzmq takes the end of one of IPv4 for another's
        socket.connect(endpoint)
        drop_in_child(self)

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
        keep_in_child((self._socket, self._monitor))
        if not self._closed:
            self._closed = self.ended = True
            self._close_bells()

    def _close_bells(self) -> None:
        for bell in self._bells:
            bell.close()


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


class Forgettable(Protocol):
    """Something of libzmq's, which a forked child has to leave alone."""

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child; may be called twice."""


def drop_in_child(each: Forgettable) -> None:
    """Have something dropped in forked children; it is not kept by this."""
    _HELD.add(each)


def keep_in_child(of_libzmq: object) -> None:
    """Keep an object of libzmq's for ever, in a forked child: its collection would call libzmq."""
    _FORKED.append(of_libzmq)


def forget_in_child() -> None:
    """Drop all of libzmq's in a forked child, before anything else there uses it; may be called twice."""
    for each in _HELD:
        each.forget_in_child()


_HELD: Final[weakref.WeakSet[Forgettable]] = weakref.WeakSet()
_FORKED: Final[list[object]] = []
"""Sockets and contexts that a fork has brought along: libzmq's threads do not exist there."""

os.register_at_fork(after_in_child=forget_in_child)
