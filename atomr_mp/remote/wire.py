"""A remote client's socket: a DEALER of libzmq with CURVE, and its monitor. For one thread at a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final

import zmq
import zmq.backend
from zmq.utils.monitor import recv_monitor_message

from atomr_mp import errors
from atomr_mp.protocol.messages.remote import MAX_REMOTE_MESSAGE_BYTES
from atomr_mp.protocol.values import Buffer
from atomr_mp.remote.keys import ClientKeys

HEARTBEAT_MS: Final = 500
"""How often each end asks whether the other is there."""

TIMEOUT_MS: Final = 1500
"""How long an end may be silent before the connection counts as cut."""

RECONNECT_MS: Final = 5
"""Time before the first attempt to connect anew. The supervisor keeps the listening socket, so a gateway's end refuses
nobody: the next gateway answers as soon as it listens."""

RECONNECT_MAX_MS: Final = 500
"""Longest time between attempts to connect; libzmq doubles the first and adds jitter."""

RENEW_NS: Final = 200_000_000
"""How long to wait for libzmq's word, after a connection's end, that it will connect again. The word comes at once, or
never: libzmq gives up after bytes that are no ZMTP, or a message that does not decrypt."""

HANDSHAKE_MS: Final = 3000
"""How long a handshake may take."""

MIN_LIBZMQ: Final = (4, 3, 5)


class Sign(Enum):
    """Events of the monitor."""

    HANDSHAKE = "handshake"
    """A new connection is authenticated."""
    CUT = "cut"
    """The connection has ended, or could not be made."""
    REFUSED = "refused"
    """The server does not admit our key."""


class RemoteWire:
    """The socket and its monitor.

    Args:
        endpoint: "tcp://HOST:PORT".
        keys: Ours and the server's; None for no encryption, on loopback.

    Raises:
        ConfigurationError: libzmq is too old, has no CURVE, or takes no such endpoint.
    """

    def __init__(self, endpoint: str, keys: ClientKeys | None) -> None:
        check_library()
        self._endpoint: Final = endpoint
        self._ended_ns: int | None = None
        """When the last connection ended, until libzmq says that it will connect again."""
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._monitor = self._socket.get_monitor_socket(_SIGNS)
        try:
            configure(self._socket, keys)
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise errors.ConfigurationError(f"{endpoint!r} cannot be connected to: {error.strerror}") from error
        self.fileno: Final = descriptor_of(self._socket)
        self.monitor_fileno: Final = descriptor_of(self._monitor)

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Send a message; False if there is no connection to take it."""
        try:
            core_send(self._socket, parts[0] if len(parts) == 1 else b"".join(parts), _DONTWAIT)
        except zmq.Again:
            return False
        return True

    @property
    def readable(self) -> bool:
        """Whether a message has arrived. Ask after each use of the socket: the descriptor tells of changes only."""
        return is_readable(self._socket)

    def receive(self, *, told: bool = False) -> memoryview | None:
        """Return the next message, None if there is none.

        Args:
            told: The descriptor has told of one, so libzmq is not asked first.
        """
        if not (told or _get(self._socket, _EVENTS) & _POLLIN):
            return None
        try:
            frame = core_recv(self._socket, _DONTWAIT, False)
        except zmq.Again:
            return None
        if not frame.more:
            return memoryview(frame.buffer)
        while core_recv(self._socket, _DONTWAIT, False).more:
            pass
        return memoryview(b"")  # no message of ours has several frames; an empty one fails to decode

    def signs(self) -> Iterator[Sign]:
        """Yield the monitor's events since the last time; of connections only the state of the latest.

        A hello for a connection that has ended since would travel on the next one, which has a hello of its own.
        """
        latest = None
        while is_readable(self._monitor):
            event = recv_monitor_message(self._monitor, zmq.DONTWAIT)["event"]
            self._ended_ns = time.monotonic_ns() if event == _ENDED else None
            if event == _REFUSED:
                yield Sign.REFUSED
            elif event != _RETRIED:
                latest = _SIGNS_BY_EVENT.get(event, Sign.CUT)
        if latest is not None:
            # libzmq looks for ends of connections once in a millisecond, or if it is asked for its events. A message
            # that is sent before that may be lost with a connection that has ended.
            _get(self._socket, _EVENTS)
            yield latest

    @property
    def renew_at_ns(self) -> int | None:
        """When `renew` is due, unless something is heard before; None while there is no need."""
        return None if self._ended_ns is None else self._ended_ns + RENEW_NS

    def renew(self) -> None:
        """Have libzmq connect again if that is due: it has given up."""
        if self._ended_ns is None or time.monotonic_ns() < self._ended_ns + RENEW_NS:
            return
        self._ended_ns = time.monotonic_ns()
        with contextlib.suppress(zmq.ZMQError):  # it knows the endpoint no more
            self._socket.disconnect(self._endpoint)
        with contextlib.suppress(zmq.ZMQError):  # it is tried again
            self._socket.connect(self._endpoint)
            self._ended_ns = None

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket, after at most `linger_ms` for messages that wait to be sent."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)
        self._context.term()

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child: libzmq's threads do not exist there, so nothing of it may be called."""
        _FORKED.append((self._context, self._socket, self._monitor))


def descriptor_of(socket: zmq.Socket[bytes]) -> int:
    """Return a socket's descriptor, which tells of changes only: ask `is_readable` after each use of the socket."""
    descriptor = socket.getsockopt(zmq.FD)
    assert isinstance(descriptor, int)
    return descriptor


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message has arrived."""
    return _get(socket, _EVENTS) & _POLLIN != 0  # type: ignore[no-any-return]


def check_library() -> None:
    """Refuse a libzmq that is unfit.

    Raises:
        ConfigurationError: The library is too old, or has no CURVE.
    """
    if zmq.zmq_version_info() < MIN_LIBZMQ:
        raise errors.ConfigurationError(
            f"remote clients need libzmq {'.'.join(map(str, MIN_LIBZMQ))} or later; pyzmq has {zmq.zmq_version()}: "
            "install a newer pyzmq"
        )
    if not zmq.has("curve"):
        raise errors.ConfigurationError("the installed libzmq has no CURVE; install pyzmq from a wheel")


def configure(socket: zmq.Socket[bytes], keys: ClientKeys | None) -> None:
    """Set the options that a client's socket needs before it connects."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IMMEDIATE, 1)  # else the next gateway would run calls that were sent while there was none
    socket.setsockopt(zmq.SNDHWM, 0)  # the window bounds what is in flight
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_REMOTE_MESSAGE_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, HANDSHAKE_MS)
    socket.setsockopt(zmq.IPV6, 1)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server.encode())


# Plain integers, and pyzmq's base methods: its enumerations and wrappers took a fifth of a call's time.
core_send: Final[Any] = zmq.backend.Socket.send
core_recv: Final[Any] = zmq.backend.Socket.recv
_get: Final[Any] = zmq.backend.Socket.get
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_DONTWAIT: Final = int(zmq.DONTWAIT)

_SIGNS_BY_EVENT: Final = {int(zmq.EVENT_HANDSHAKE_SUCCEEDED): Sign.HANDSHAKE}
_REFUSED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_ENDED: Final = int(zmq.EVENT_DISCONNECTED)
_RETRIED: Final = int(zmq.EVENT_CONNECT_RETRIED)

# Without EVENT_HANDSHAKE_FAILED_PROTOCOL: libzmq 4.3.5 loses the reason of an error by telling of it. After a message
# that does not decrypt it then keeps a connection that it does not read, and aborts the process if that ends before
# its timeout.
_SIGNS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_DISCONNECTED
)
_FORKED: Final[list[object]] = []
"""Sockets that a fork has brought along. They are never collected here, since that would call libzmq."""
