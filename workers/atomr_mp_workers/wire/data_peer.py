"""A connection at the worker's end of the data channel, as far as it differs from a client's. Only translates."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from typing import Final

from atomr_mp.protocol.zmtp import stream
from atomr_mp.wire.connection import Connection
from atomr_mp.wire.courier import Courier


class DataPeer(Connection):
    """One connection; never blocks, except where a method says so.

    The loop uses it without a lock, except to change queued bytes, which the courier's thread sends.

    Args:
        connected: The connection; owned from here on.
        router: Its protocol state.
        poll: The loop's poll object.
        courier: Sends bytes that the peer has no room for yet.
    """

    def __init__(
        self,
        connected: socket.socket,
        router: stream.Router,
        poll: select.epoll,
        courier: Courier,
    ) -> None:
        lock = self._lock = threading.Lock()
        super().__init__(connected, router, lambda peer: courier.pending(peer, lock, peer.resume), lock)
        self._poll = poll
        self._courier = courier
        self._dropped = False
        self._paused = False
        self._moved_s = 0.0
        """When bytes that had waited were taken last, CLOCK_MONOTONIC."""
        self.descriptor: Final = connected.fileno()
        self.messages: Final[deque[memoryview]] = router.messages
        """Messages that have come."""
        poll.register(self.descriptor, select.EPOLLIN)
        self._put(router.opening)

    @property
    def gone(self) -> bool:
        """Whether the peer has closed, or has to be closed."""
        return self.ended or self.broken or self._dropped

    def drop(self) -> None:
        """Mark it to be closed, and do nothing more for it."""
        self._dropped = True

    @property
    def routing_id(self) -> bytes:
        """Its routing id, once it is `ready`."""
        identity: bytes = self._stream.identity
        return identity

    def hung_up(self) -> bool:
        """Whether the other end is closed; its last bytes may still be unread."""
        poll = select.poll()
        poll.register(self.descriptor, 0)
        return bool(poll.poll(0))  # with no events asked for, poll tells of an end only

    def listen(self, *, to_messages: bool) -> None:
        """Have the loop hear of messages, or of the end only."""
        self._poll.modify(self.descriptor, select.EPOLLIN if to_messages else 0)

    def receive(self) -> None:
        """Receive some of the waiting bytes: messages, or a step of the login, which is answered.

        Raises:
            ProtocolError: The bytes are not ZMTP, or not a client's.
        """
        self._fill()
        if self._stream.refused:
            self.drop()

    def advance(self) -> None:
        """Write queued bytes until the socket is full. With `keeping` held."""
        before = self.unsent_bytes
        super().advance()
        if self.unsent_bytes != before:
            self._moved_s = time.monotonic()

    def pause(self) -> float:
        """Receive no messages until all queued bytes have left; return the seconds since some left last.

        First the kernel is given what it takes: this process may have been stopped, and not the client.
        """
        with self._lock:
            self.advance()
            now_s = time.monotonic()
            if not self._unsent:  # they have just left
                return 0.0
            if not self._paused:
                self._paused = True
                self._moved_s = now_s
                self._poll.modify(self.descriptor, 0)
            return now_s - self._moved_s

    def resume(self) -> None:
        """Receive messages again, if this was paused. Called by the courier's thread."""
        with self._lock:
            if self._paused and not self.ended:
                self._paused = False
                self._poll.modify(self.descriptor, select.EPOLLIN)

    def flush(self, until_s: float) -> None:
        """Wait until all queued bytes are sent, at most until a time, CLOCK_MONOTONIC."""
        while True:
            with self._lock:
                self.advance()
                if not self._unsent or self.gone:
                    return
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            self._writable.poll(left_s * 1000)

    def close(self) -> None:
        """Close."""
        with self._lock:
            self._courier.forget(self)
            self._unsent.clear()
            self._paused = False
        self._poll.unregister(self.descriptor)
        super().close()
