"""A connection to the data channel's end in the worker. Only translates."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from typing import Final

from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp import stream
from atomr_mp.protocol.zmtp.framing import JOIN_BELOW_BYTES, pieces
from atomr_mp_workers.wire.late_answers import LateAnswers

CHUNK_BYTES: Final = 65536
"""What is received at a time, but of large messages."""

SEND_BUFFER_BYTES: Final = 2**20
"""What is asked of the kernel, which may grant less."""

PONGS_BYTES: Final = 256 * 1024
"""By how much more a peer may be behind that sends PINGs and does not read."""

PIECE_BYTES: Final = 256
"""What is needed to keep what waits, besides itself."""


class DataPeer:
    """One connection; never blocks, but where it says so.

    Args:
        connected: The connection; it is owned from now on.
        stream: What it says.
        poll: What the loop waits with.
        late: Sends what cannot be sent at once, because the peer makes no room.
        unread_bytes: What may wait for a peer that does not read; who only asks for more of it is closed beyond.
    """

    def __init__(
        self,
        connected: socket.socket,
        stream: stream.Router,
        poll: select.epoll,
        late: LateAnswers,
        unread_bytes: int,
    ) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._socket = connected
        self._send, self._recv = connected.send, connected.recv
        self._stream = stream
        self._poll = poll
        self._late = late
        self._most_unsent_bytes = unread_bytes + PONGS_BYTES
        self.descriptor: Final = connected.fileno()
        self.messages: Final = stream.messages
        """Those that have come."""
        self.unsent_bytes = 0
        """What waits for room, and what it takes to keep it."""
        self._unsent: deque[memoryview] = deque()
        """What waits for room: changed with the lock held, and taken out when it has been sent."""
        self.gone = False
        """The peer has closed, or is to be closed."""
        poll.register(self.descriptor, select.EPOLLIN)
        self._put(stream.opening)

    @property
    def ready(self) -> bool:
        """Whether it has logged in."""
        return self._stream.ready

    @property
    def routing_id(self) -> bytes:
        """Its routing id, once it is `ready`."""
        return self._stream.identity

    def hung_up(self) -> bool:
        """Whether the other end is closed; what it has sent may be there still."""
        poll = select.poll()
        poll.register(self.descriptor, 0)
        return bool(poll.poll(0))  # asked for nothing, it tells of an end alone

    def listen(self, *, to_messages: bool) -> None:
        """Have the loop hear of messages, or of the end only."""
        self._poll.modify(self.descriptor, select.EPOLLIN if to_messages else 0)

    def send(self, header: bytes, frames: list[Buffer]) -> None:
        """Send a message."""
        if not frames and len(header) < JOIN_BELOW_BYTES:
            self._put(stream.frame(header))
            return
        for piece in pieces(header, frames):
            self._put(piece)

    def receive(self) -> None:
        """Receive some of what is there: messages, or a step of the login, which is answered.

        Raises:
            ProtocolError: It is not ZMTP, or not what a client says.
        """
        stream = self._stream
        try:
            if stream.room is None:
                chunk = self._recv(CHUNK_BYTES)
                self.gone = not chunk
                answer = stream.feed(chunk)
            else:
                count = self._socket.recv_into(stream.room)
                self.gone = not count
                answer = stream.filled(count)
        except BlockingIOError:
            return
        except OSError:
            self.gone = True
            return
        if answer:
            self._put(answer)
        if stream.refused or self.unsent_bytes > self._most_unsent_bytes:
            self.gone = True

    def send_late(self) -> bool:
        """Send of what waits what there is room for; return whether something is left. With the lock held."""
        unsent = self._unsent
        while unsent and not self.gone:
            sent = self._send_some(unsent[0])
            self.unsent_bytes -= sent
            if sent < len(unsent[0]):
                unsent[0] = unsent[0][sent:]
                return not self.gone
            unsent.popleft()
            self.unsent_bytes -= PIECE_BYTES
        return False

    def flush(self, until_s: float) -> None:
        """Wait until nothing waits for room any more, at most until a time, CLOCK_MONOTONIC."""
        room = select.poll()
        room.register(self.descriptor, select.POLLOUT)
        while True:
            with self._late.lock:
                if not self.send_late():
                    return
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            room.poll(left_s * 1000)

    def close(self) -> None:
        """Close."""
        with self._late.lock:
            self._late.remove(self)
            self._unsent.clear()
        self._poll.unregister(self.descriptor)
        self._socket.close()

    def _put(self, piece: Buffer) -> None:
        """Send a piece of a message, or have what of it cannot be sent now be sent late."""
        if not self._unsent:  # so nobody else sends just now
            sent = self._send_some(piece)
            if sent == len(piece):
                return
            piece = memoryview(piece)[sent:]
        with self._late.lock:
            self._unsent.append(memoryview(piece))
            self.unsent_bytes += len(piece) + PIECE_BYTES
            self._late.add(self)

    def _send_some(self, piece: Buffer) -> int:
        """Return how many bytes the kernel has taken."""
        try:
            return self._send(piece, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:
            self.gone = True  # the loop hears of that too
            return 0
