"""A connection that speaks ZMTP over a stream socket. Only translates; never blocks."""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from atomr_mp import checks
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp import stream
from atomr_mp.protocol.zmtp.framing import JOIN_BELOW_BYTES, pieces

CHUNK_BYTES: Final = 65536
"""Bytes that are received at a time, except those of large messages."""

SEND_BUFFER_BYTES: Final = 2**20
"""The send buffer asked of the kernel, which may grant less: enough for 64 small arrays."""

UNREAD_BYTES: Final = 256 * 1024
"""A peer that is so much behind gets no answers to its PINGs."""

PIECE_BYTES: Final = 256
"""Cost of keeping a waiting piece, besides its bytes."""

_END: Final = memoryview(b"")
"""Stands behind the last piece of a numbered message."""


class Connection:
    """One connection. What the kernel does not take at once is kept, and owed: `advance` sends it.

    Args:
        connected: The socket; it is owned from now on.
        talk: The protocol on it.
        pending: Called with this, and with `keeping` held, when there is something to `advance`.
        keeping: Held to change what waits; nothing where the caller holds a lock for all uses.
        patience_ms: How long `send` waits for the other end to make room.
    """

    def __init__(
        self,
        connected: socket.socket,
        talk: stream.ZmtpStream,
        pending: Callable[[Any], object],
        keeping: AbstractContextManager[object] | None = None,
        patience_ms: int = 0,
    ) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._socket = connected
        self._send, self._recv = connected.send, connected.recv
        self._stream: Any = talk
        self._pending = pending
        self._keeping = contextlib.nullcontext() if keeping is None else keeping
        self._patience_ms = patience_ms
        self._writable = select.poll()
        self._writable.register(connected, select.POLLOUT)
        self._unsent: deque[memoryview] = deque()
        self.waiting: Final[deque[int]] = deque()
        """Numbers that `mark` has given to messages that were not sent whole, in order."""
        self.keeps = False
        """Something waits, or what has waited is being sent: what comes now comes behind it. Changed with `keeping`
        held, and read without it by whoever sends: one flag, for two looks may fall on both sides of a change."""
        self.unsent_bytes = 0
        """Bytes that wait for room, and the cost of keeping them."""
        self.ended = False
        """The other end is closed, and all that it had sent has been received; or this end is closed."""
        self.broken = False
        """Something could not be sent: the other end is closed."""

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def writer_fileno(self) -> int:
        """Return the descriptor to poll before `advance`, which is the same."""
        return self._socket.fileno()

    @property
    def ready(self) -> bool:
        """Whether the login is over."""
        return bool(self._stream.ready)

    @property
    def waits_for(self) -> int:
        """Events to poll the descriptor for before `advance`; 0 if there is nothing to do."""
        return select.EPOLLOUT if self._unsent and not self.ended else 0

    @checks.checks_frames
    def send(self, header: bytes, frames: list[Buffer]) -> None:
        """Send a message. If the other end is closed, it goes nowhere."""
        if not frames and len(header) < JOIN_BELOW_BYTES:
            self._put(stream.frame(header))
            return
        for piece in pieces(header, frames):
            self._put(piece)

    def mark(self, number: int) -> None:
        """Number the message that was sent last, if something of it waits."""
        with self._keeping:
            if self._unsent:
                self._unsent.append(_END)
                self.unsent_bytes += PIECE_BYTES
                self.waiting.append(number)

    def advance(self) -> None:
        """Write queued bytes until the socket is full. With `keeping` held."""
        unsent = self._unsent
        try:
            while unsent:
                piece = unsent.popleft()  # first: whatever a signal handler raises, nothing is sent twice
                self.unsent_bytes -= len(piece) + PIECE_BYTES
                if not piece:
                    if not self.broken:
                        self.waiting.popleft()
                    continue
                sent = self._send_some(piece)
                if sent < len(piece):
                    unsent.appendleft(piece[sent:])
                    self.unsent_bytes += len(piece) - sent + PIECE_BYTES
                    return
        finally:
            self.keeps = bool(unsent)

    def close(self) -> None:
        """Close; may be called twice."""
        self.ended = True
        self._unsent.clear()
        self._socket.close()

    def _put(self, piece: Buffer) -> None:
        """Send a piece of a message, and keep the part that cannot be sent now."""
        if not self.keeps and self._may_send:
            sent = self._send_some(piece)
            while sent < len(piece) and self._patience_ms and self._writable.poll(self._patience_ms):
                piece = memoryview(piece)[sent:]
                sent = self._send_some(piece)
            if sent == len(piece):
                return
            piece = memoryview(piece)[sent:]
        with self._keeping:
            self.keeps = True
            self._unsent.append(memoryview(piece))
            self.unsent_bytes += len(piece) + PIECE_BYTES
            if len(self._unsent) == 1 and self._may_send:  # with more than one piece, it is owed already
                self._pending(self)

    @property
    def _may_send(self) -> bool:
        """Whether messages may be sent now."""
        return True

    def _send_some(self, piece: Buffer) -> int:
        """Return how many bytes the kernel has taken; all, if the other end is closed, since they are lost then."""
        try:
            return self._send(piece, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:
            self.broken = True
            return len(piece)

    def _fill(self) -> bool:
        """Receive some of the waiting bytes, and answer where due; False if nothing is there.

        Raises:
            ProtocolError: It is not ZMTP, or not allowed to this end.
        """
        if self.ended:
            return False
        talk = self._stream
        try:
            if talk.room is None:
                chunk = self._recv(CHUNK_BYTES)
                answer = talk.feed(chunk) if chunk else None
            else:
                count = self._socket.recv_into(talk.room)
                answer = talk.filled(count) if count else None
        except BlockingIOError:
            return False
        except OSError:  # of a connection that has ended, when all has been read
            answer = None
        if answer is None:
            self.ended = True
            return False
        if answer:
            self._answer(answer)
        return True

    def _answer(self, answer: bytes) -> None:
        """Send a step of the login, before all messages; or the answer to a command, after those that wait.

        Who does not read what waits for it would not read that answer either.
        """
        if not self._stream.ready:
            self._send_some(answer)
        elif self.unsent_bytes < UNREAD_BYTES:
            self._put(answer)
