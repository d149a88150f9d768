"""What all channels share at the relay's end: packets, windows, beginning and end."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages.tunnel import (
    CONTROL,
    ChannelEnded,
    ChannelKind,
    ChannelOpened,
    ChannelResumed,
    Control,
    LaneStops,
    Ping,
    Pong,
)
from atomr_mp.protocol.tunnel.flow import WINDOWS, IncomingFlow, outgoing_of
from atomr_mp.protocol.tunnel.packets import PacketKind, pack, pack_control, unpack
from atomr_mp.protocol.values import Buffer

_LOG: Final = logging.getLogger("atomr_mp.relay")


SILENT_S: Final = 10.0
"""A session counts as away whose client has said nothing for so long."""

Send = Callable[[bytes, bytes], bool]
"""Sends a packet to a connection; False if that has ended."""


class RelayChannel(ABC):
    """One channel. It ends once: by its client, by what is behind it, or after it was cut for too long.

    Args:
        kind: What it carries.
        route: Its connection.
        send: Sends a packet.
        ended: Called with this when it has ended.
    """

    def __init__(self, kind: ChannelKind, route: bytes, send: Send, ended: Callable[[Any], object]) -> None:
        self.kind: Final = kind
        self.route = route
        """Its latest connection, from which packets may still come after its end."""
        self.connected = True
        """Whether that lives, as far as is known."""
        self.name = b""
        """The name by which its client can take it up again; empty for a channel of memory."""
        self._send = send
        self._tell_end = ended
        self._window = WINDOWS[kind]
        self._incoming: Final = IncomingFlow(self._window)
        self._outgoing: Final = outgoing_of(kind)
        self.over = False
        """Whether it has ended here."""
        self.kept = False
        """Whether it is over, and its client has not said that it has everything."""
        self._end: ChannelEnded | None = None
        """What is said behind all that was sent."""
        self._news = True
        """Whether its client has sent something, or was cut, since the last look."""
        self._news_at = 0.0
        """When a look has found that last, by the relay's own time."""

    @property
    def ending(self) -> ChannelEnded | None:
        """What its client is to hear of its end; None if it has not ended, or its client knows."""
        return self._end

    @property
    def kept_bytes(self) -> int:
        """Bytes that were sent and are not acknowledged."""
        return self._outgoing.sent - self._outgoing.acknowledged

    def away_s(self, own_s: float) -> float:
        """Look whether there is news; return for how long the client has been away, 0 if it is here.

        Args:
            own_s: The relay's own time.
        """
        if self._news:
            self._news, self._news_at = False, own_s
        if not self.connected:
            return own_s - self._news_at
        # That of a process that stands still lives. A session's asks for the time every two seconds.
        return max(0.0, own_s - self._news_at - SILENT_S) if self.kind is ChannelKind.SESSION else 0.0

    def limit(self, window: int) -> None:
        """Set how many bytes may be under way in each direction, before it is open."""
        self._window = window
        self._incoming.resize(window)
        self._outgoing.resize(window)

    def open(self, grace_s: float) -> None:
        """Confirm the channel, once it is known to the relay."""
        opened = ChannelOpened(time.monotonic_ns(), grace_s, self._incoming.received, self._window)
        self._send_packet(pack_control(opened, self._incoming.tell()))

    def reopen(self, route: bytes, grace_s: float) -> None:
        """Go on with a client that asks once more to open it: it has not heard that it is open."""
        self.route, self.connected, self._news = route, True, True
        if self._outgoing.acknowledged:
            self.break_off(errors.ProtocolError("a channel that is open was opened again"))
            return
        self.open(grace_s)
        self._send_again(0)

    def resume(self, route: bytes, acknowledged: int, received: int) -> None:
        """Go on on another connection.

        Args:
            route: The connection.
            acknowledged: Bytes that the client has passed on.
            received: Bytes that have come to it.
        """
        self.route, self.connected, self._news = route, True, True
        try:
            self._outgoing.acknowledge(acknowledged)
            self._outgoing.after(received)
        except errors.ProtocolError as error:
            self.break_off(error)
            return
        resumed = ChannelResumed(self._incoming.received, time.monotonic_ns())
        self._send_packet(pack_control(resumed, self._incoming.tell()))
        self._send_again(received)
        if not self.over:
            self._has_room()

    def take(self, packet: Buffer) -> None:
        """Take a packet in. A packet that breaks the rules ends the channel."""
        self._news = True
        try:
            kind, acknowledged, payload = unpack(packet)
            outgoing, incoming = self._outgoing, self._incoming
            if acknowledged != outgoing.acknowledged:
                outgoing.acknowledge(acknowledged)
                if not self.over:
                    self._has_room()
            if kind is PacketKind.CONTROL:
                self._take_control(CONTROL.decode(payload))
            elif payload and not self.over:
                incoming.receive(len(payload))
                self._receive(payload)
                self._acknowledge()
        except errors.AtomrError as error:
            self.break_off(error)
        except Exception as error:  # noqa: BLE001 - a packet that we are not up to ends its channel, and no other
            _LOG.exception("a packet of a remote client")
            self.break_off(errors.ProtocolError(f"the relay failed: {error!r}"))

    def _take_control(self, message: Control) -> None:
        match message:
            case Ping(sent_ns):
                self._send_packet(pack_control(Pong(sent_ns, time.monotonic_ns()), self._incoming.tell()))
            case ChannelEnded():
                self.kept = False
                self.end(None, tell=False)
            case LaneStops() if not self.over:
                self._stop()
            case LaneStops():
                pass  # the end is on its way
            case _:
                raise errors.ProtocolError("a channel that is open was opened again")

    def probe(self) -> None:
        """Find out whether its connection lives: libzmq tells only at a send."""
        self._send_packet(pack(b"", self._incoming.tell()))

    def end(self, error: errors.AtomrError | None = None, *, tell: bool = True, keep: bool = True) -> None:
        """End it; its client hears of it behind all that was sent, if need be once it is back. May be called twice.

        Args:
            error: The reason.
            tell: Whether the client is to hear of it.
            keep: Whether it is to hear of it also if it is not connected now.
        """
        if self.over:
            return
        self.over = True
        if tell:
            self._end = ChannelEnded(None if error is None else ErrorInfo.of(error))
            self.kept = keep and self.kind is not ChannelKind.MEMORY
            self._send_packet(pack_control(self._end, self._incoming.tell()))
        self._close()
        self._tell_end(self)

    def break_off(self, error: errors.AtomrError) -> None:
        """End it since its client breaks the rules; nothing is kept for that."""
        self.end(error, keep=False)
        self.kept = False

    def cut(self) -> None:
        """Take in that its connection has ended. What the client has not received is kept; more is not read."""
        if not self.connected:
            return
        self.connected, self._news = False, True
        if self.kind is ChannelKind.MEMORY:
            self.end(None, tell=False)

    def _say(self, payload: Buffer) -> None:
        """Send bytes for which the window has room."""
        self._outgoing.add(payload)
        if self.connected:
            self._send_packet(pack(payload, self._incoming.tell()))

    def _passed_on(self, nbytes: int) -> None:
        self._incoming.pass_on(nbytes)

    def _acknowledge(self) -> None:
        """Acknowledge, where that is due and nothing is about to be sent."""
        if self._incoming.owes and not self.over and self.connected:
            self._send_packet(pack(b"", self._incoming.tell()))

    def _send_packet(self, packet: bytes) -> None:
        """Send a packet, if it is not cut. Payloads are kept, and sent again."""
        if self.connected and not self._send(self.route, packet):
            self.cut()

    def _send_again(self, received: int) -> None:
        """Send what the client has not received."""
        for part in self._outgoing.after(received):
            self._send_packet(pack(part, self._incoming.tell()))
        if self._end is not None:
            self._send_packet(pack_control(self._end, self._incoming.tell()))
        self._acknowledge()

    @abstractmethod
    def _receive(self, payload: memoryview) -> None:
        """Take bytes of the stream in; they are not to be kept as they are, but may be copied.

        Raises:
            AtomrError: They end the channel.
        """

    def _stop(self) -> None:
        """Have the worker send no more.

        Raises:
            ProtocolError: Only a lane can be left.
        """
        raise errors.ProtocolError(f"a {self.kind} channel is left as a lane is")

    @abstractmethod
    def _has_room(self) -> None:
        """Take in that the window may have room."""

    @abstractmethod
    def _close(self) -> None:
        """Close what is behind it."""
