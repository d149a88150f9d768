"""The relay's edge to libzmq: its ROUTER, and the handler of handshakes. One thread."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import zmq

from atomr_mp import checks
from atomr_mp.protocol.tunnel.packets import MAX_FRAME
from atomr_mp.protocol.values import Buffer
from atomr_mp.relay.admission import DOMAIN
from atomr_mp.remote.curve import (
    HANDSHAKE_MS,
    core_recv,
    core_send,
    descriptor_of,
    is_readable,
)
from atomr_mp.remote.keys import ServerKeys
from atomr_mp.supervisor.loop import Loop

TURN_BYTES: Final = 2**20
"""Bytes that are read before other descriptors have a turn."""

UNSENT: Final = 4096
"""Most packets that wait for a client. Windows bound their bytes; acknowledgements are in no window."""

UNREAD: Final = 32
"""Most packets of a connection that wait here to be read; beyond that the client's TCP waits."""

MAX_SOCKETS: Final = 65535
"""Most sockets; libzmq counts one for each connection."""

IO_THREADS: Final = 3
"""libzmq's threads, which share the connections: each encrypts a packet as a whole, and the packets of others wait."""

UNACKNOWLEDGED_MS: Final = 3000
"""How long the kernel of a client may leave bytes without an acknowledgement. Every connection is probed often."""

LINGER_MS: Final = 500
"""How long clients may take to take the last packets at the end."""

_DONTWAIT: Final = int(zmq.DONTWAIT)
_SNDMORE: Final = int(zmq.SNDMORE)


class Origin(NamedTuple):
    """Where a connection comes from."""

    user_id: str
    """Its key, set by the handler of handshakes."""
    address: str


@checks.owned(by_maker=True)
class RelayRouter:
    """A ROUTER with CURVE and its handler of handshakes, in a context with I/O threads of its own.

    Args:
        loop: The relay's loop.
        answer: Answers libzmq's questions about keys.
        keys: The server's; None for no encryption.
        known: Takes a packet of a known connection; False if the connection is not known.
        unknown: Takes a packet of a connection that is not known, and where it comes from.
    """

    def __init__(
        self,
        loop: Loop,
        answer: Callable[[Sequence[bytes]], list[bytes]],
        keys: ServerKeys | None,
        known: Callable[[bytes, Buffer], bool],
        unknown: Callable[[bytes, Buffer, Origin], object],
    ) -> None:
        self._loop = loop
        self._answer = answer
        self._is_known = known
        self._take_unknown = unknown
        self._again = False
        self._context: Final[zmq.Context[zmq.Socket[bytes]]] = zmq.Context(io_threads=IO_THREADS)
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._handler = self._context.socket(zmq.REP)  # before libzmq can ask
        self._handler.setsockopt(zmq.LINGER, 0)
        self._handler.bind("inproc://zeromq.zap.01")
        loop.watch(descriptor_of(self._handler), select.EPOLLIN, self._on_question)
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else libzmq drops packets that it cannot send, without an error
        socket.setsockopt(zmq.SNDHWM, UNSENT)
        socket.setsockopt(zmq.RCVHWM, UNREAD)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
        # No heartbeats from here: libzmq ends the process when one is due on a connection that has ended while it waits
        # to be read (zmq_assert in `stream_engine_base_t::out_event`).
        socket.setsockopt(zmq.TCP_MAXRT, UNACKNOWLEDGED_MS)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.IPV6, 1)
        if keys is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
            # Without it and without a handler, libzmq admits every key.
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        loop.watch(descriptor_of(socket), select.EPOLLIN, self._on_readable)

    def bind(self, endpoint: str) -> None:
        """Listen at an endpoint."""
        self._socket.bind(endpoint)

    def unbind(self, endpoint: str) -> None:
        """Stop listening at an endpoint."""
        self._socket.unbind(endpoint)

    def listen_on(self, descriptor: int, endpoint: str) -> None:
        """Accept connections on a socket that listens already.

        Args:
            descriptor: The socket; libzmq closes it.
            endpoint: Where it listens; libzmq needs it.
        """
        self._socket.setsockopt(zmq.USE_FD, descriptor)
        self._socket.bind(endpoint)

    def send(self, route: bytes, packet: bytes) -> bool:
        """Send a packet; False if the connection has ended, or its client does not read."""
        self._look_again()  # this use may take the signal of a packet that has come
        try:
            core_send(self._socket, route, _DONTWAIT | _SNDMORE)
            core_send(self._socket, packet, _DONTWAIT)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def close(self) -> None:
        """Close it with its context, after a short wait for packets that are still to be sent."""
        self._loop.forget(descriptor_of(self._socket))
        self._loop.forget(descriptor_of(self._handler))
        self._socket.close()
        self._handler.close()
        self._context.term()

    def _look_again(self) -> None:
        if not self._again:
            self._again = True
            self._loop.call_afterwards(self._look)

    def _look(self) -> None:
        self._again = False
        if not self._socket.closed and is_readable(self._socket):
            self._on_readable()

    def _on_readable(self, _events: int = 0) -> None:
        """Take packets in until there is none; after many bytes others have a turn first."""
        socket, taken = self._socket, 0
        while is_readable(socket):
            if taken > TURN_BYTES:
                self._loop.call_later(0.0, self._look)
                return
            route = core_recv(socket, _DONTWAIT, True)
            frame = core_recv(socket, _DONTWAIT, False)
            if frame.more:  # no client of ours sends several frames; an empty packet is refused
                while core_recv(socket, _DONTWAIT, False).more:
                    pass
                packet = memoryview(b"")
            else:
                packet = frame.buffer
            taken += len(packet)
            if not self._is_known(route, packet):
                self._take_unknown(route, packet, Origin(_property(frame, "User-Id"), _property(frame, "Peer-Address")))
            if socket.closed:
                return

    def _on_question(self, _events: int) -> None:
        while not self._handler.closed and is_readable(self._handler):
            self._handler.send_multipart(self._answer(self._handler.recv_multipart(zmq.DONTWAIT)))


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except (zmq.ZMQError, UnicodeDecodeError):  # it has none
        return ""
