"""The data channel's end in the worker: a ZeroMQ ROUTER to which only admitted sessions can connect.

A peer must show a session's secret (ZMQ PLAIN, answered by the ZAP handler here) before it can send a single frame,
so whatever an unknown peer does, libzmq holds at most one command of its handshake, of at most MAX_MESSAGE_BYTES.
"""

from __future__ import annotations

import hmac
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import zmq

from atomr_mp.protocol.codec import MAX_MESSAGE_BYTES
from atomr_mp.protocol.data import session_of
from atomr_mp.protocol.framing import pack
from atomr_mp.protocol.session import Window
from atomr_mp.protocol.values import Buffer

FLUSH_MS: Final = 1000
"""How long the last answers may take to reach the kernel when the socket is closed in good order."""

UNREAD_NS: Final = 1_000_000_000
UNREAD_BYTES: Final = 4 * 2**20
"""For how long, and by how much, a peer may be behind whose window is smaller: on a busy machine libzmq is late to say
what has left."""


class PeerNotReadingError(Exception):
    """The peer's queue is full, in messages or in bytes, because it does not read its answers."""


def prepare() -> None:
    """Start the threads of ZeroMQ's that the next `DataSocket` of this process will need."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.socket(zmq.REP).close()
    _AHEAD.append(context)


class DataSocket:
    """Receives calls and sends replies; never blocks. One thread only.

    Args:
        endpoint: Address to bind.
        window: What one connection may have unanswered; answers that wait to be read are bounded by the same.
        secret: Returns the secret of a session's public name, None if there is no such session.
    """

    def __init__(self, endpoint: str, window: Window, secret: Callable[[bytes], bytes | None]) -> None:
        self._secret = secret
        self._unread_bytes = window.payload_bytes
        self._unread: dict[bytes, deque[tuple[zmq.MessageTracker, int, int]]] = {}
        """Large messages by peer that libzmq still holds, their bytes, when they were sent; oldest first."""
        self._context: zmq.Context[zmq.Socket[bytes]] = _AHEAD.pop() if _AHEAD else zmq.Context()
        # The handler must be bound before the first handshake.
        self._zap = self._context.socket(zmq.REP)
        self._zap.setsockopt(zmq.LINGER, 0)
        self._zap.bind("inproc://zeromq.zap.01")
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, 2 * window.requests)
        router.setsockopt(zmq.RCVHWM, 2 * window.requests)
        router.setsockopt(zmq.BACKLOG, 4096)  # a client whose connection finds it full does not try again
        router.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        router.setsockopt(zmq.PLAIN_SERVER, 1)
        router.setsockopt(zmq.HANDSHAKE_IVL, 0)  # the handshake is answered between requests, which may take long
        router.setsockopt_string(zmq.ZAP_DOMAIN, "atomr-mp")
        router.bind(endpoint)
        self._router = router
        # The methods of pyzmq's core, without the layer that serves its other uses.
        core: Any = super(zmq.Socket, router)
        self._recv: Callable[..., Any] = core.recv
        self._send: Callable[..., Any] = core.send
        self._get: Callable[[int], int] = core.get

    def descriptors(self) -> tuple[int, int]:
        """Return the descriptors to poll: calls, handshakes. Both are edge-triggered: read until nothing is left."""
        return self._router.getsockopt(zmq.FD), self._zap.getsockopt(zmq.FD)  # type: ignore[return-value]

    def has_message(self) -> bool:
        """Return whether `receive` would return one; if not, the descriptor tells of the next."""
        return self._get(_EVENTS) & _POLLIN != 0

    def receive(self) -> tuple[bytes, memoryview] | None:
        """Return routing id and content of the next message, see `framing.unpack`, or None if there is none."""
        try:
            peer = self._recv(_NOBLOCK)
        except zmq.Again:
            return None
        frame = self._recv(0, False)
        message: memoryview = frame.buffer
        # ZeroMQ's own frame knows whether more follow; to ask the socket costs more than to receive.
        while frame.more:  # a peer gone wild
            message = memoryview(b"")
            frame = self._recv(0, False)
        return peer, message

    def send(self, peer: bytes, header: bytes, frames: list[Buffer]) -> bool:
        """Send a message; False if the peer has disconnected, so nobody gets it.

        Raises:
            PeerNotReadingError: The peer's queue is full.
        """
        if self._unread:
            self._check_unread(peer)
        message = pack(header, frames) if frames else header
        try:
            self._send(peer, _NOBLOCK_MORE)  # does not travel: it says to whom
            if len(message) < _COPY_BELOW_BYTES:
                self._send(message, _NOBLOCK)
            else:
                tracker = self._send(message, _NOBLOCK, copy=False, track=True)
                self._unread.setdefault(peer, deque()).append((tracker, len(message), time.monotonic_ns()))
        except zmq.Again as error:
            raise PeerNotReadingError from error
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._unread.pop(peer, None)
            return False
        return True

    def _check_unread(self, peer: bytes) -> None:
        """Forget what has left for a peer; complain if too much has not."""
        unread = self._unread.get(peer)
        if unread is None:
            return
        while unread and unread[0][0].done:
            unread.popleft()
        if not unread:
            del self._unread[peer]
            return
        held_bytes = sum(nbytes for _, nbytes, _ in unread)
        late = time.monotonic_ns() - unread[0][2] > UNREAD_NS
        if held_bytes > (self._unread_bytes if late else max(self._unread_bytes, UNREAD_BYTES)):
            del self._unread[peer]
            raise PeerNotReadingError

    def forget(self, session: bytes) -> None:
        """Forget what is known of a session's connections: it has ended.

        Args:
            session: Its public name.
        """
        for peer in [peer for peer in self._unread if session_of(peer) == session]:
            del self._unread[peer]

    def shake_hands(self) -> int:
        """Answer all waiting handshakes; return how many were refused."""
        refused = 0
        while True:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return refused
            ok = self._is_authentic(request)
            refused += not ok
            status = (b"200", b"OK") if ok else (b"400", b"no such session, or a wrong secret")
            version, request_id = request[:2]
            self._zap.send_multipart([version, request_id, *status, b"", b""])

    def close(self, *, flush: bool) -> None:
        """Close; with `flush`, wait until the replies that were sent have left, at most `FLUSH_MS`."""
        self._router.close(linger=FLUSH_MS if flush else 0)
        self._zap.close()
        self._context.term()

    def _is_authentic(self, request: list[bytes]) -> bool:
        """Return whether a ZAP request (ZeroMQ RFC 27) shows a session's secret by PLAIN."""
        if len(request) != _ZAP_PLAIN_FRAMES:
            return False
        *_, mechanism, user, password = request
        try:
            secret = self._secret(bytes.fromhex(user.decode("ascii")))
        except ValueError:
            return False
        return mechanism == b"PLAIN" and secret is not None and hmac.compare_digest(password, secret.hex().encode())


_AHEAD: Final[list[zmq.Context[zmq.Socket[bytes]]]] = []
_ZAP_PLAIN_FRAMES: Final = 8

_COPY_BELOW_BYTES: Final = 65536
"""Messages below this are copied when sent: that is faster than keeping track of them (ZeroMQ's own threshold)."""

# Plain integers: the enumerations' operators cost as much as a message.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_NOBLOCK_MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
