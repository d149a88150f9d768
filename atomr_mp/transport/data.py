"""The data channel's end in a client: one ZeroMQ DEALER for each (connection, incarnation). Only translates."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import zmq

from atomr_mp.protocol import data
from atomr_mp.protocol.codec import MAX_MESSAGE_BYTES
from atomr_mp.protocol.framing import pack
from atomr_mp.protocol.session import Window
from atomr_mp.protocol.values import Buffer

Context = zmq.Context[zmq.Socket[bytes]]

COPY_BELOW_BYTES: Final = 65536
"""Messages below this are copied when sent: that is faster than keeping track of them (ZeroMQ's own threshold)."""

NEVER_MS: Final = 2**31 - 1
"""Reconnect interval. -1 would say "never" too, but makes libzmq drop answers that it has received and nobody has
read yet when the worker's end closes."""


# Plain integers: the enumerations' operators cost as much as a message.
NOBLOCK: Final = int(zmq.NOBLOCK)
EVENTS: Final = int(zmq.EVENTS)
POLLIN: Final = int(zmq.POLLIN)


class Login(NamedTuple):
    """What admits a client's connections to a worker."""

    session: bytes
    secret: bytes
    window: Window


class DataConnection:
    """Sends calls and receives replies; never blocks. Not for several threads at a time, but for `fileno`.

    Args:
        context: ZeroMQ context of the client.
        endpoint: Address of one incarnation's data socket.
        login: The session's proof.
        lane: Number of this connection in the session.

    Raises:
        OSError: No descriptor is left, or `zmq.ZMQError` for that.
    """

    def __init__(self, context: Context, endpoint: str, login: Login, lane: int) -> None:
        dealer = context.socket(zmq.DEALER)
        try:
            self._monitor = self._set_up(dealer, endpoint, login, lane)
        except BaseException:
            dealer.close()
            raise
        self._dealer = dealer
        self._descriptor: int = dealer.getsockopt(zmq.FD)  # type: ignore[assignment]
        # The methods of pyzmq's core, without the layer that serves its other uses.
        core: Any = super(zmq.Socket, dealer)
        self._recv: Callable[..., Any] = core.recv
        self._send: Callable[..., Any] = core.send
        self._get: Callable[[int], int] = core.get

    @staticmethod
    def _set_up(dealer: zmq.Socket[bytes], endpoint: str, login: Login, lane: int) -> zmq.Socket[bytes]:
        """Connect; return what tells of the connection's end."""
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.ROUTING_ID, data.routing_id(login.session, lane))
        dealer.setsockopt(zmq.SNDHWM, 2 * login.window.requests)
        dealer.setsockopt(zmq.RCVHWM, 2 * login.window.requests)
        dealer.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        dealer.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        dealer.setsockopt(zmq.HANDSHAKE_IVL, 0)  # a worker that is busy in user code answers it afterwards
        dealer.setsockopt_string(zmq.PLAIN_USERNAME, login.session.hex())
        dealer.setsockopt_string(zmq.PLAIN_PASSWORD, login.secret.hex())
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)  # closed: was never connected
        monitor.setsockopt(zmq.LINGER, 0)
        # The connection's own descriptor is made by libzmq's thread, which would not say that none was left.
        os.close(os.eventfd(0, os.EFD_CLOEXEC))
        dealer.connect(endpoint)
        return monitor

    def fileno(self) -> int:
        """Return the descriptor that says when to look again. Edge-triggered: first receive until nothing is left."""
        return self._descriptor

    def send(self, header: bytes, frames: list[Buffer]) -> bool:
        """Send a message; return whether replies have arrived meanwhile (the descriptor may not tell any more)."""
        if frames:
            message = pack(header, frames)
            self._send(message, NOBLOCK, copy=len(message) < COPY_BELOW_BYTES)
        else:
            self._send(header, NOBLOCK)
        return self._get(EVENTS) & POLLIN != 0

    def receive(self) -> memoryview | None:
        """Return the next message, or None if there is none; see `framing.unpack`."""
        try:
            return self._recv(NOBLOCK, False).buffer  # type: ignore[no-any-return]
        except zmq.Again:
            return None

    def wait_disconnected(self, timeout_ms: int) -> None:
        """Wait until libzmq has received everything that the ended worker had sent, at most `timeout_ms`."""
        self._monitor.poll(timeout_ms)

    def close(self) -> None:
        """Close; may be called twice."""
        self._dealer.disable_monitor()
        self._monitor.close()
        self._dealer.close()
