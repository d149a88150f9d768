"""What the ends of a channel know of each direction: how much was sent, has come, and is acknowledged. Pure.

The window bounds what a sender has sent without an acknowledgement, hence what either end ever has to keep. A receiver
acknowledges bytes once it has passed them on, with each packet, and by a packet of its own after a quarter of the
window. Packets are bounded too, since each takes room besides its bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.messages.tunnel import ChannelKind
from atomr_mp.protocol.tunnel.packets import MAX_PAYLOAD
from atomr_mp.protocol.values import Buffer

WINDOWS: Final = {
    ChannelKind.SESSION: 256 * 1024,
    ChannelKind.OPERATOR: 256 * 1024,
    ChannelKind.LANE: 2**20,
    ChannelKind.MEMORY: 4 * 2**20,
}
"""Most bytes that may be under way in each direction of a channel."""

SMALL_WINDOW: Final = 64 * 1024
"""The same, of a channel beyond its key's budget, and of any that the relay has not confirmed."""

PACKETS: Final = 1024
"""Most packets that may be unacknowledged in each direction."""

MEMORY_PAYLOAD: Final = 128 * 1024
"""Most bytes of a packet on a memory channel: libzmq encrypts it as a whole, and small packets wait meanwhile."""


class OutgoingFlow:
    """The direction in which this end sends.

    Args:
        window: Most bytes that may be unacknowledged.
        keeps: Whether they are kept, to be sent again. What can be asked for again as a whole need not be.
        most: Most bytes of a packet.
        packets: Most packets that may be kept.
    """

    def __init__(self, window: int, *, keeps: bool = True, most: int = MAX_PAYLOAD, packets: int = PACKETS) -> None:
        self._window = window
        self._most = most
        self._packets = packets
        self._keeps = keeps
        self._kept: deque[Buffer] = deque()
        """Payloads that are unacknowledged; the first may be acknowledged in part."""
        self._kept_from = 0
        """The first one's place in the stream."""
        self.sent = 0
        """Bytes that were sent."""
        self.acknowledged = 0
        """Bytes of these that the other end has passed on."""

    def resize(self, window: int) -> None:
        """Set another window."""
        self._window = window

    @property
    def room(self) -> int:
        """How many bytes may be sent, in one packet at most."""
        if len(self._kept) >= self._packets:
            return 0
        return min(self._window - self.sent + self.acknowledged, self._most)

    def add(self, payload: Buffer) -> None:
        """Record that a payload is sent, for which there is `room`; it must not change from here on."""
        self.sent += len(payload)
        if self._keeps:
            self._kept.append(payload)

    def acknowledge(self, received: int) -> None:
        """Forget what the other end has passed on.

        Raises:
            ProtocolError: That was never sent, or less than before.
        """
        if not self.acknowledged <= received <= self.sent:
            raise errors.ProtocolError(
                f"{received} bytes are acknowledged, of {self.sent} that were sent and {self.acknowledged} before"
            )
        self.acknowledged = received
        while self._kept and self._kept_from + len(self._kept[0]) <= received:
            self._kept_from += len(self._kept.popleft())

    def after(self, received: int) -> list[memoryview]:
        """Return the payloads behind a place in the stream, to be sent again after a cut.

        Args:
            received: How far the other end has come. It may have passed on less, and acknowledges that by itself:
                what it still holds counts in the window.

        Raises:
            ProtocolError: It cannot have come there.
        """
        if not self.acknowledged <= received <= self.sent:
            raise errors.ProtocolError(f"{received} bytes have come, of {self.sent} that were sent")
        again: list[memoryview] = []
        start = self._kept_from
        for payload in self._kept:
            end = start + len(payload)
            if end > received:
                again.append(memoryview(payload)[max(0, received - start) :])
            start = end
        return again


def outgoing_of(kind: ChannelKind) -> OutgoingFlow:
    """Return the direction of a channel in which an end sends."""
    if kind is ChannelKind.MEMORY:
        return OutgoingFlow(WINDOWS[kind], keeps=False, most=MEMORY_PAYLOAD)
    return OutgoingFlow(WINDOWS[kind])


class IncomingFlow:
    """The direction in which this end receives.

    Args:
        window: Most bytes that the other end may have unacknowledged.
        packets: Most packets.
    """

    def __init__(self, window: int, packets: int = PACKETS) -> None:
        self._window = window
        self._due = window // 4
        self._due_packets = packets // 4
        self._packets = 0
        """Packets since all that had come was acknowledged."""
        self.received = 0
        """Bytes that have come."""
        self.passed_on = 0
        """Bytes of these that are out of this end's hands."""
        self._told = 0
        """The latest acknowledgement."""

    def resize(self, window: int) -> None:
        """Set another window."""
        self._window, self._due = window, window // 4

    def receive(self, nbytes: int) -> None:
        """Record that a payload has come.

        Raises:
            ProtocolError: The other end does not keep to the window.
        """
        self.received += nbytes
        self._packets += 1
        if self.received - self._told > self._window:
            raise errors.ProtocolError(f"more than {self._window} bytes were sent without an acknowledgement")

    def pass_on(self, nbytes: int) -> None:
        """Record that so many of the oldest bytes were passed on."""
        self.passed_on += nbytes
        assert self.passed_on <= self.received

    @property
    def owes(self) -> bool:
        """Whether an acknowledgement is due by itself."""
        owed = self.passed_on - self._told
        return owed >= self._due or (owed > 0 and self._packets >= self._due_packets)

    def tell(self) -> int:
        """Return the acknowledgement for the next packet, which is sent at once."""
        self._told = self.passed_on
        if self._told == self.received:
            self._packets = 0
        return self._told
