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

Token = Annotated[bytes, msgspec.Meta(max_length=TOKEN_BYTES)]
Body = Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)]
FrameCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_FRAMES)]
Place = Annotated[int, msgspec.Meta(ge=0, lt=MAX_ITEMS)]
"""Position of an item in its call, from 0."""


class Call(Message, frozen=True):
    """One request."""

    id: U64
    """Growing, never used twice in a session."""
    method: Name
    """`Actor.method`."""
    deadline_ns: U64
    """CLOCK_MONOTONIC; a call that has not started by then is dropped and answered `DeadlineExceeded`."""
    frames: FrameCount
    """Its number of payload frames."""
    body: Body
    """The arguments, msgpack: an array by position, or a map by name."""
    refs: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of refs among the arguments; a call with any takes its borrows in the order of arrival."""
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    """Waiting calls of higher priority start first, also before earlier calls of the same client."""
    trace: Annotated[bytes, msgspec.Meta(max_length=MAX_TRACE_BYTES)] | None = None
    """W3C's `traceparent` of the client's span, if it makes one."""
    items: Annotated[int, msgspec.Meta(ge=0, le=MAX_ITEMS)] = 0
    """How many items for a batched method it has, see `Calls`: the body is an array with the arguments of each, by
    position, without refs. 0: it is a single request."""


class Calls(Message, frozen=True, tag=1):
    """Run these calls.

    A call with items (`Call.items`) stands for as many requests of a method with `call_items`. The worker puts the
    items into batches and answers them as these end: each `CallReply` says by `items` which it answers. The call has
    one id, one deadline and one place in the window. It counts as started from its first item on: after a worker's end
    each unanswered item may have been executed. If some items do not fit, the call is answered by an error without
    `items` before any item has run; send them singly to find out which.
    """

    token: Token
    calls: Annotated[list[Call], msgspec.Meta(min_length=1, max_length=MAX_CALLS)]
    """Each is answered on its own."""
    after: U64 = 0
    """Serial of the latest `Release` that this client has sent to the incarnation, on any connection: these calls wait
    until it has been taken in."""


class Cancel(Message, frozen=True, tag=2):
    """Drop these calls if they have not started, or end them if their methods are asynchronous, and end these streams.

    Not answered itself: each call that it stops is answered with `cancelled`, every other call as usual. Ids that are
    not waiting are ignored.
    """

    token: Token
    ids: Annotated[list[U64], msgspec.Meta(max_length=MAX_CALLS)]


class Release(Message, frozen=True, tag=3):
    """Give back leases, borrows and mappings.

    Not answered: `Replies.released` says which releases were taken in. A serial that has come before changes nothing.
    A client that has lost a connection repeats, on another, the releases that no `Replies` has named.
    """

    token: Token
    serial: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    """Counts the session's releases to this incarnation from 1, over all connections."""
    leases: Annotated[list[BufferId], msgspec.Meta(max_length=MAX_RELEASED)]
    """Buffers; each entry gives one lease back."""
    borrows: Annotated[list[U64], msgspec.Meta(max_length=MAX_RELEASED)]
    """Borrows that the client has taken, by their ids."""
    slabs: Annotated[list[SlabNumber], msgspec.Meta(max_length=MAX_RELEASED)]
    """Slabs that the client has unmapped."""


class Unread(Message, frozen=True, tag=5):
    """Report that a connection of this session has ended while the worker lives, and that another has replaced it.

    The new connection has a lane number of its own. There is no answer. The worker takes back the leases of everything
    that it sent on the old connection after these replies, and drops the calls of the old connection that have not
    started. Send it before any call is sent again.
    """

    token: Token
    lane: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """Number of the connection that has ended."""
    after: U64
    """`number` of the last `Replies` that were read on it, 0 if none."""


class CallReply(Message, frozen=True):
    """The answer to one call: a result in `body` and frames, or an error."""

    id: U64
    frames: FrameCount
    """Its number of payload frames."""
    body: Body
    """The result, msgpack; empty if there is an error."""
    error: ErrorInfo | None = None
    """The error that the call ended with; nil if it has a result."""
    leases: Annotated[list[BufferId], msgspec.Meta(max_length=MAX_RELEASED)] = msgspec.field(default_factory=list)
    """Buffers of the refs in the result: the session has one more lease of each."""
    items: Annotated[list[Place], msgspec.Meta(max_length=MAX_ITEMS)] | None = None
    """For a call with items: the places of the items that this answers. The result is an array with one result for each
    of them; an error is the error of each. The call is answered when all its items are, or by a reply without `items`,
    which answers all that are left."""
    failed: dict[Place, ErrorInfo] | None = None
    """The errors of these items; the result has nil in their places."""


class Replies(Message, frozen=True, tag=1):
    """Answers to calls, and the ends of streams."""

    token: Token
    """The incarnation that answers."""
    replies: Annotated[list[CallReply], msgspec.Meta(max_length=MAX_CALLS)]
    """In the order in which the calls ended."""
    returned: Annotated[list[U64], msgspec.Meta(max_length=MAX_RELEASED)] = msgspec.field(default_factory=list)
    """Ids of arrays in the client's memory (extension type 3) that nothing in the worker uses any more, of these calls
    or of earlier ones."""
    released: U64 = 0
    """All the session's releases up to this serial have been taken in."""
    number: U64 = 0
    """Counts the worker's messages to this session from 1, over all connections."""


class Alone(Calls, frozen=True, tag=4):
    """Run this call while nothing else runs: it is suspected of ending workers.

    The worker admits no other call, finishes what it has, and runs this one.
    """


class StreamCall(Message, frozen=True):
    """A request that is answered by parts, and then by a reply."""

    id: U64
    """Unique in the session, growing, among all its requests."""
    method: Name
    """"Actor.method", one whose `MethodInfo.streams` is true."""
    deadline_ns: U64
    """CLOCK_MONOTONIC; one that has not started by then is dropped and answered `deadline_exceeded`."""
    frames: FrameCount
    """Its number of payload frames."""
    body: Body
    """Arguments, as those of a call."""
    parts: U64
    """Its first credit, see `Grant`."""
    nbytes: U64
    """After how many bytes of parts none may be sent."""
    between_ns: U64
    """How long a step may take before it is late: a watchdog's limit that no actor has set begins there."""
    until_ns: U64
    """CLOCK_MONOTONIC; the stream ends then by `deadline_exceeded`, between two steps."""
    refs: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of refs among the arguments."""
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    """As in `Call`, for each step."""
    trace: Annotated[bytes, msgspec.Meta(max_length=MAX_TRACE_BYTES)] | None = None
    """W3C's `traceparent` of the client's span; None if it makes none."""
    start: U64 = 0
    """How many parts the client has of another incarnation: the next one has this number."""
    start_bytes: U64 = 0
    """The bytes that these parts count for in the credit."""
    sent: Annotated[list[Body], msgspec.Meta(max_length=MAX_SENT)] = msgspec.field(default_factory=list)
    """Their bodies, if `MethodInfo.resumes` is "sent"."""


class Streams(Message, frozen=True, tag=6):
    """Open these streams.

    Each is answered by `Parts`, and at its end by a reply, whose result is the generator's return value.
    [How streams run](protocol.md#how-streams-run) has the rules.
    """

    token: Token
    calls: Annotated[list[StreamCall], msgspec.Meta(min_length=1, max_length=MAX_CALLS)]
    after: U64 = 0
    """As in `Calls`."""
    alone: bool = False
    """Each may be what ends workers: its first step is taken while nothing else runs, as with `Alone`."""


class Grant(Message, frozen=True):
    """How far a stream may go, counted from its first part: repeating a grant does no harm."""

    id: U64
    """The stream's."""
    parts: U64
    """How many parts may be sent in all."""
    nbytes: U64
    """Once parts of so many bytes were sent, none may be sent."""


class Credit(Message, frozen=True, tag=7):
    """Let these streams go on. Not answered; a stream that is not open any more is ignored."""

    token: Token
    grants: Annotated[list[Grant], msgspec.Meta(max_length=MAX_CALLS)]


class Part(Message, frozen=True):
    """One part of a stream."""

    id: U64
    """The stream's."""
    number: U64
    """Its place, from 0."""
    frames: FrameCount
    """Its number of payload frames."""
    body: Body
    """Its value, see `values`."""
    nbytes: U64
    """Bytes that it counts for in the credit: body, frames, and arrays in shared memory."""
    leases: Annotated[list[BufferId], msgspec.Meta(max_length=MAX_RELEASED)] = msgspec.field(default_factory=list)
    """As in `CallReply`."""


class Parts(Message, frozen=True, tag=2):
    """Parts of one stream or of several. A stream's end comes in a later `Replies`."""

    token: Token
    """The incarnation that sends."""
    parts: Annotated[list[Part], msgspec.Meta(max_length=MAX_CALLS)]
    """The parts of each stream are in order."""
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
