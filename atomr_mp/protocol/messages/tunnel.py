"""Messages by which a channel of the tunnel begins and ends, between a remote client and the relay. Pure.

They are payloads of control packets, see `protocol.tunnel.packets`. What a channel carries is the byte stream of a
local client: a session, a connection to a worker, or copies of memory (`protocol.tunnel.ranges`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from atomr_mp.protocol.codec import U16, U32, U64, Bytes16, Codec, ErrorInfo, Message


class ChannelKind(StrEnum):
    """What a channel carries."""

    SESSION = "session"
    """A session with the supervisor, for calls."""
    OPERATOR = "operator"
    """A session with the supervisor, for questions and orders only."""
    LANE = "lane"
    """A data connection to one incarnation of a worker."""
    MEMORY = "memory"
    """Ranges of memory to copy."""


class OpenChannel(Message, frozen=True, tag="open"):
    """Open a channel; the first packet on a connection. What the channel carries may follow at once."""

    version: U32
    """The protocol's version; any other is refused."""
    channel: Bytes16
    """The channel's name: 16 random bytes of the client's choice."""
    kind: ChannelKind
    session: Bytes16
    """The name of the session's channel to which this one belongs; its own name, if it is a session's."""
    device: U16 = 0
    """Of a lane: the device of its worker."""
    generation: U32 = 0
    """Of a lane: the incarnation."""


class ChannelOpened(Message, frozen=True, tag="opened"):
    """The channel is open."""

    now_ns: U64
    """CLOCK_MONOTONIC of the pool's machine, when this was sent."""
    grace_s: float = 0.0
    """How long the relay keeps the channel without a connection."""
    received: U64 = 0
    """Bytes that have come of a channel that was opened before: all behind them is to be sent again."""
    window: U32 = 0
    """Most bytes that may be under way in each direction; 0: as many as the kind of the channel allows."""


class ResumeChannel(Message, frozen=True, tag="resume"):
    """Take up a channel whose connection has ended; the first packet on another one. Data follows the answer only."""

    version: U32
    channel: Bytes16
    """The channel's name."""
    session: Bytes16
    """The name of its session's channel."""
    received: U64
    """Bytes that have come: all behind them is to be sent again."""


class ChannelResumed(Message, frozen=True, tag="resumed"):
    """The channel goes on here; what the client has not received follows."""

    received: U64
    """Bytes that have come: all behind them is to be sent again."""
    now_ns: U64
    """CLOCK_MONOTONIC of the pool's machine, when this was sent."""


class ChannelEnded(Message, frozen=True, tag="ended"):
    """The channel has ended: the last packet, behind everything that the other end had sent.

    The client answers it by the same, and the relay forgets the channel. Until then it sends this again to a client
    that comes back.
    """

    error: ErrorInfo | None = None
    """The reason, unless an end was expected."""
    unknown: bool = False
    """The relay knows no such channel: it was never there, or has been given up, or an earlier relay had it."""


class LaneStops(Message, frozen=True, tag="stops"):
    """The client leaves a lane: its worker can send no more. What it has sent follows, and then the end."""


class Ping(Message, frozen=True, tag="ping"):
    """Ask what the pool's clock shows; answered by `Pong` at once, on any open channel."""

    sent_ns: U64
    """CLOCK_MONOTONIC of the client."""


class Pong(Message, frozen=True, tag="pong"):
    """Answer to `Ping`."""

    sent_ns: U64
    """From the question."""
    now_ns: U64
    """CLOCK_MONOTONIC of the pool's machine."""


Control = OpenChannel | ChannelOpened | ResumeChannel | ChannelResumed | ChannelEnded | LaneStops | Ping | Pong

CONTROL: Final[Codec[Control]] = Codec(Control, channel="tunnel")
