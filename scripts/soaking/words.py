"""What the soak and its clients say to each other: messages as lines of JSON. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from soaking.contents import Pattern


class Share(msgspec.Struct, frozen=True, tag=True):
    """Bytes with which a client can claim a ref, and what it will find there."""

    shared: bytes
    pattern: Pattern
    device: int
    generation: int
    until_s: float
    """Until then at least it can be claimed; CLOCK_MONOTONIC."""
    exclusive: bool
    """Whoever has shared it has released it, so that it may be written."""


# --- to a client ---------------------------------------------------------------------------------------------------


class Use(msgspec.Struct, frozen=True, tag=True):
    """Connect, and use the pool at random."""

    until_s: float
    """CLOCK_MONOTONIC."""
    spared: int | None
    """A device that is spared from kills meanwhile."""
    refs: bool = True
    """With refs too; they are looked at as NumPy's arrays, which on a GPU they are not."""
    planned: bool = False
    """Workers end only as the pool plans it, which clients may notice by refs to their memory alone."""
    lull_every_s: float = 0.0
    """How often clients hold no buffers for a while, all at the same time; 0 for never."""
    cuts: bool = False
    """Data connections end though their workers live, but for those of the spared device."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """End the session."""


ToClient = Use | Leave | Share


# --- from a client -------------------------------------------------------------------------------------------------


class Count(msgspec.Struct, frozen=True, tag=True):
    """What has happened since it was said last, and how often; and what was wrong."""

    counts: dict[str, int]
    wrong: list[str]


class Rested(msgspec.Struct, frozen=True, tag=True):
    """Nothing is called or held from now on; the session goes on."""


class Left(msgspec.Struct, frozen=True, tag=True):
    """The session is over."""


FromClient = Count | Rested | Left | Share

TO_CLIENT: Final = msgspec.json.Decoder[ToClient](ToClient)
FROM_CLIENT: Final = msgspec.json.Decoder[FromClient](FromClient)


def line(message: ToClient | FromClient) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"
