"""What both ends of a tunnel need of libzmq: a fit library, times, and its plain functions."""

from __future__ import annotations

from typing import Any, Final

import zmq
import zmq.backend

from atomr_mp import errors
from atomr_mp.remote.keys import ClientKeys

HEARTBEAT_MS: Final = 500
"""How often each end asks whether the other is there."""

TIMEOUT_MS: Final = 1500
"""How long an end may be silent before the connection counts as cut."""

HANDSHAKE_MS: Final = 3000
"""How long a handshake may take."""

MIN_LIBZMQ: Final = (4, 3, 5)


def descriptor_of(socket: zmq.Socket[bytes]) -> int:
    """Return a socket's descriptor, which tells of changes only: ask `is_readable` after each use of the socket."""
    descriptor = socket.getsockopt(zmq.FD)
    assert isinstance(descriptor, int)
    return descriptor


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message has arrived."""
    return get_option(socket, EVENTS) & POLLIN != 0  # type: ignore[no-any-return]


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


def set_keys(socket: zmq.Socket[bytes], keys: ClientKeys | None) -> None:
    """Set a client's keys; None for no encryption."""
    if keys is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server.encode())


def set_heartbeats(socket: zmq.Socket[bytes]) -> None:
    """Have a socket's connections, once they are made, end when the other end is silent."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)


# Plain integers, and pyzmq's base methods: its enumerations and wrappers took a fifth of a call's time.
core_send: Final[Any] = zmq.backend.Socket.send
core_recv: Final[Any] = zmq.backend.Socket.recv
get_option: Final[Any] = zmq.backend.Socket.get
EVENTS: Final = int(zmq.EVENTS)
POLLIN: Final = int(zmq.POLLIN)
POLLOUT: Final = int(zmq.POLLOUT)
DONTWAIT: Final = int(zmq.DONTWAIT)
