"""Messages of a session about requests that may have ended workers. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from atomr_mp.protocol.codec import U16, U32, Bytes16, Message, Name

MAX_SUSPECTS: Final = 1024
"""Most requests of a session that are told at a time of those that ran when a worker ended."""


class Verdict(StrEnum):
    """What is held of a request."""

    SUSPECTED = "suspected"
    """A worker has ended while it ran, or it and others: it is run alone."""
    QUARANTINED = "quarantined"
    """It ends workers: it is refused."""
    CLEARED = "cleared"
    """Nothing, any more."""


class RequestKey(Message, frozen=True):
    """What tells one request from another."""

    method: Name
    """ "Actor.method"."""
    fingerprint: Bytes16
    """Of its method and arguments; how it is made is the client's affair, but the same for all clients."""


class Suspect(Message, frozen=True, tag="suspect"):
    """Say which of this session's requests are among `IncarnationEnded.suspects`; answered by `Suspicions`."""

    id: U32
    device: U16
    generation: U32
    requests: Annotated[list[RequestKey], msgspec.Meta(max_length=MAX_SUSPECTS)]


class Acquit(Message, frozen=True, tag="acquit"):
    """A suspect has run alone, and its worker lives. Not answered."""

    request: RequestKey


class Suspicion(Message, frozen=True):
    """What is held of a request."""

    request: RequestKey
    verdict: Verdict
    ends: U32
    """How many workers have ended while it ran."""


class Suspicions(Message, frozen=True, tag="suspicions"):
    """What is held of requests from now on, in the order in which it came about."""

    changed: list[Suspicion]
    id: U32 = 0
    """Of the `Suspect` that this answers, 0 if it was another session's, or nobody's."""
