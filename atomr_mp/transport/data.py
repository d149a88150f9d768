"""The data channel's end in a client: one connection for each (lane, incarnation). Only translates.

It speaks ZeroMQ's protocol to the worker's socket by itself, without libzmq: a call then wakes no thread of libzmq on
its way out, and none on its way in, which is much of what it takes (docs/performance.md); the end of the worker is
the end of the stream, behind its last answer; and an application that forks has no threads of libzmq's in it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.flight import Window
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp import stream
from atomr_mp.protocol.zmtp.framing import JOIN_BELOW_BYTES, pieces
from atomr_mp.transport.session import credentials

CHUNK_BYTES: Final = 65536
"""What is received at a time, but of large messages."""

SEND_BUFFER_BYTES: Final = 2**20
"""What is asked of the kernel, which may grant less: enough for what 64 small arrays take."""

WRITABLE_MS: Final = 1
"""How long `send` waits for the worker's end to make room: one that runs takes microseconds."""

_LOG: Final = logging.getLogger("atomr_mp.client")


class Login(NamedTuple):
    """What admits a client's connections to a worker."""

    session: bytes
    secret: bytes
    window: Window


class DataConnection:
    """Sends calls and receives replies; never blocks for long, but where it says so. For one thread at a time.

    What cannot be sent at once, because the login is not over or the worker's end makes no room, is sent by `advance`.

    Args:
        endpoint: Address of one incarnation's data socket.
        login: The session's proof.
        lane: Number of this connection in the session.
        owes: Called with this when there is something to `advance`.

    Raises:
        OSError: No descriptor is left, or the worker's queue of connections is full.
    """

    def __init__(
        self, endpoint: str, login: Login, lane: int, owes: Callable[[DataConnection], object] = lambda _: None
    ) -> None:
        user, secret = login.session.hex().encode(), login.secret.hex().encode()
        self._stream = stream.Dealer(data.routing_id(login.session, lane), user, secret)
        self._owes = owes
        self._unsent: deque[memoryview] = deque()
        self.ended = False
        """The worker's end is closed, and all that it had sent has been received."""
        self.broken = False
        """Something could not be sent: the worker's end is closed."""
        connected = self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._send, self._recv = connected.send, connected.recv
        self._writable = select.poll()
        self._writable.register(connected, select.POLLOUT)
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            with contextlib.suppress(FileNotFoundError, ConnectionError):  # the worker has ended: so will this
                connected.connect(endpoint.removeprefix("ipc://"))
                if (uid := credentials(connected).uid) != os.geteuid():  # it is shown no secret
                    _LOG.error("a process of uid %d listens at %s: nothing is sent there", uid, endpoint)
                    connected.shutdown(socket.SHUT_RDWR)
                self._send(self._stream.opening, socket.MSG_NOSIGNAL)
        except BaseException:
            connected.close()
            raise
        owes(self)

    def fileno(self) -> int:
        """Return the descriptor that says when to look again, unless `has_message`; readable for ever once `ended`."""
        return self._socket.fileno()

    @property
    def has_message(self) -> bool:
        """Whether `receive` would return a message of which the descriptor does not tell any more."""
        return bool(self._stream.messages)

    @property
    def ready(self) -> bool:
        """Whether the worker has let it in."""
        return self._stream.ready

    @property
    def waits_for(self) -> int:
        """What `advance` waits for: events to poll the descriptor for; 0 if there is nothing to be done."""
        if self.ended:
            return 0
        if not self._stream.ready:
            return select.EPOLLIN
        return select.EPOLLOUT if self._unsent else 0

    def send(self, header: bytes, frames: list[Buffer]) -> None:
        """Send a message. If the worker has ended, it goes nowhere."""
        if not frames and len(header) < JOIN_BELOW_BYTES:
            self._put(stream.frame(header))
            return
        for piece in pieces(header, frames):
            self._put(piece)

    def receive(self) -> memoryview | None:
        """Return the next message, or None if there is none; see `framing.unpack`."""
        messages = self._stream.messages
        while not messages:
            if not self._fill():
                return None
        return messages.popleft()

    def advance(self) -> None:
        """Do what can be done of what is owed."""
        if not self._stream.ready:
            self._fill()
        else:
            self._flush()

    def wait_disconnected(self, timeout_ms: int) -> None:
        """Wait until everything has been received that the ended worker had sent, at most `timeout_ms`."""
        until_s = time.monotonic() + timeout_ms / 1000
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        while not self.ended:
            if not self._fill():
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return
                readable.poll(left_s * 1000)

    def close(self) -> None:
        """Close; may be called twice."""
        self.ended = True
        self._unsent.clear()
        self._socket.close()

    def _put(self, piece: Buffer) -> None:
        """Send a piece of a message, or keep what of it cannot be sent now."""
        if self._unsent or not self._stream.ready:
            self._unsent.append(memoryview(piece))
            return
        sent = self._send_some(piece)
        while sent < len(piece):
            piece = memoryview(piece)[sent:]
            if not self._writable.poll(WRITABLE_MS):
                self._unsent.append(piece)
                self._owes(self)
                return
            sent = self._send_some(piece)

    def _flush(self) -> None:
        while self._unsent:
            piece = self._unsent.popleft()  # first: whatever a signal handler raises, nothing is sent twice
            sent = self._send_some(piece)
            if sent < len(piece):
                self._unsent.appendleft(piece[sent:])
                return

    def _send_some(self, piece: Buffer) -> int:
        """Return how many bytes the kernel has taken; all, if the worker has ended, for nobody wants them."""
        try:
            return self._send(piece, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:  # its last answers, and the supervisor, will tell
            self.broken = True
            return len(piece)

    def _fill(self) -> bool:
        """Receive what is there; False if nothing is."""
        if self.ended:
            return False
        stream = self._stream
        try:
            if stream.room is None:
                chunk = self._recv(CHUNK_BYTES)
                answer = stream.feed(chunk) if chunk else None
            else:
                count = self._socket.recv_into(stream.room)
                answer = stream.filled(count) if count else None
        except BlockingIOError:
            return False
        except errors.ProtocolError:  # a worker gone wild; whoever receives just now is not to blame
            _LOG.exception("a worker's data connection is not read on")
            answer = None
        except OSError:  # of a connection that has ended, when all has been read
            answer = None
        if answer is None:
            self.ended = True
            self._unsent.clear()
            return False
        if answer:
            with contextlib.suppress(ConnectionError):  # which is found out when there is nothing left to receive
                self._send(answer, socket.MSG_NOSIGNAL)
        elif self._unsent and stream.ready:
            self._flush()
            if self._unsent:
                self._owes(self)
        return True
