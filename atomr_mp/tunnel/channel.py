"""A channel at the client's end: a byte stream in packets, which outlives its connections. Never blocks.

Whoever uses it finds out that its connection has ended. The `keeper` makes the next one, and sees to it that the
channel goes on even if nobody receives just now.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.codec import VERSION
from atomr_mp.protocol.messages.tunnel import (
    CONTROL,
    ChannelEnded,
    ChannelKind,
    ChannelOpened,
    ChannelResumed,
    Control,
    LaneStops,
    OpenChannel,
    Ping,
    Pong,
    ResumeChannel,
)
from atomr_mp.protocol.tunnel.channel_life import (
    ATTEMPT_NS,
    ATTEMPTS,
    AWAY,
    TALKING,
    ChannelEvent,
    ChannelState,
    again_ns,
    step,
)
from atomr_mp.protocol.tunnel.clock import PoolClock
from atomr_mp.protocol.tunnel.flow import SMALL_WINDOW, WINDOWS, IncomingFlow, outgoing_of
from atomr_mp.protocol.tunnel.packets import HEAD, MAX_PACKET, PacketKind, pack, pack_control, pack_into, unpack
from atomr_mp.protocol.values import Buffer
from atomr_mp.tunnel.bell import Bell, Bells
from atomr_mp.tunnel.forks import drop_in_child
from atomr_mp.tunnel.wire import Wire

PING_NS: Final = 2_000_000_000
"""How often a session's channel asks what the pool's clock shows."""

GRACE_S: Final = 30.0
"""How long a channel that was never opened is tried."""


class ChannelCalls(NamedTuple):
    """What a channel asks of the rest."""

    dial: Callable[[Bells], Wire]
    """Begins a connection that rings the bells; raises `OSError` or `AtomrError` if there is none to be had."""
    cut: Callable[[ClientChannel], object] | None = None
    """Called once the connection has ended, to have `keep` called. Without it, the channel ends with its connection."""


class ClientChannel:
    """One byte stream to something behind the relay. For one thread at a time, but for `keep`.

    Args:
        opens: What it is.
        calls: What makes its connections.
        grace_s: How long it is tried to open it.
        clock: What is known of the pool's clock by channels before this one.

    Raises:
        OSError: No descriptor is left.
        ConfigurationError: The endpoint cannot be connected to.
    """

    when_over: Callable[[], object] | None = None
    """Called, on the keeper's thread and without the lock, once `keep` has found that it has ended."""

    def __init__(
        self, opens: OpenChannel, calls: ChannelCalls, grace_s: float = GRACE_S, clock: PoolClock | None = None
    ) -> None:
        self._opens: Final = opens
        self._calls: Final = calls
        self._lock: Final = threading.Lock()
        """Held to use the connection, and for no longer."""
        self.bells: Final = Bells()
        self._bell: Final = self.bells.first
        self.fileno: Final = self._bell.fileno
        """Readable when there is something to receive, or room to send, or the channel has ended."""
        self._outgoing: Final = outgoing_of(opens.kind)
        self._outgoing.resize(min(SMALL_WINDOW, WINDOWS[opens.kind]))  # until the relay has granted more
        self._incoming: Final = IncomingFlow(WINDOWS[opens.kind])
        self._early: Final[deque[memoryview]] = deque()
        """Payloads that have come without anybody's receiving them."""
        self.opened: ChannelOpened | None = None
        """The relay's confirmation."""
        self.clock: Final = clock or PoolClock()
        """What is known of the pool's clock."""
        self.error: errors.AtomrError | None = None
        """Why it has ended, if the relay said so, or it was cut for too long."""
        self.unknown = False
        """It has ended since the relay does not know it."""
        self.ended = False
        """It has ended, and everything was received."""
        self.refused = False
        """The relay does not admit the key."""
        self.asked_ns = time.monotonic_ns()
        """When the relay was asked last to open it, or to take it up."""
        self._pings: Final = opens.kind is ChannelKind.SESSION
        self._pinged_ns, self._ponged = 0, True
        """When the pool's clock was asked for last, and whether that was answered."""
        self._state, self._talks = ChannelState.OPENING, True
        """The state, and whether it is one of `TALKING`."""
        self._grace_s = grace_s
        self._attempts = 0
        """Attempts to connect since it was last open."""
        self._cut_ns = 0
        """When it was cut."""
        self._due_ns = self.asked_ns + ATTEMPT_NS
        """When the next step is due: another attempt, or giving up the one under way."""
        self.forked = False
        """This process was forked from the channel's: nothing of it may be used."""
        self._room = bytearray(MAX_PACKET) if opens.kind is ChannelKind.MEMORY else None
        """Where packets are put together, if they are large: memory for each would come from the kernel."""
        try:
            self._wire: Wire | None = calls.dial(self.bells)
        except BaseException:
            self.bells.close()
            raise
        self._wire.send(pack_control(opens, 0))
        drop_in_child(self)

    def signal(self) -> None:
        """Make the descriptor readable until the next `receive` that finds nothing."""
        with self._lock:
            self._bell.ring()

    def second_bell(self) -> Bell:
        """Return a further descriptor, for whoever receives all that has come whenever it speaks."""
        with self._lock:
            return self.bells.another()

    @property
    def signalled(self) -> bool:
        """Whether a packet may have come for which no second bell speaks."""
        return self._bell.rings

    @property
    def connected(self) -> bool:
        """Whether it is open, and not cut as far as is known."""
        return self._state is ChannelState.OPEN

    @property
    def has_room(self) -> bool:
        """Whether the window has room to send."""
        return self._outgoing.room > 0

    @property
    def passed_on(self) -> int:
        """The number of sent bytes that the relay has passed on."""
        return self._outgoing.acknowledged

    @property
    def over(self) -> bool:
        """Whether it has ended; something may still be to be received."""
        return self._state is ChannelState.ENDED

    def send(self, data: Buffer) -> int:
        """Take as many bytes as the window has room for, and send them once there is a connection; return how many."""
        if self.ended:
            return len(data)
        with self._lock:
            outgoing, at = self._outgoing, 0
            while at < len(data) and (room := outgoing.room) > 0:
                part = data if at == 0 and len(data) <= room else memoryview(data)[at : at + room]
                told = self._incoming.tell() if self._talks else 0
                packet = pack(part, told) if self._room is None else pack_into(self._room, part, told)
                if self._talks and self._wire is not None:
                    self._wire.send(packet)
                outgoing.add(memoryview(packet)[HEAD.size :])  # the packet is ours, and the data may change
                at += len(part)
            return at

    def leave(self) -> bool:
        """Have nothing further sent by a worker; return whether the end comes then, behind what it has sent."""
        with self._lock:
            leaves = self._state is ChannelState.OPEN and self._wire is not None
            if leaves:
                assert self._wire is not None
                self._wire.send(pack_control(LaneStops(), self._incoming.tell()))
            return leaves

    def receive(self) -> memoryview | None:
        """Return the next bytes, None if there are none now; they count as passed on."""
        if self.ended:
            return None
        with self._lock:
            if self._early:
                payload: memoryview | None = self._early.popleft()
                self.ended = self._state is ChannelState.ENDED and not self._early
            else:
                payload = self._take()
            if payload is not None:
                incoming = self._incoming
                incoming.pass_on(len(payload))
                if incoming.owes:
                    self._acknowledge()
            return payload

    def keep(self, now_ns: int, paused_ns: int = 0) -> None:
        """Take in all that has come, and do what is due for another connection. Thread-safe.

        Args:
            now_ns: CLOCK_MONOTONIC.
            paused_ns: How long this process has not run before; that is no time in which the relay could be reached.
        """
        with self._lock:
            self._cut_ns = min(now_ns, self._cut_ns + paused_ns)
            if self._state is ChannelState.ENDED:
                return
            rang = self._bell.rings
            before = self._outgoing.acknowledged, len(self._early), self._state
            while (payload := self._take()) is not None:
                self._early.append(payload)
            if self._state in AWAY and now_ns - self._cut_ns > self._grace_s * 1e9:
                self._end(errors.SessionLost(f"the pool's relay could not be reached for {self._grace_s:g} s"))
            elif self._state in AWAY and now_ns >= self._due_ns:
                self._dial_again(now_ns)
            elif self._state in ATTEMPTS and (now_ns >= self._due_ns or (self._wire and self._wire.refused)):
                self._lose()
            elif self._pings and self._state is ChannelState.OPEN and now_ns - self._pinged_ns >= PING_NS:
                self._ping()
            if before != (self._outgoing.acknowledged, len(self._early), self._state):
                self.bells.ring()  # it was taken in here, so nothing else tells of it
            elif rang or self._early:
                self._bell.ring()
            over = self.over
        if over and self.when_over is not None:
            self.when_over()

    @property
    def due_ns(self) -> int | None:
        """When `keep` is to be called; None for no particular time."""
        return None if self._state in {ChannelState.OPEN, ChannelState.ENDED} else self._due_ns

    @property
    def awaited(self) -> int | None:
        """The descriptor that speaks when `keep` is to be called, while a connection comes about."""
        wire = self._wire
        return wire.changes if wire is not None and (self._state in ATTEMPTS or not self._ponged) else None

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child; a thread of the parent may hold the lock."""
        self.forked = self.ended = True
        self._state, self._talks = ChannelState.ENDED, False

    def close(self) -> None:
        """End it; may be called twice. While it is cut, one attempt is made to tell the relay."""
        if self.forked:
            return
        with self._lock:
            if self._state is not ChannelState.ENDED:
                self._state, self._talks, self.ended = ChannelState.ENDED, False, True
                self._say_ended()
            wire, self._wire = self._wire, None
            if wire is not None:
                wire.close()
            self.bells.close()

    # --- with the lock held ----------------------------------------------------------------------------------------

    def _take(self) -> memoryview | None:
        """Return the payload of the next packet that has one; see to the others."""
        while self._state is not ChannelState.ENDED:
            wire = self._wire
            if wire is None:
                self._bell.hush()
                return None
            packet = wire.receive()
            if packet is None:
                if wire.ended:
                    self._lose()
                    continue
                return None
            try:
                kind, acknowledged, payload = unpack(packet)
                control = CONTROL.decode(payload) if kind is PacketKind.CONTROL else None
                if acknowledged != self._outgoing.acknowledged and not isinstance(control, ChannelEnded):
                    self._outgoing.acknowledge(acknowledged)  # a relay that knows no such channel knows no number
                if control is not None:
                    self._take_control(control)
                elif payload:
                    if not self._talks:
                        raise errors.ProtocolError("the relay sends before it has taken the channel up")
                    self._incoming.receive(len(payload))
                    return payload
            except errors.ProtocolError as error:
                self._end(error)
        return None

    def _take_control(self, message: Control) -> None:
        match message:
            case ChannelOpened(window=window) if self.opened is None:
                self._outgoing.resize(window or WINDOWS[self._opens.kind])
                self._incoming.resize(window or WINDOWS[self._opens.kind])
                again = self._state is ChannelState.REOPENING
                self._go(ChannelEvent.OPENED)
                self.opened, self._grace_s = message, message.grace_s
                self.clock.measure(self.asked_ns, message.now_ns, time.monotonic_ns())
                if again:
                    self._send_again(message.received)
            case ChannelResumed():
                self._go(ChannelEvent.RESUMED)
                self.clock.measure(self.asked_ns, message.now_ns, time.monotonic_ns())
                self._send_again(message.received)
            case Pong(sent_ns, told_ns) if self._pings:
                if sent_ns == self._pinged_ns and not self._ponged:
                    self._ponged = True
                    self.clock.measure(sent_ns, told_ns, time.monotonic_ns())
            case ChannelEnded(_, unknown=True) if self.opened is None and self._opens.channel != self._opens.session:
                self._lose()  # the relay does not know its session yet, which another relay had before
            case ChannelEnded(error, unknown):
                self.unknown = unknown
                if self._wire is not None:  # the relay may forget it
                    self._wire.send(pack_control(ChannelEnded(), self._incoming.tell()))
                self._end(None if error is None else error.error())
            case _:
                raise errors.ProtocolError("the relay opens a channel")

    def _ping(self) -> None:
        assert self._wire is not None
        self._pinged_ns, self._ponged = time.monotonic_ns(), False
        self._wire.send(pack_control(Ping(self._pinged_ns), self._incoming.tell()))

    def _send_again(self, received: int) -> None:
        """Send what the relay has not received."""
        assert self._wire is not None
        self._attempts = 0
        for part in self._outgoing.after(received):
            self._wire.send(pack(part, self._incoming.tell()))
        if self._incoming.owes:
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._talks and self._wire is not None:
            self._wire.send(pack(b"", self._incoming.tell()))

    def _lose(self) -> None:
        """React to the end of the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            self.refused = self.refused or wire.refused
            wire.close(0)
        if self.refused or self._calls.cut is None:
            self._end(errors.NotAuthorized("the relay does not admit this key any more") if self.refused else None)
            return
        was_talking = self._talks
        self._go(ChannelEvent.LOST)
        now_ns = time.monotonic_ns()
        if was_talking:
            self._cut_ns = now_ns
        self._due_ns = now_ns + again_ns(self._attempts)
        self._calls.cut(self)

    def _dial_again(self, now_ns: int) -> None:
        self._attempts += 1
        try:
            self._wire = self._calls.dial(self.bells)
        except (errors.AtomrError, OSError):
            self._due_ns = now_ns + again_ns(self._attempts)
            return
        self._go(ChannelEvent.DIALLED)
        self._due_ns = now_ns + ATTEMPT_NS
        self.asked_ns, self._ponged = time.monotonic_ns(), True
        self._wire.send(self._returning())

    def _returning(self) -> bytes:
        """Return the first packet on a further connection."""
        if self.opened is None:
            return pack_control(self._opens, 0)
        resumes = ResumeChannel(VERSION, self._opens.channel, self._opens.session, self._incoming.received)
        return pack_control(resumes, self._incoming.tell())

    def _say_ended(self) -> None:
        """Tell the relay that it has ended: on its connection, or on one that only tells that."""
        ended = pack_control(ChannelEnded(), self._incoming.tell())
        if self._wire is not None:
            while self._wire.receive() is not None:
                pass
            if self._wire.ended:
                self._wire.close(0)
                self._wire = None
        if self._wire is None and self._calls.cut is not None:
            try:
                self._wire = self._calls.dial(self.bells)
            except (errors.AtomrError, OSError):
                return
            resumes = ResumeChannel(VERSION, self._opens.channel, self._opens.session, self._incoming.received)
            self._wire.send(pack_control(resumes, self._incoming.tell()))
        if self._wire is not None:
            self._wire.send(ended)

    def _go(self, event: ChannelEvent) -> None:
        self._state = step(self._state, event)
        self._talks = self._state in TALKING

    def _end(self, error: errors.AtomrError | None) -> None:
        self._go(ChannelEvent.OVER)
        self.error = error
        if self._early:  # they are still to be received
            self._bell.ring()
            return
        self.ended = True
        self.bells.ring()  # for all who poll a descriptor, from now on


def opening(kind: ChannelKind, channel: bytes, session: bytes, device: int = 0, generation: int = 0) -> OpenChannel:
    """Return the first message of a channel."""
    return OpenChannel(VERSION, channel, kind, session, device, generation)
