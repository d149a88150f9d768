"""Copies ranges of memory on the pool's machine to this process and back. Thread-safe; blocks.

A transfer goes in parts, between which the transfers of other threads have their turn. If the channel ends in the
middle, another is opened, and the part is repeated: what was copied twice is as if copied once.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.tunnel.ranges import ANSWER, MAX_RANGE, RangeOp, RangeRequest, SlabKey, unpack_answer
from atomr_mp.tunnel.channel import ClientChannel

ATTEMPTS: Final = 3
"""How often a part is tried, each time on another channel."""

WAIT_MS: Final = 1000
"""How long to wait at a time for the relay."""


class MemoryCopier:
    """The ranges that a client copies.

    Args:
        opens: Opens a channel.
        check: Raises the error of a session that has ended.
    """

    def __init__(self, opens: Callable[[], ClientChannel], check: Callable[[], None]) -> None:
        self._opens = opens
        self._check = check
        self._turns: Final = FairTurns()
        self._channel: ClientChannel | None = None
        self._rest = memoryview(b"")
        """Bytes that have come and are still to be read."""
        self._closing: Final[deque[SlabKey]] = deque()
        """Slabs to unmap, with the next request; finalisers append to it."""

    @interrupts.defer_interrupts
    def write(self, key: SlabKey, offset: int, content: memoryview) -> None:
        """Copy bytes to a slab; they are there when this returns.

        Raises:
            AtomrError: The relay refuses it, or the session has ended.
        """
        for at in range(0, len(content), MAX_RANGE):
            part = content[at : at + MAX_RANGE]
            self._transfer(RangeRequest(RangeOp.WRITE, key, offset + at, len(part)), part)

    @interrupts.defer_interrupts
    def read(self, key: SlabKey, offset: int, room: memoryview) -> None:
        """Copy bytes from a slab.

        Raises:
            AtomrError: The relay refuses it, or the session has ended.
        """
        for at in range(0, len(room), MAX_RANGE):
            part = room[at : at + MAX_RANGE]
            self._transfer(RangeRequest(RangeOp.READ, key, offset + at, len(part)), part)

    def close_slab(self, key: SlabKey) -> None:
        """Have the relay unmap a slab with the next request. Neither waits nor takes a lock."""
        self._closing.append(key)

    def close(self) -> None:
        """Close the channel; a transfer under way ends first."""
        with self._turns.mine():
            self._drop()

    def _transfer(self, request: RangeRequest, content: memoryview) -> None:
        with self._turns.mine():
            for attempt in range(ATTEMPTS):
                try:
                    self._try(request, content)
                except ChannelLostError as lost:
                    self._drop()
                    self._check()
                    if attempt == ATTEMPTS - 1:
                        raise errors.PoolLost(f"memory cannot be copied: {lost}", maybe_executed=False) from lost
                except errors.AtomrError:
                    raise
                except BaseException:
                    self._drop()  # the answer may be under way
                    raise
                else:
                    return

    def _try(self, request: RangeRequest, content: memoryview) -> None:
        if self._channel is None:
            self._check()
            try:
                self._channel = self._opens()
            except OSError as error:
                raise ChannelLostError(str(error)) from error
        while self._closing:
            self._ask(RangeRequest(RangeOp.CLOSE, self._closing.popleft(), 0, 0), memoryview(b""))
        self._ask(request, content)

    def _ask(self, request: RangeRequest, content: memoryview) -> None:
        self._send(memoryview(request.pack()))
        if request.brings:
            self._send(content)
        head = bytearray(ANSWER.size)
        self._read_into(memoryview(head))
        wanted = request.nbytes if request.op is RangeOp.READ else 0
        answer = unpack_answer(memoryview(head), wanted)
        if answer.refused:
            info = bytearray(answer.nbytes)
            self._read_into(memoryview(info))
            raise _REFUSAL.decode(info).error()
        if wanted:
            self._read_into(content)

    def _send(self, data: memoryview) -> None:
        channel = self._channel
        assert channel is not None
        while data := data[channel.send(data) :]:
            self._take(channel)

    def _read_into(self, room: memoryview) -> None:
        channel = self._channel
        assert channel is not None
        while room:
            if not self._rest:
                self._take(channel)
                continue
            count = min(len(room), len(self._rest))
            room[:count] = self._rest[:count]
            room, self._rest = room[count:], self._rest[count:]

    def _take(self, channel: ClientChannel) -> None:
        """Take in what has come; wait if nothing has.

        Raises:
            ChannelLostError: The channel has ended.
        """
        payload = None if self._rest else channel.receive()
        if payload is not None:
            self._rest = payload
        elif channel.ended:
            raise ChannelLostError(str(channel.error or "the connection to the pool's relay has ended"))
        else:
            poll = select.poll()
            poll.register(channel.fileno(), select.POLLIN)
            interrupts.wait(poll.poll, WAIT_MS)
            self._check()

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        self._rest = memoryview(b"")
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


_REFUSAL: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(ErrorInfo)
