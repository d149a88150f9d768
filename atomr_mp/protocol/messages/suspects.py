"""Messages of a session about requests that may have ended workers. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from atomr_mp.protocol.codec import U16, U32, Bytes16, Message, Name

MAX_SUSPECTS: Final = 1024
"""Most requests of a session that are reported at a time of those that ran when a worker ended."""


class Verdict(StrEnum):
    """The verdict on a suspected request."""

    SUSPECTED = "suspected"
    """A worker has ended while it ran, or it and others: it is run alone."""
    QUARANTINED = "quarantined"
    """It ends workers: it is refused."""
    CLEARED = "cleared"
    """It is free of suspicion."""


class RequestKey(Message, frozen=True):
    """Identifies a request."""

    method: Name
    """`Actor.method` or `library.request`."""
    fingerprint: Bytes16
    """BLAKE2b of the method's name, the content of each array of at least `SHARED_BYTES`, the body, and the payload
    frames. In that body such an array is extension type 3 with 0 for id, slab and offset. A ref, which only requests of
    libraries have, has a token of zeros, its place among the body's buffers for `buffer`, 0 for `slab`, and its offset
    modulo 256. With another digest a client does not recognise requests that others have sent."""


class Suspect(Message, frozen=True, tag="suspect"):
    """Describe this session's requests in `IncarnationEnded.suspects`, except calls of actors' methods with refs.

    Answered by `Suspicions` with this id.
    """

    id: U32
    device: U16
    generation: U32
    """The incarnation that has ended."""
    requests: Annotated[list[RequestKey], msgspec.Meta(max_length=MAX_SUSPECTS)]


class Acquit(Message, frozen=True, tag="acquit"):
    """Report that a suspected request was sent by `Alone` and answered by a worker that lives. Not answered."""

    request: RequestKey


class Suspicion(Message, frozen=True):
    """A verdict on a request."""

    request: RequestKey
    verdict: Verdict
    ends: U32
    """How many workers have ended while it ran."""


class Suspicions(Message, frozen=True, tag="suspicions"):
    """New verdicts on requests, oldest first.

    Send a suspected request by `Alone`, and a quarantined one not at all.
    """

    changed: list[Suspicion]
    id: U32 = 0
    """Id of the `Suspect` that this answers, else 0."""
