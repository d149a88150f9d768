"""Messages between a client and a worker, over ZeroMQ. Pure.

A message is a header and the payload frames of its calls, in order (see `framing`). Calls that wait anyway travel
together; each has its own body, deadline and answer, and is decoded on its own, so a bad one harms none.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from atomr_mp.protocol.codec import U64, Codec, ErrorInfo, Message, Name
from atomr_mp.protocol.flow.limits import MAX_BODY_BYTES, MAX_FRAMES
from atomr_mp.protocol.refs import BufferId, SlabNumber
from atomr_mp.protocol.token import TOKEN_BYTES

MAX_CALLS: Final = 1024
"""Most calls in one message."""

MAX_ITEMS: Final = 256
"""Most items in one call."""

MAX_RELEASED: Final = 4096
"""Most entries of each kind in one release."""

MAX_LANES: Final = 16
"""Most data connections of one session to one worker: one for blocking threads, one for each asyncio loop."""

SESSION_BYTES: Final = 16

MIN_PRIORITY: Final = -8
MAX_PRIORITY: Final = 7

MAX_TRACE_BYTES: Final = 128
"""Longest context of a trace."""

MAX_SENT: Final = 2**20
"""Most parts with which a stream goes on elsewhere."""

MAX_AHEAD: Final = 4096
"""Most parts for which a stream may have credit beyond those that were sent."""

Token = Annotated[bytes, msgspec.Meta(max_length=TOKEN_BYTES)]
Body = Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)]
FrameCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_FRAMES)]
Place = Annotated[int, msgspec.Meta(ge=0, lt=MAX_ITEMS)]
"""Of an item among those of its call, from 0."""


class Call(Message, frozen=True):
    """One request."""

    id: U64
    """Unique in the session, growing."""
    method: Name
    """"Actor.method"."""
    deadline_ns: U64
    """CLOCK_MONOTONIC; a call that has not started by then is dropped and answered `DeadlineExceeded`."""
    frames: FrameCount
    """How many of the message's payload frames are this call's."""
    body: Body
    """Arguments, see `values`: an array by position, or a map by name."""
    refs: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many refs are among the arguments; a call with any takes its borrows in the order of arrival."""
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    """Of what waits in the worker, higher ones come first."""
    trace: Annotated[bytes, msgspec.Meta(max_length=MAX_TRACE_BYTES)] | None = None
    """W3C's `traceparent` of the client's span; None if it makes none."""
    items: Annotated[int, msgspec.Meta(ge=0, le=MAX_ITEMS)] = 0
    """How many items for a batched method it has: the body is an array with the arguments of each, by position, and
    there are no refs among them. 0: it is a request like others."""


class Calls(Message, frozen=True, tag=1):
    """Client to worker: do these."""

    token: Token
    calls: Annotated[list[Call], msgspec.Meta(min_length=1, max_length=MAX_CALLS)]
    after: U64 = 0
    """Serial of the latest release that the client had sent to this incarnation, on any connection; these calls wait
    until it has been taken in."""


class Cancel(Message, frozen=True, tag=2):
    """Client to worker: forget these, if they have not started."""

    token: Token
    ids: Annotated[list[U64], msgspec.Meta(max_length=MAX_CALLS)]


class Release(Message, frozen=True, tag=3):
    """Client to worker: these are not needed any more. Not answered; one that has come before changes nothing."""

    token: Token
    serial: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    """Counts the session's releases to this incarnation from 1, over all connections."""
    leases: Annotated[list[BufferId], msgspec.Meta(max_length=MAX_RELEASED)]
    """Buffers; each entry gives one lease back."""
    borrows: Annotated[list[U64], msgspec.Meta(max_length=MAX_RELEASED)]
    """Borrows that the client took by `memory.borrow`, by their ids."""
    slabs: Annotated[list[SlabNumber], msgspec.Meta(max_length=MAX_RELEASED)]
    """Slabs of which the client has no mapping any more."""


class Unread(Message, frozen=True, tag=5):
    """Client to worker: a connection of this session has ended, and another has taken its place. Not answered.

    What the worker has sent on it after these replies never arrived: the session does not have what it brought. What
    came on it and has not started is not wanted.
    """

    token: Token
    lane: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """Number of the connection that has ended."""
    after: U64
    """`Replies.number` of the last that the client has read on it; 0 if none."""


class CallReply(Message, frozen=True):
    """One answer: a result in `body` and frames, or an error."""

    id: U64
    frames: FrameCount
    body: Body
    error: ErrorInfo | None = None
    leases: Annotated[list[BufferId], msgspec.Meta(max_length=MAX_RELEASED)] = msgspec.field(default_factory=list)
    """Buffers of the refs in the result; the session has one more lease of each."""
    items: Annotated[list[Place], msgspec.Meta(max_length=MAX_ITEMS)] | None = None
    """Of a call with items: the places of those that this answers; the result is an array with that of each. It is
    answered when all are, or by an answer without items, which is all that is left."""
    failed: dict[Place, ErrorInfo] | None = None
    """What these items ended with, if any; their result is nil."""


class Replies(Message, frozen=True, tag=1):
    """Worker to client: these are done."""

    token: Token
    replies: Annotated[list[CallReply], msgspec.Meta(max_length=MAX_CALLS)]
    returned: Annotated[list[U64], msgspec.Meta(max_length=MAX_RELEASED)] = msgspec.field(default_factory=list)
    """Ids of `refs.ClientArray` that nothing in the worker uses any more, of this call or of earlier ones."""
    released: U64 = 0
    """All the session's releases up to this serial have been taken in."""
    number: U64 = 0
    """Counts the worker's messages to this session from 1, over all connections."""


class Alone(Calls, frozen=True, tag=4):
    """Client to worker: do this one call while nothing else runs; it may be what ends workers."""


class StreamCall(Message, frozen=True):
    """A request that is answered by parts, and then by a reply."""

    id: U64
    """Unique in the session, growing, among all its requests."""
    method: Name
    """"Actor.method", one that streams."""
    deadline_ns: U64
    """CLOCK_MONOTONIC; one that has not started by then is dropped and answered `DeadlineExceeded`."""
    frames: FrameCount
    """How many of the message's payload frames are this call's."""
    body: Body
    """Arguments, as those of a call."""
    parts: U64
    """How many parts may be sent, see `Grant`."""
    nbytes: U64
    """After how many bytes of parts none may be sent."""
    between_ns: U64
    """How long a step may take before it is late; the watchdog's limit begins there."""
    until_ns: U64
    """CLOCK_MONOTONIC; the stream ends then, by `DeadlineExceeded`."""
    refs: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many refs are among the arguments."""
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    """Of what waits in the worker, higher ones come first; step by step."""
    trace: Annotated[bytes, msgspec.Meta(max_length=MAX_TRACE_BYTES)] | None = None
    """W3C's `traceparent` of the client's span; None if it makes none."""
    start: U64 = 0
    """How many parts the client has of another incarnation: the next one has this number."""
    start_bytes: U64 = 0
    """What these count for in the credit."""
    sent: Annotated[list[Body], msgspec.Meta(max_length=MAX_SENT)] = msgspec.field(default_factory=list)
    """Their values, of a method that goes on by what was sent."""


class Streams(Message, frozen=True, tag=6):
    """Client to worker: open these streams."""

    token: Token
    calls: Annotated[list[StreamCall], msgspec.Meta(min_length=1, max_length=MAX_CALLS)]
    after: U64 = 0
    """As in `Calls`."""
    alone: bool = False
    """Each may be what ends workers: take its first step while nothing else runs."""


class Grant(Message, frozen=True):
    """How far a stream may go: all counted from its first part, so that to repeat it does no harm."""

    id: U64
    """The stream's."""
    parts: U64
    """How many parts may be sent in all."""
    nbytes: U64
    """Once so many bytes of parts were sent, by `Part.nbytes`, none may be sent."""


class Credit(Message, frozen=True, tag=7):
    """Client to worker: these streams may go on. Not answered; what is not open any more is passed over."""

    token: Token
    grants: Annotated[list[Grant], msgspec.Meta(max_length=MAX_CALLS)]


class Part(Message, frozen=True):
    """One part of a stream."""

    id: U64
    """The stream's."""
    number: U64
    """Its place, from 0."""
    frames: FrameCount
    """How many of the message's payload frames are this part's."""
    body: Body
    """Its value, see `values`."""
    nbytes: U64
    """What it counts for in the stream's credit: body, frames, and arrays in shared memory."""
    leases: Annotated[list[BufferId], msgspec.Meta(max_length=MAX_RELEASED)] = msgspec.field(default_factory=list)
    """As in `CallReply`."""


class Parts(Message, frozen=True, tag=2):
    """Worker to client: parts of streams. The end of each is in a `Replies` that comes after them."""

    token: Token
    parts: Annotated[list[Part], msgspec.Meta(max_length=MAX_CALLS)]
    number: U64 = 0
    """Counts the worker's messages to this session, together with `Replies`."""


NoCalls = Cancel | Release | Unread | Streams | Credit
FromClient = Calls | Alone | NoCalls
FromWorker = Replies | Parts

FROM_CLIENT: Final[Codec[FromClient]] = Codec(FromClient, channel="data")
FROM_WORKER: Final[Codec[FromWorker]] = Codec(FromWorker, channel="data")


def routing_id(session: bytes, lane: int) -> bytes:
    """Return the ZeroMQ routing id of a session's data connection number `lane`.

    The letter in front is there because ids that begin with a zero byte are ZeroMQ's own.
    """
    return b"s%b%c" % (session, lane)


def session_of(routing_id: bytes) -> bytes:
    """Return the session's name in a routing id; of any other bytes, something that names no session."""
    return routing_id[1 : 1 + SESSION_BYTES]
