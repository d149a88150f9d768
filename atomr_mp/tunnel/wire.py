"""A channel's connection to the relay: a DEALER of libzmq with CURVE. For one thread at a time.

libzmq's descriptor tells of changes only: any use of the socket may take the signal of a packet that has come. So its
user polls bells (`bell`), each an epoll over libzmq's and an eventfd. The first is rung whenever anything but `receive`
has taken such a signal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import zmq
import zmq.backend
from zmq.utils.monitor import recv_monitor_message

from atomr_mp.protocol.tunnel.packets import MAX_FRAME
from atomr_mp.protocol.values import Buffer
from atomr_mp.remote.curve import HANDSHAKE_MS, HEARTBEAT_MS, TIMEOUT_MS, core_recv, core_send, descriptor_of
from atomr_mp.remote.keys import ClientKeys
from atomr_mp.tunnel.bell import Bells
from atomr_mp.tunnel.forks import drop_in_child, keep_in_child

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
        bells: What speaks when a packet has come, or the connection has ended; they stay the caller's.
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
        bells: Bells,
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
        self._refused = False
        self._monitor = socket.get_monitor_socket(_REFUSED) if watched else None
        _configure(socket, keys)
        socket.setsockopt(zmq.AFFINITY, _LARGE_THREAD if large else _SMALL_THREAD)
        self.changes: Final = descriptor_of(socket)
        """libzmq's descriptor, for those who only wait for something to happen."""
        self._bells = bells
        self._bell: Final = bells.first
        bells.watch(self.changes)
        self._closed = False
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))  # with it, libzmq takes the end of one of IPv4 for another's
        socket.connect(endpoint)
        drop_in_child(self)

    def send(self, packet: Buffer) -> None:
        """Send a packet; it goes nowhere if the connection has ended."""
        try:
            core_send(self._socket, packet, _DONTWAIT)
        except zmq.Again:
            self._bell.ring()  # the connection has ended, which is found out by `receive`
            return
        if _get(self._socket, _EVENTS) & _POLLBOTH != _POLLOUT:  # a packet has come, or the connection has ended
            self._bell.ring()

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
    def refused(self) -> bool:
        """Whether the relay has refused the key."""
        if not self._refused and self._monitor is not None and self._monitor.poll(0):
            recv_monitor_message(self._monitor, zmq.DONTWAIT)
            self._refused = True
        return self._refused

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Close it, after what was sent has left, for a bounded time; may be called twice."""
        if self._closed:
            return
        self._closed = self.ended = True
        self._bells.leave()
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close(linger_ms)
        self._tell_closed()

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child."""
        self.forked = self._closed = self.ended = True
        keep_in_child((self._socket, self._monitor))


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
    socket.setsockopt(zmq.RECONNECT_STOP, int(zmq.RECONNECT_STOP_CONN_REFUSED))  # else a refusal would be no event
    if keys is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server.encode())
