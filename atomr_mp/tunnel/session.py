"""A session's connection to a supervisor behind the relay. Thread-safe, as `PoolSession` reads and sends at once."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import deque
from typing import Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import session
from atomr_mp.tunnel.channel import ClientChannel

CONNECT_S: Final = 10.0
"""How long the relay may take to answer."""

LOOK_S: Final = 0.2
"""How often it is asked, meanwhile, whether the key was refused."""


class CarriedSession:
    """A session's connection, with the face of a local one.

    Args:
        channel: The channel, just opened; owned from here on.
        endpoint: Where the relay is, for texts.
        connect_s: How long it may take to answer.

    Raises:
        PoolUnreachable: No relay answers, or it has another key.
        NotAuthorized: It does not admit our key.
        AtomrError: Why it refuses the session.
    """

    def __init__(self, channel: ClientChannel, endpoint: str, connect_s: float = CONNECT_S) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        """Held to use the channel, never while waiting."""
        self._framing: Final = session.Framing()
        self._ready: Final[deque[session.FromSupervisor]] = deque()
        self.fileno: Final = channel.fileno
        self.ahead_ns = 0
        """How far the pool's CLOCK_MONOTONIC is ahead of this process's."""
        self._error_ns = 0
        """How far that may be off."""
        try:
            self._wait_opened(endpoint, connect_s)
        except BaseException:
            channel.close()
            raise

    def send(self, message: session.FromClient, descriptor: int | None = None) -> None:  # noqa: ARG002 - the relay has its own
        """Send a message; blocks only while the supervisor does not read. One thread at a time.

        Raises:
            PoolLost: The session has ended; the message was not taken.
        """
        data = memoryview(session.frame(session.FROM_CLIENT.encode(message)))
        while True:
            with self._lock:
                if self._channel.ended:
                    raise self._lost(maybe_executed=False)
                data = data[self._channel.send(data) :]
                if not data:
                    return
                self._fill()
                if self._ready or self._channel.ended:
                    self._channel.signal()  # for whoever reads
            self._wait(LOOK_S)

    def goodbye(self) -> ErrorInfo | None:
        """Return why the supervisor has ended this session, if it said so. What it said stays to be received."""
        with self._lock, contextlib.suppress(errors.ProtocolError):
            self._fill()
        return next((message.error for message in self._ready if isinstance(message, session.Goodbye)), None)

    def receive(self, timeout_s: float | None) -> session.FromSupervisor:
        """Return the next message, waiting for it.

        Raises:
            PoolLost: The session has ended.
            TimeoutError: Nothing came in time.
            ProtocolError: The bytes are not a message.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._fill()
                if self._ready:
                    if len(self._ready) > 1:
                        self._channel.signal()
                    return self._ready.popleft()
                if self._channel.ended:
                    raise self._lost()
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self._wait(left_s)

    def receive_waiting(self) -> list[session.FromSupervisor]:
        """Return all messages that have arrived, without waiting.

        Raises:
            PoolLost: The session has ended, and all that was said has been returned before.
            ProtocolError: The bytes are not a message.
        """
        with self._lock:
            self._fill()
            messages = list(self._ready)
            self._ready.clear()
            if not messages and self._channel.ended:
                raise self._lost()
        return messages

    def take_descriptor(self, _request_id: int) -> None:
        """Return None: the relay keeps descriptors."""

    def take_offered(self, _offered: session.SlabOffered) -> None:
        """Return None: the relay keeps descriptors."""

    def close(self) -> None:
        """Close; may be called twice."""
        if self._channel.forked:  # a thread of the parent may hold the lock
            return
        with self._lock:
            self._channel.close()

    def hang_up(self) -> None:
        """Close it, for a client whose memory is no longer mapped."""
        self.close()

    def _wait_opened(self, endpoint: str, connect_s: float) -> None:
        """Wait for the relay's word, and measure by it how far the pool's clock is ahead.

        The word was sent between the question and the answer, so the middle is off by half of the way at most. Clocks
        that may be the same are taken to be.
        """
        channel, until_s = self._channel, time.monotonic() + connect_s
        while self._unopened():
            if channel.refused:
                raise errors.NotAuthorized("the pool does not admit this key: `atomr-mp keys admit` it there")
            if channel.ended:
                raise channel.error or errors.PoolUnreachable(f"the relay at {endpoint} has ended the connection")
            if time.monotonic() > until_s:
                raise errors.PoolUnreachable(
                    f"no relay answers at {endpoint} within {connect_s:g} s: check that the pool listens there "
                    "(`listen`), that no firewall is between, and that the key file has this server's key"
                )
            self._wait(LOOK_S)
        assert channel.opened is not None
        error_ns = (channel.opened_ns - channel.asked_ns) // 2 + 1
        ahead_ns = channel.opened.now_ns - (channel.opened_ns + channel.asked_ns) // 2
        if abs(ahead_ns) > error_ns:
            self.ahead_ns, self._error_ns = ahead_ns, error_ns

    def _unopened(self) -> bool:
        with self._lock:
            self._fill()
        return self._channel.opened is None

    def _wait(self, timeout_s: float | None) -> None:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        poll.poll(None if timeout_s is None else timeout_s * 1000)

    def _fill(self) -> None:
        """Take in all that has come. With the lock held.

        Raises:
            ProtocolError: The bytes are not a message.
        """
        while (payload := self._channel.receive()) is not None:
            for framed in self._framing.feed(bytes(payload)):
                message = session.FROM_SUPERVISOR.decode(framed)
                self._ready.append(self._by_our_clock(message) if self.ahead_ns else message)

    def _by_our_clock(self, message: session.FromSupervisor) -> session.FromSupervisor:
        """Return a message with its times as this process's; what is known only since then is known a little less."""
        match message:
            case session.IncarnationStopped(ended):
                return session.IncarnationStopped(self._ended_by_our_clock(ended))
            case session.IncarnationEnded():
                return self._ended_by_our_clock(message)
        return message

    def _ended_by_our_clock(self, ended: session.IncarnationEnded) -> session.IncarnationEnded:
        since_ns = max(0, ended.known_since_ns - self.ahead_ns + self._error_ns)
        return msgspec.structs.replace(ended, known_since_ns=since_ns)

    def _lost(self, *, maybe_executed: bool = True) -> errors.PoolLost:
        """Return the error of the session's end."""
        error = self._channel.error
        kind = errors.SessionLost if isinstance(error, errors.SessionLost) else errors.PoolLost
        why = "the connection to the pool's relay has ended" if error is None else error.message
        return kind(why, maybe_executed=maybe_executed)
