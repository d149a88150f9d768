"""A channel at the client's end: a byte stream in packets. For one thread at a time; never blocks."""

from __future__ import annotations

import time
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.codec import VERSION
from atomr_mp.protocol.messages.tunnel import CONTROL, ChannelEnded, ChannelKind, ChannelOpened, OpenChannel
from atomr_mp.protocol.tunnel.flow import WINDOWS, IncomingFlow, outgoing_of
from atomr_mp.protocol.tunnel.packets import MAX_PACKET, PacketKind, pack, pack_control, pack_into, unpack
from atomr_mp.protocol.values import Buffer
from atomr_mp.tunnel.wire import Wire


class ClientChannel:
    """One byte stream to something behind the relay.

    Args:
        wire: Its connection; owned from here on.
        opens: What it is.
    """

    def __init__(self, wire: Wire, opens: OpenChannel) -> None:
        self._wire = wire
        self.fileno: Final = wire.fileno
        """Readable when there is something to receive, or room to send, or the channel has ended."""
        self.second_bell: Final = wire.second_bell
        """Returns a further descriptor for what comes."""
        self.signal: Final = wire.signal
        """Makes the descriptor readable until the next `receive` that finds nothing."""
        self._outgoing: Final = outgoing_of(opens.kind)
        self._incoming: Final = IncomingFlow(WINDOWS[opens.kind])
        self.opened: ChannelOpened | None = None
        """The relay's confirmation."""
        self.opened_ns = 0
        """When that came, CLOCK_MONOTONIC."""
        self.error: errors.AtomrError | None = None
        """Why it has ended, if the relay said so."""
        self.ended = False
        """It has ended, and everything was received."""
        self.asked_ns: Final = time.monotonic_ns()
        self._room = bytearray(MAX_PACKET) if opens.kind is ChannelKind.MEMORY else None
        """Where packets are put together, if they are large: memory for each would come from the kernel."""
        wire.send(pack_control(opens, 0))

    @property
    def refused(self) -> bool:
        """Whether the relay does not admit the key."""
        return self._wire.refused

    @property
    def signalled(self) -> bool:
        """Whether a packet may have come for which no second bell speaks."""
        return self._wire.signalled

    def send(self, data: Buffer) -> int:
        """Send as many bytes as the window has room for; return how many."""
        if self.ended:
            return len(data)
        outgoing, at = self._outgoing, 0
        while at < len(data) and (room := outgoing.room) > 0:
            part = data if at == 0 and len(data) <= room else memoryview(data)[at : at + room]
            told = self._incoming.tell()
            self._wire.send(pack(part, told) if self._room is None else pack_into(self._room, part, told))
            outgoing.add(part)
            at += len(part)
        return at

    def receive(self) -> memoryview | None:
        """Return the next bytes, None if there are none now; they count as passed on."""
        while not self.ended:
            packet = self._wire.receive()
            if packet is None:
                if self._wire.ended:
                    self._end(None)
                return None
            try:
                kind, acknowledged, payload = unpack(packet)
                if acknowledged != self._outgoing.acknowledged:
                    self._outgoing.acknowledge(acknowledged)
                if kind is PacketKind.CONTROL:
                    self._take_control(payload)
                elif payload:
                    incoming = self._incoming
                    incoming.receive(len(payload))
                    incoming.pass_on(len(payload))
                    if incoming.owes:
                        self._wire.send(pack(b"", incoming.tell()))
                    return payload
            except errors.ProtocolError as error:
                self._end(error)
        return None

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the channel's."""
        return self._wire.forked

    def close(self) -> None:
        """End it; may be called twice."""
        if self.forked:
            return
        if not self.ended:
            self.ended = True
            self._wire.send(pack_control(ChannelEnded(), self._incoming.tell()))
        self._wire.close()

    def _end(self, error: errors.AtomrError | None) -> None:
        self.error, self.ended = error, True
        self._wire.signal()  # for all who poll the descriptor, from now on

    def _take_control(self, payload: memoryview) -> None:
        message = CONTROL.decode(payload)
        if isinstance(message, ChannelOpened) and self.opened is None:
            self.opened, self.opened_ns = message, time.monotonic_ns()
        elif isinstance(message, ChannelEnded):
            self._end(None if message.error is None else message.error.error())
        else:
            raise errors.ProtocolError("the relay opens a channel")


def opening(kind: ChannelKind, channel: bytes, session: bytes, device: int = 0, generation: int = 0) -> OpenChannel:
    """Return the first message of a channel."""
    return OpenChannel(VERSION, channel, kind, session, device, generation)
