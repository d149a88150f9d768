"""Messages between the supervisor and the relay, which carries remote clients. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from atomr_mp.protocol.codec import U32, U64, Codec, ErrorInfo, Message, Name, Text
from atomr_mp.protocol.messages import operators


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the relay's process, given as JSON when it is started: how it listens, and its limits."""

    endpoint: str
    """"tcp://HOST:PORT" as it was set, for texts."""
    listener: int
    """Descriptor of the listening socket."""
    session_socket: str
    run_dir: str
    keys_dir: str
    """Empty for no encryption, on loopback."""
    max_sessions: int
    max_bytes: int
    """Most bytes that the slabs of all clients may take."""
    grace_s: float
    control: int = -1
    """Descriptor of the socket to the supervisor."""


class KeysChanged(Message, frozen=True, tag="keys_changed"):
    """Read the admitted keys again, and end the sessions of revoked keys; answered `KeysRead`."""

    id: U32


class RelayListens(Message, frozen=True, tag="relay_listens"):
    """Listen: until then a relay stands by, with everything made ready."""


class RelayDrains(Message, frozen=True, tag="relay_drains"):
    """The pool stops: end the sessions whose clients are away, now and from now on."""


class RelayStops(Message, frozen=True, tag="relay_stops"):
    """The pool has ended: say so to all sessions, and end."""

    why: Text
    awaited: bool = False
    """Clients of a relay that has just ended may be about to come: listen, and say so to them too."""


ToRelay = KeysChanged | RelayListens | RelayDrains | RelayStops


class KeysRead(Message, frozen=True, tag="keys_read"):
    """Answer to `KeysChanged`."""

    id: U32
    error: ErrorInfo | None = None


class RelayEvent(Message, frozen=True, tag="relay_event"):
    """Something for the event log."""

    event: Name
    text: Text
    client: Annotated[str, msgspec.Meta(max_length=200)] = ""
    key: Annotated[str, msgspec.Meta(max_length=200)] = ""


class RelayFigures(Message, frozen=True, tag="relay_figures"):
    """The state of the relay, sent when it has changed."""

    listening: bool
    sessions: list[operators.RemoteSessionStatus]
    refused: U64
    """Handshakes and channels that were refused for a key, a limit or a rule."""


class RelayAlive(Message, frozen=True, tag="relay_alive"):
    """Said every second: the relay's loop turns."""


FromRelay = KeysRead | RelayEvent | RelayFigures | RelayAlive

TO_RELAY: Final[Codec[ToRelay]] = Codec(ToRelay, channel="relay")
FROM_RELAY: Final[Codec[FromRelay]] = Codec(FromRelay, channel="relay")
