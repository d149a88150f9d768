"""Copies ranges of memory on the pool's machine to this process and back. Thread-safe; blocks.

A transfer goes in parts, between which the transfers of other threads have their turn. If the channel ends in the
middle, another is opened, and the part is repeated, for as long as the session lasts: what was copied twice is as if
copied once.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import msgspec

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.decoders import decoder
from atomr_mp.protocol.tunnel.channel_life import ATTEMPT_NS, again_ns
from atomr_mp.protocol.tunnel.ranges import ANSWER, MAX_RANGE, RangeOp, RangeRequest, SlabKey, unpack_answer
from atomr_mp.tunnel.channel import ClientChannel
from atomr_mp.tunnel.returns import RelayReturns

AHEAD: Final = 8
"""Parts that are asked for before the first of them is answered, so that neither end waits for the other."""

WAIT_MS: Final = 1000
"""How long to wait at a time for the relay."""


class SessionCheck(Protocol):
    """Raises the error of a session that has ended."""

    def __call__(self, *, reads: bool) -> None:
        """Check it.

        Args:
            reads: Whether what it has said meanwhile is read first, which may run callbacks of replies.
        """


class MemoryCopier:
    """The ranges that a client copies.

    Args:
        opens: Opens a channel.
        check: Raises the error of a session that has ended.
        returns: The session's relays.
    """

    def __init__(
        self, opens: Callable[[], ClientChannel], check: SessionCheck, returns: RelayReturns | None = None
    ) -> None:
        self._opens = opens
        self._check = check
        self._returns: Final = returns or RelayReturns()
        self._turns: Final = FairTurns()
        self._channel: ClientChannel | None = None
        self._came: Final[deque[memoryview]] = deque()
        """Bytes that have come and are still to be read."""
        self._closing: Final[deque[SlabKey]] = deque()
        """Slabs to unmap, with the next request; finalisers append to it."""

    @interrupts.defer_interrupts
    def write(self, key: SlabKey, offset: int, content: memoryview) -> None:
        """Copy bytes to a slab; they are there when this returns.

        Raises:
            AtomrError: The relay refuses it, or the session has ended.
        """
        self._copy(RangeOp.WRITE, key, offset, content)

    @interrupts.defer_interrupts
    def read(self, key: SlabKey, offset: int, room: memoryview) -> None:
        """Copy bytes from a slab.

        Raises:
            AtomrError: The relay refuses it, or the session has ended.
        """
        self._copy(RangeOp.READ, key, offset, room)

    def close_slab(self, key: SlabKey) -> None:
        """Have the relay unmap a slab with the next request. Neither waits nor takes a lock."""
        self._closing.append(key)

    def close(self) -> None:
        """Close the channel; a transfer under way ends first."""
        with self._turns.mine():
            self._drop()

    def _copy(self, op: RangeOp, key: SlabKey, offset: int, content: memoryview) -> None:
        """Copy all of a range, in turns; whatever a lost channel has left open is repeated on another one."""
        done = attempts = 0
        while done < len(content):
            returns = self._returns.count
            try:
                with self._turns.mine():
                    try:
                        channel = self._channel or self._open()
                        for end in self._copy_parts(channel, op, key, offset, content, done):
                            done, attempts = end, 0
                    except BaseException:
                        self._drop()  # further answers may be under way
                        raise
            except ChannelLostError:
                self._check(reads=True)
                interrupts.wait(self._returns.wait, returns, again_ns(attempts) / 1e9)
                attempts += 1

    def _copy_parts(
        self, channel: ClientChannel, op: RangeOp, key: SlabKey, offset: int, content: memoryview, done: int
    ) -> Iterator[int]:
        """Copy parts, several ahead, until all is done or another thread waits; yield the place behind each part."""
        while self._closing:
            self._send(channel, memoryview(RangeRequest(RangeOp.CLOSE, self._closing.popleft(), 0, 0).pack()))
            self._take_answer(channel, memoryview(b""))
        asked: deque[memoryview] = deque()
        ahead = done
        while True:
            while ahead < len(content) and len(asked) < AHEAD and not (asked and self._turns.wanted):
                part = content[ahead : ahead + MAX_RANGE]
                self._send(channel, memoryview(RangeRequest(op, key, offset + ahead, len(part)).pack()))
                if op is RangeOp.WRITE:
                    self._send(channel, part)
                asked.append(part)
                ahead += len(part)
            if not asked:
                return
            part = asked.popleft()
            self._take_answer(channel, part if op is RangeOp.READ else part[:0])
            done += len(part)
            yield done
            if not asked and self._turns.wanted:
                return

    def _open(self) -> ClientChannel:
        self._check(reads=False)
        try:
            self._channel = self._opens()
        except OSError as error:
            raise ChannelLostError(str(error)) from error
        return self._channel

    def _take_answer(self, channel: ClientChannel, room: memoryview) -> None:
        """Read the answer to the oldest request, which reads into `room`."""
        head = bytearray(ANSWER.size)
        self._read_into(channel, memoryview(head))
        answer = unpack_answer(memoryview(head), len(room))
        if answer.refused:
            info = bytearray(answer.nbytes)
            self._read_into(channel, memoryview(info))
            raise _REFUSAL.decode(info).error()
        self._read_into(channel, room)

    def _send(self, channel: ClientChannel, data: memoryview) -> None:
        while data := data[channel.send(data) :]:
            self._take(channel, sends=True)

    def _read_into(self, channel: ClientChannel, room: memoryview) -> None:
        while room:
            if not self._came:
                self._take(channel)
                continue
            first = self._came.popleft()
            count = min(len(room), len(first))
            room[:count] = first[:count]
            room = room[count:]
            if count < len(first):
                self._came.appendleft(first[count:])

    def _take(self, channel: ClientChannel, *, sends: bool = False) -> None:
        """Take in what has come; wait if nothing has, and no room to send either if that is wanted.

        Raises:
            ChannelLostError: The channel has ended, or has not come about in time.
            AtomrError: The relay refuses the channel, or the session has ended.
        """
        payload = channel.receive()
        if payload is not None:
            self._came.append(payload)
        elif channel.ended:
            if channel.error is not None and not isinstance(channel.error, errors.SessionLost):
                raise errors.unraised(channel.error)
            raise ChannelLostError(str(channel.error or "the connection to the pool's relay has ended"))
        elif sends and channel.has_room:
            return  # what has just come has made it, and nothing else tells of that
        elif channel.opened is None and time.monotonic_ns() > channel.asked_ns + ATTEMPT_NS:
            raise ChannelLostError("the pool's relay does not answer")
        else:
            poll = select.poll()
            poll.register(channel.fileno(), select.POLLIN)
            interrupts.wait(poll.poll, WAIT_MS)
            self._check(reads=False)

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        self._came.clear()
        if channel is not None:
            channel.close()


class ChannelLostError(Exception):
    """The channel has ended in the middle of a request, which may be repeated."""


class FairTurns:
    """Lets threads in one at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: Final[deque[threading.Lock]] = deque()

    @property
    def wanted(self) -> bool:
        """Whether another thread waits for its turn."""
        return bool(self._waiting)

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Wait for this thread's turn, and hold it."""
        turn = threading.Lock()
        turn.acquire()
        with self._lock:
            waits = self._taken
            if waits:
                self._waiting.append(turn)
            self._taken = True
        if waits:
            turn.acquire()
        try:
            yield
        finally:
            with self._lock:
                if self._waiting:
                    self._waiting.popleft().release()
                else:
                    self._taken = False


_REFUSAL: Final[msgspec.msgpack.Decoder[Any]] = decoder(ErrorInfo)
