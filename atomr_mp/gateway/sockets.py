"""The gateway's edge to libzmq: its ROUTER, and the handler of handshakes. Only the event loop's thread uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

import zmq

from atomr_mp import checks
from atomr_mp.gateway.admission import DOMAIN, AdmittedKeys
from atomr_mp.gateway.handover import OwnerThread
from atomr_mp.protocol.messages.remote import MAX_REMOTE_MESSAGE_BYTES
from atomr_mp.protocol.values import Buffer
from atomr_mp.remote.keys import ServerKeys
from atomr_mp.remote.wire import (
    HANDSHAKE_MS,
    HEARTBEAT_MS,
    TIMEOUT_MS,
    core_recv,
    core_send,
    descriptor_of,
    is_readable,
)

_DONTWAIT: Final = int(zmq.DONTWAIT)
_SNDMORE: Final = int(zmq.SNDMORE)

TURN_MESSAGES: Final = 64
"""Most messages that are read before the loop does other work."""

UNSENT: Final = 16384
"""Most messages that wait for a client that does not read."""

UNREAD: Final = 32
"""Most messages of a connection that wait here to be read; beyond that the client's TCP waits."""


class SendOutcome(Enum):
    """The outcome of sending a message to a client."""

    SENT = "sent"
    GONE = "gone"
    """The connection has ended."""
    STUCK = "stuck"
    """Too many messages wait for the client."""


class Received(NamedTuple):
    """A message of a client."""

    routing_id: bytes
    user_id: str | None
    """The connection's key, set by the handler of handshakes."""
    frame: zmq.Frame
    content: memoryview | None
    """The frame; None if the message has several, which no honest client sends."""

    @property
    def address(self) -> str:
        """The address that the connection comes from."""
        return _property(self.frame, "Peer-Address") or "?"


MAX_SOCKETS: Final = 65535
"""Most sockets; libzmq counts one for each connection."""


@checks.owned(by_maker=True, also={"_on_readable"})
class RouterSocket:
    """A ROUTER with CURVE and its handler of handshakes, in a context with an I/O thread of its own.

    Args:
        loop: The event loop.
        admission: Decides whose key is admitted.
        keys: The server's; None for no encryption.
        take: Called with each message.
        unsent: Most messages that wait for a client.
        turn: Most messages that are read before the loop does other work.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        admission: AdmittedKeys,
        keys: ServerKeys | None,
        take: Callable[[Received], None],
        unsent: int = UNSENT,
        turn: int = TURN_MESSAGES,
    ) -> None:
        self._loop = loop
        self._check_owner: Final = OwnerThread("the gateway's socket").check
        self._take = take
        self._turn = turn
        self._again = False
        self._context: Final[zmq.Context[zmq.Socket[bytes]]] = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._handler = HandshakeHandler(loop, self._context, admission)  # before libzmq can ask
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else libzmq drops messages that it cannot send, without an error
        socket.setsockopt(zmq.SNDTIMEO, 0)
        socket.setsockopt(zmq.SNDHWM, unsent)
        socket.setsockopt(zmq.RCVHWM, UNREAD)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_REMOTE_MESSAGE_BYTES)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TTL, TIMEOUT_MS)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.IPV6, 1)
        if keys is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
            # Without it and without a handler, libzmq admits every key.
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._descriptor: Final = descriptor_of(socket)
        loop.add_reader(self._descriptor, self._on_readable)

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

    def send(self, routing_id: bytes, parts: Sequence[Buffer]) -> SendOutcome:
        """Send a message."""
        self._check_owner()
        outcome = self._send(routing_id, parts)
        if is_readable(self._socket):  # the descriptor tells of changes only, and this send may have consumed one
            self._look_again()
        return outcome

    def _send(self, routing_id: bytes, parts: Sequence[Buffer]) -> SendOutcome:
        try:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            core_send(self._socket, routing_id, _DONTWAIT | _SNDMORE)
            core_send(self._socket, body, _DONTWAIT)
        except zmq.Again:
            return SendOutcome.STUCK
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return SendOutcome.GONE
        return SendOutcome.SENT

    def close(self) -> None:
        """Close it with its context; drop unsent messages."""
        self._check_owner()
        self._loop.remove_reader(self._descriptor)
        self._socket.close(0)
        self._handler.close()
        self._context.term()

    def _look_again(self) -> None:
        """Look at the socket in the next turn."""
        if not self._again:
            self._again = True
            self._loop.call_soon(self._on_readable)

    def _on_readable(self) -> None:
        self._check_owner()
        self._again = False
        socket = self._socket
        told = True  # the event tells of the first message
        for _ in range(self._turn):
            if socket.closed or not (told or is_readable(socket)):
                return
            told = False
            try:
                routing_id = core_recv(socket, _DONTWAIT, True)
            except zmq.Again:  # the descriptor has told of something else
                return
            frame = core_recv(socket, _DONTWAIT, False)
            content = None if frame.more else memoryview(frame.buffer)
            if frame.more:
                while socket.get(zmq.RCVMORE):
                    socket.recv(zmq.DONTWAIT)
            self._take(Received(routing_id, _property(frame, "User-Id"), frame, content))
        self._look_again()


@checks.owned(by_maker=True, also={"_on_readable"})
class HandshakeHandler:
    """Tells libzmq whether keys are admitted.

    Args:
        loop: The event loop.
        context: libzmq's context; it has one handler.
        admission: Decides about keys.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, context: zmq.Context[zmq.Socket[bytes]], admission: AdmittedKeys
    ) -> None:
        self._loop = loop
        self._admission = admission
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("inproc://zeromq.zap.01")
        self._descriptor: Final = descriptor_of(self._socket)
        loop.add_reader(self._descriptor, self._on_readable)

    def close(self) -> None:
        """Close it."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close(0)

    def _on_readable(self) -> None:
        while not self._socket.closed and is_readable(self._socket):
            request = self._socket.recv_multipart(zmq.DONTWAIT)
            answer = self._admission.answer(request)
            self._socket.send_multipart(
                answer or [b"1.0", request[1] if len(request) > 1 else b"", b"500", b"", b"", b""]
            )


def _property(frame: zmq.Frame, name: str) -> str | None:
    try:
        return str(frame.get(name))
    except (zmq.ZMQError, UnicodeDecodeError):  # it has none
        return None
