"""A session's connection to a supervisor behind the relay. Thread-safe, as `PoolSession` reads and sends at once."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import session
from atomr_mp.protocol.own_time import Patience
from atomr_mp.protocol.tunnel.clock import PoolClock
from atomr_mp.protocol.tunnel.session_story import SessionStory
from atomr_mp.tunnel.channel import ClientChannel
from atomr_mp.tunnel.forks import drop_in_child
from atomr_mp.tunnel.returns import RelayReturns

CONNECT_S: Final = 10.0
"""How long the relay may take to answer."""

LOOK_S: Final = 0.2
"""How often it is asked, meanwhile, whether the key was refused."""


class CarriedSession:
    """A session's connection, with the face of a local one. It outlives its relay.

    Args:
        opens: Opens a channel of the session; raises `OSError` or `AtomrError` if that cannot be.
        endpoint: Where the relay is, for texts.
        clock: The pool's clock, as all these channels measure it.
        connect_s: How long it may take to answer.

    Raises:
        PoolUnreachable: No relay answers, or it has another key.
        NotAuthorized: It does not admit our key.
        AtomrError: Why it refuses the session.
        OSError: No descriptor is left.
    """

    def __init__(
        self, opens: Callable[[], ClientChannel], endpoint: str, clock: PoolClock, connect_s: float = CONNECT_S
    ) -> None:
        self._opens = opens
        self.supervisor_pid: Final = 0  # of another machine
        self._lock = threading.Lock()
        """Held to use the channel, never while waiting."""
        self._story: Final = SessionStory()
        self._ready: Final[deque[session.FromSupervisor]] = deque()
        self._epoll: Final = select.epoll()
        """Speaks when the channel does, whichever there is."""
        self.fileno: Final = self._epoll.fileno
        self._fault: errors.AtomrError | None = None
        """Why no further channel could be opened."""
        self.returns: Final = RelayReturns()
        """Tells when it goes on at another relay."""
        self._closed = False
        self._given_up = False
        """The pool is taken for lost."""
        self.clock: Final = clock
        """What is known of the pool's CLOCK_MONOTONIC: it is measured as long as the session lasts."""
        try:
            self._begin(opens())
            self._wait_opened(endpoint, connect_s)
        except BaseException:
            self.close()
            raise
        drop_in_child(self)

    def _begin(self, channel: ClientChannel) -> None:
        """Use a channel from here on."""
        self._channel = channel
        self._framing = session.Framing()
        self._unsent: deque[memoryview] = deque()
        """What the window has no room for."""
        self._said_bytes = 0
        """Bytes of the channel with what is unsent."""
        self._epoll.register(channel.fileno(), select.EPOLLIN)

    def send(self, message: session.FromClient, descriptor: int | None = None) -> None:  # noqa: ARG002 - the relay has its own
        """Send a message; blocks only while the supervisor does not read. One thread at a time.

        Without a relay that knows the session, it is sent once there is one.

        Raises:
            PoolLost: The session has ended; the message was not taken.
        """
        with self._lock:
            if self._is_over:
                raise self._loss().again(maybe_executed=False)
            if self._story.away:
                self._story.say(message, None, 0)
                return
            self._say(message)
        while True:
            with self._lock:
                self._fill()  # what comes may make room, and nothing else tells of that
                if self._ready or self._channel.ended:
                    self._channel.signal()  # for whoever reads
                if not self._unsent or self._is_over:
                    return
            self._wait(LOOK_S)

    def keep(self, now_ns: int, paused_ns: int = 0) -> None:
        """See to its channel, and to another one after its relay's end, however little it is used. Thread-safe.

        Args:
            now_ns: CLOCK_MONOTONIC.
            paused_ns: How long this process has not run before.
        """
        with self._lock:
            channel = self._channel
        channel.keep(now_ns, paused_ns)
        with self._lock, contextlib.suppress(errors.ProtocolError):  # whoever reads finds it
            if self._channel.over or self._story.away:
                self._fill()
                if self._ready or self._is_over:
                    self._channel.signal()

    @property
    def connected(self) -> bool:
        """Whether its channel is open, and not cut as far as is known."""
        return self._channel.connected and not self._story.away

    def lose(self, lost: errors.PoolLost) -> None:
        """Take the pool for lost: whoever reads gets this error. Thread-safe."""
        with self._lock:
            self._fault, self._given_up = lost, True
            self._channel.signal()

    @property
    def ended(self) -> bool:
        """Whether it needs no further keeping."""
        return self._closed or self._is_over

    @property
    def due_ns(self) -> int | None:
        """When `keep` is to be called; None for no particular time."""
        return self._channel.due_ns

    @property
    def awaited(self) -> int | None:
        """The descriptor that speaks when `keep` is to be called, while a connection comes about."""
        return self.fileno() if self._story.away else self._channel.awaited

    @property
    def grace_s(self) -> float:
        """How long the relay keeps channels without a connection."""
        opened = self._channel.opened
        return 0.0 if opened is None else opened.grace_s

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
                if self._is_over:
                    raise self._loss()
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
            if not messages and self._is_over:
                raise self._loss()
        return messages

    def take_descriptor(self, _request_id: int) -> None:
        """Return None: the relay keeps descriptors."""

    def take_offered(self, _offered: session.SlabOffered) -> None:
        """Return None: the relay keeps descriptors."""

    def close(self) -> None:
        """Close; may be called twice."""
        if self._closed:  # in a forked child, a thread of the parent may hold the lock
            return
        with self._lock:
            self._closed = True
            if hasattr(self, "_channel"):
                self._channel.close()
            self._epoll.close()

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child."""
        self._closed = True
        self._epoll.close()

    def hang_up(self) -> None:
        """Close it, for a client whose memory is no longer mapped."""
        self.close()

    def _wait_opened(self, endpoint: str, connect_s: float) -> None:
        """Wait for the relay's word."""
        patience = Patience(connect_s, time.monotonic)
        while self._unopened():
            channel = self._channel
            if channel.refused:
                raise errors.NotAuthorized("the pool does not admit this key: `atomr-mp keys admit` it there")
            if channel.ended:
                raise channel.error or errors.PoolUnreachable(f"the relay at {endpoint} has ended the connection")
            if not patience.left_s:
                raise errors.PoolUnreachable(
                    f"no relay answers at {endpoint} within {connect_s:g} s: check that the pool listens there "
                    "(`listen`), that no firewall is between, and that the key file has this server's key"
                )
            channel.keep(time.monotonic_ns())
            self._wait(LOOK_S)

    def _unopened(self) -> bool:
        with self._lock:
            self._fill()
        return self._channel.opened is None

    def _wait(self, timeout_s: float | None) -> None:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        poll.poll(None if timeout_s is None else timeout_s * 1000)

    @property
    def _is_over(self) -> bool:
        """Whether the session has ended, and everything was received."""
        return self._closed or self._given_up or (self._channel.ended and not self._returns)

    @property
    def _returns(self) -> bool:
        """Whether another channel takes the place of one that has ended: its relay has gone, and the pool has not."""
        return self._channel.unknown and self._fault is None and not self._closed

    def _say(self, message: session.FromClient) -> None:
        """Send a message, as far as the window has room for it. With the lock held."""
        data = session.frame(session.FROM_CLIENT.encode(message))
        self._said_bytes += len(data)
        self._story.say(message, self._said_bytes, self._channel.passed_on)
        self._unsent.append(memoryview(data))
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            data = self._unsent.popleft()
            rest = data[self._channel.send(data) :]
            if rest:
                self._unsent.appendleft(rest)
                return

    def _fill(self) -> None:
        """Take in all that has come, and send what waits. With the lock held.

        Raises:
            ProtocolError: The bytes are not a message.
        """
        while True:
            while (payload := self._channel.receive()) is not None:
                for framed in self._framing.feed(bytes(payload)):
                    self._take(session.FROM_SUPERVISOR.decode(framed))
            self._flush()
            if not (self._channel.ended and self._returns):
                return
            self._return()

    def _take(self, message: session.FromSupervisor) -> None:
        away = self._story.away
        self._ready.extend(self._story.hear(self._by_our_clock(message)))
        if away and not self._story.away:
            self.returns.back()
            for each in self._story.again():
                self._say(each)

    def _return(self) -> None:
        """Go on with the session on another channel: the relay of this one has ended."""
        hello = self._story.cut(self._channel.passed_on)
        try:
            channel = self._opens()
        except (errors.AtomrError, OSError) as error:
            self._fault = errors.SessionLost(f"the pool's relay has ended, and no other is reached: {error}")
            return
        former = self._channel
        self._epoll.unregister(former.fileno())
        self._begin(channel)
        former.close()
        if hello is not None:
            data = session.frame(session.FROM_CLIENT.encode(hello))
            self._said_bytes += len(data)
            self._unsent.append(memoryview(data))
            self._flush()

    def _by_our_clock(self, message: session.FromSupervisor) -> session.FromSupervisor:
        """Return a message with its times as this process's; what is known only since then is known a little less."""
        match message:
            case session.IncarnationStopped(ended, sends):
                return session.IncarnationStopped(self._ended_by_our_clock(ended), sends)
            case session.IncarnationEnded():
                return self._ended_by_our_clock(message)
        return message

    def _ended_by_our_clock(self, ended: session.IncarnationEnded) -> session.IncarnationEnded:
        since_ns = max(0, self.clock.latest(ended.known_since_ns, time.monotonic_ns()))
        return msgspec.structs.replace(ended, known_since_ns=since_ns)

    def _loss(self) -> errors.PoolLost:
        """Return why the session has ended. Without a word of the relay's, the pool may live."""
        error = self._fault or self._channel.error
        if isinstance(error, errors.PoolLost):
            return error
        return errors.SessionLost("the connection to the pool's relay has ended" if error is None else error.message)
