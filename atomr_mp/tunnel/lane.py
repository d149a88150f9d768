"""A lane's connection to a worker behind the relay. For one thread at a time; never blocks, but where it says so.

It speaks to the worker as a local connection does, byte for byte.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from atomr_mp import checks, errors
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp import stream
from atomr_mp.protocol.zmtp.framing import JOIN_BELOW_BYTES, pieces
from atomr_mp.transport.data import Login
from atomr_mp.tunnel.channel import ClientChannel
from atomr_mp.tunnel.uploads import ArgumentUploads
from atomr_mp.wire.ends import NEVER

_LOG: Final = logging.getLogger("atomr_mp.client")

STOP_MS: Final = 1000
"""How long what is on its way may take to come."""

TURN_BYTES: Final = 2**20
"""Bytes that are received before those that wait are taken from here."""


class _Handed(NamedTuple):
    """The beginning of a message in what is unsent."""

    after_ns: int
    """When the message before it had been handed over; it was handed over later."""


class LaneConnection:
    """Sends calls and receives replies.

    A wire's signals are taken by any use, so what others than `receive` have left here is signalled again.

    Args:
        channel: The connection; owned from here on.
        uploads: Arguments that are being copied: no call is sent before its own are there.
        login: The session's proof.
        lane: Number of this connection in the session.
        pending: Called with this when there is something to `advance`.
    """

    late = True
    """The session's channel may be faster than this one."""

    def __init__(
        self,
        channel: ClientChannel,
        uploads: ArgumentUploads,
        login: Login,
        lane: int,
        pending: Callable[[LaneConnection], object],
    ) -> None:
        user, secret = login.session.hex().encode(), login.secret.hex().encode()
        self._stream: Final = stream.Dealer(data.routing_id(login.session, lane), user, secret)
        self._channel = channel
        self.fileno: Final = channel.fileno
        self._writers_bell: Final = channel.second_bell()
        """Unlike the other, it is quiet while messages wait here: else the courier would be called again and again."""
        self._pending = pending
        self._uploads = uploads
        self._behind = 0
        """How many of the uploads have to be done before the latest message is sent."""
        self._unsent: Final[deque[memoryview | int | _Handed]] = deque()
        """What the window has no room for, or what waits for the login, or behind so many uploads for these."""
        self._handed_ns = 0
        """When the latest message had been handed over, CLOCK_MONOTONIC."""
        self._taken_back_ns = NEVER
        """The result of `take_back` once this has ended."""
        self.ended = False
        self.broken = False
        channel.send(self._stream.opening)
        self._look()
        pending(self)

    def when_over(self, call: Callable[[], object]) -> None:
        """Have this called, on another thread, once that thread has found the end and no receiver has."""
        self._channel.when_over = call
        if self._channel.over:
            self._channel.signal()

    def writer_fileno(self) -> int:
        """Return the descriptor to poll before `advance`."""
        return self._writers_bell.fileno()

    @property
    def has_message(self) -> bool:
        """Whether `receive` would return a message that the descriptor no longer signals."""
        return bool(self._stream.messages)

    @property
    def ready(self) -> bool:
        """Whether the worker has let it in."""
        return self._stream.ready

    @property
    def waits_for(self) -> int:
        """Events to poll `writer_fileno` for before `advance`; 0 if there is nothing to do."""
        return select.EPOLLIN if not self.ended and (self._unsent or not self._stream.ready) else 0

    @checks.checks_frames
    def send(self, header: bytes, frames: list[Buffer]) -> None:
        """Send a message. If the worker has ended, it goes nowhere."""
        if self._uploads.begun > self._behind:
            self._wait_for_uploads()
        if self._unsent:
            self._unsent.append(_Handed(self._handed_ns))
        if not frames and len(header) < JOIN_BELOW_BYTES:
            self._put(stream.frame(header))
        else:
            for piece in pieces(header, frames):
                self._put(piece)
        self._look()
        self.broken = self.broken or self._channel.ended
        self._handed_ns = time.monotonic_ns()

    def receive(self) -> memoryview | None:
        """Return the next message, or None if there is none; see `framing.unpack`."""
        messages = self._stream.messages
        if not messages:
            self._fill()
            if not messages:
                return None
        return messages.popleft()

    def advance(self) -> None:
        """Do as much of the owed work as possible; what has come is signalled again for `receive`."""
        self._writers_bell.hush()
        if self._fill() or self.ended or self._stream.messages:
            self._channel.signal()

    def wait_disconnected(self, timeout_ms: int) -> None:
        """Wait until everything has been received that the ended worker had sent, at most `timeout_ms`."""
        until_s = time.monotonic() + timeout_ms / 1000
        readable = select.poll()
        readable.register(self.fileno(), select.POLLIN)
        while not self.ended:
            if not self._fill() and not self.ended:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return
                readable.poll(left_s * 1000)

    def take_back(self) -> int:
        """Drop the messages that have not begun to leave this process; return the time since which they were given."""
        unsent = self._unsent
        for at, piece in enumerate(unsent):
            if isinstance(piece, _Handed):
                while len(unsent) > at:
                    unsent.pop()
                self._taken_back_ns = min(self._taken_back_ns, piece.after_ns)
                break
        return self._taken_back_ns

    def stop(self) -> None:
        """Have nothing sent to this end from now on; what was sent before comes meanwhile. Blocks for a round trip.

        The worker counts as sent what the relay has read. So where the end does not come in time, or the connection is
        cut, memory of such answers is given back with the session only.
        """
        if self._channel.leave():
            self.wait_disconnected(STOP_MS)

    def close(self) -> None:
        """Close; may be called twice."""
        self.ended = True
        self._drop()
        self._channel.close()

    def _drop(self) -> None:
        self.take_back()
        self._unsent.clear()

    def _put(self, piece: Buffer) -> None:
        if not self._unsent and self._stream.ready:
            sent = self._channel.send(piece)
            if sent == len(piece):
                return
            piece = memoryview(piece)[sent:]
        self._unsent.append(memoryview(piece))
        if len(self._unsent) == 1 and self._stream.ready:  # with more than one piece, it is owed already
            self._pending(self)

    def _wait_for_uploads(self) -> None:
        """Send nothing further until the uploads that were begun are done."""
        self._behind = self._uploads.begun
        if self._uploads.done < self._behind:
            self._unsent.append(self._behind)
            self._uploads.when_done(self._behind, self._writers_bell.ring)
            if len(self._unsent) == 1 and self._stream.ready:
                self._pending(self)

    def _fill(self) -> bool:
        """Take in all that has come, and send what waits for room; return whether anything has come.

        Nothing is left in libzmq, which then signals whatever comes next. Only where nothing is owed it may be left
        there after many bytes, and is signalled here.
        """
        channel, taken = self._channel, 0
        try:
            while not self.ended:
                while (payload := channel.receive()) is not None:
                    taken += len(payload)
                    self._take(payload)
                    if taken >= TURN_BYTES and not self.waits_for:
                        channel.signal()
                        return True
                self.ended = channel.ended
                if self._unsent and self._stream.ready and not self.ended:
                    self._flush()
                if not channel.signalled:
                    break  # no send since has taken the signal of a packet
        except errors.ProtocolError:  # a worker gone wild; whoever receives just now is not to blame
            _LOG.exception("a worker's data connection is not read on")
            self.ended = True
        if self.ended:
            self._drop()
        elif self._unsent and self._stream.ready:
            self._pending(self)
        return taken > 0

    def _look(self) -> None:
        """Wake the courier if it waits for a packet whose signal a send has taken."""
        if self._channel.signalled and self.waits_for:
            self._writers_bell.ring()

    def _take(self, payload: memoryview) -> None:
        talk = self._stream
        while payload:
            if talk.room is None:
                answer, payload = talk.feed(bytes(payload)), payload[:0]
            else:
                count = min(len(talk.room), len(payload))
                talk.room[:count] = payload[:count]
                answer, payload = talk.filled(count), payload[count:]
            if answer:  # a step of the login, or the answer to a command
                if not talk.ready or not self._unsent:
                    self._channel.send(answer)
                else:
                    self._unsent.append(memoryview(answer))

    def _flush(self) -> None:
        while self._unsent:
            piece = self._unsent.popleft()
            if isinstance(piece, int):
                if self._uploads.done < piece:
                    self._unsent.appendleft(piece)
                    return
                continue
            if isinstance(piece, _Handed):
                continue
            sent = self._channel.send(piece)
            if sent < len(piece):
                self._unsent.appendleft(piece[sent:])
                return
