"""What all channels share at the relay's end: packets, windows, beginning and end."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages.tunnel import CONTROL, ChannelEnded, ChannelKind, ChannelOpened
from atomr_mp.protocol.tunnel.flow import WINDOWS, IncomingFlow, outgoing_of
from atomr_mp.protocol.tunnel.packets import PacketKind, pack, pack_control, unpack
from atomr_mp.protocol.values import Buffer

_LOG: Final = logging.getLogger("atomr_mp.relay")


class RelayChannel(ABC):
    """One channel. It ends once, by its client, by what is behind it, or because its connection has ended.

    Args:
        kind: What it carries.
        send: Sends a packet; False if the connection has ended.
        ended: Called with this when it has ended.
    """

    def __init__(self, kind: ChannelKind, send: Callable[[bytes], bool], ended: Callable[[Any], object]) -> None:
        self.kind: Final = kind
        self._send = send
        self._tell_end = ended
        self._incoming: Final = IncomingFlow(WINDOWS[kind])
        self._outgoing: Final = outgoing_of(kind)
        self.over = False

    @property
    def kept_bytes(self) -> int:
        """Bytes that were sent and are not acknowledged."""
        return self._outgoing.sent - self._outgoing.acknowledged

    def open(self) -> None:
        """Confirm the channel, once it is known to the relay."""
        self._send_packet(pack_control(ChannelOpened(time.monotonic_ns()), 0))

    def take(self, packet: Buffer) -> None:
        """Take a packet in. A packet that breaks the rules ends the channel."""
        try:
            kind, acknowledged, payload = unpack(packet)
            outgoing, incoming = self._outgoing, self._incoming
            if acknowledged != outgoing.acknowledged:
                outgoing.acknowledge(acknowledged)
                self._has_room()
            if kind is PacketKind.CONTROL:
                if not isinstance(CONTROL.decode(payload), ChannelEnded):
                    raise errors.ProtocolError("a channel that is open was opened again")
                self.end(None, tell=False)
            elif payload and not self.over:
                incoming.receive(len(payload))
                self._receive(payload)
                self._acknowledge()
        except errors.AtomrError as error:
            self.end(error)
        except Exception as error:  # noqa: BLE001 - a packet that we are not up to ends its channel, and no other
            _LOG.exception("a packet of a remote client")
            self.end(errors.ProtocolError(f"the relay failed: {error!r}"))

    def probe(self) -> None:
        """Find out whether its connection lives: libzmq tells only at a send."""
        if not self.over:
            self._send_packet(pack(b"", self._incoming.tell()))

    def end(self, error: errors.AtomrError | None = None, *, tell: bool = True) -> None:
        """End it; its client hears of it behind all that was sent. May be called twice."""
        if self.over:
            return
        self.over = True
        if tell:
            info = None if error is None else ErrorInfo.of(error)
            self._send(pack_control(ChannelEnded(info), self._incoming.tell()))
        self._close()
        self._tell_end(self)

    def _say(self, payload: Buffer) -> None:
        """Send bytes for which the window has room."""
        packet = pack(payload, self._incoming.tell())
        self._outgoing.add(payload)
        self._send_packet(packet)

    def _passed_on(self, nbytes: int) -> None:
        self._incoming.pass_on(nbytes)

    def _acknowledge(self) -> None:
        """Acknowledge, where that is due and nothing is about to be sent."""
        if self._incoming.owes and not self.over:
            self._send_packet(pack(b"", self._incoming.tell()))

    def _send_packet(self, packet: bytes) -> None:
        if not self._send(packet):
            self.end(None, tell=False)

    @abstractmethod
    def _receive(self, payload: memoryview) -> None:
        """Take bytes of the stream in; they are not to be kept as they are, but may be copied.

        Raises:
            AtomrError: They end the channel.
        """

    @abstractmethod
    def _has_room(self) -> None:
        """Take in that the window may have room."""

    @abstractmethod
    def _close(self) -> None:
        """Close what is behind it."""
