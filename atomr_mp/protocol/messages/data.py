"""Messages between a client and a worker, over ZeroMQ. Pure.

A message is a header and the payload frames of its calls, in order (see `framing`). Calls that wait anyway travel
together; each has its own body, deadline and answer, and is decoded on its own, so a bad one harms none.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from atomr_mp.protocol.codec import U32, U64, Codec, ErrorInfo, Message, Name
from atomr_mp.protocol.flow.limits import MAX_BODY_BYTES, MAX_FRAMES
from atomr_mp.protocol.refs import BufferId, SlabNumber
from atomr_mp.protocol.token import TOKEN_BYTES

MAX_CALLS: Final = 1024
"""Most calls, ids or replies in one message."""

MAX_ITEMS: Final = 256
"""Most items in one call."""

MAX_RELEASED: Final = 4096
"""Most entries of each kind in one release; most refs in one result."""

MAX_LANES: Final = 16
"""Windows in bytes that all connections of one session to one worker may have unanswered together."""

SESSION_BYTES: Final = 16

MIN_PRIORITY: Final = -8
"""Lowest priority of a call."""
MAX_PRIORITY: Final = 7
"""Highest priority of a call."""

MAX_TRACE_BYTES: Final = 128
"""Longest context of a trace."""

MAX_SENT: Final = 2**20
"""Most parts with which a stream goes on elsewhere."""

Token = Annotated[bytes, msgspec.Meta(max_length=TOKEN_BYTES)]
Body = Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)]
FrameCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_FRAMES)]
Place = Annotated[int, msgspec.Meta(ge=0, lt=MAX_ITEMS)]
"""Position of an item in its call, from 0."""


class Gang(Message, frozen=True):
    """The call of a world that a request is a part of: each member of the epoch gets one."""

    world: U32
    epoch: U64
    """The world's epoch. In any other one the part is answered `collective_aborted`, and has not run."""
    id: U64
    """The same in all parts of the call, growing, never used twice in a session."""


class Call(Message, frozen=True):
    """One request."""

    id: U64
    """Growing, never used twice in a session."""
    method: Name
    """`Actor.method`."""
    deadline_ns: U64
    """CLOCK_MONOTONIC; a call that has not started by then is answered `deadline_exceeded`."""
    frames: FrameCount
    """Number of payload frames."""
    body: Body
    """The arguments, msgpack: an array by position, or a map by name."""
    refs: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Refs among the arguments; a call with any takes its borrows in the order of arrival."""
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    """Waiting calls of higher priority start first, also before earlier calls of the same client."""
    trace: Annotated[bytes, msgspec.Meta(max_length=MAX_TRACE_BYTES)] | None = None
    """W3C's `traceparent` of the client's span."""
    items: Annotated[int, msgspec.Meta(ge=0, le=MAX_ITEMS)] = 0
    """How many items for a batched method, see `Calls`: the body is an array with the positional arguments of each,
    without refs. 0: a single request."""
    gang: Gang | None = None
    """For a method of a world's actor, or a collective of a world that this session has made."""
    submitted_ns: U64 = 0
    """When the caller has called, CLOCK_MONOTONIC, while the pool is traced; else 0."""


class Calls(Message, frozen=True, tag=1):
    """Run these calls.

    A call with items (`Call.items`) stands for as many requests of a method with `call_items`. It has one id, one
    deadline and one place in the window. The worker batches the items and answers them as the batches end: each
    `CallReply.items` says which. The call counts as started from its first item on. If some items do not fit, an error
    without `items` answers the call before any has run; send them singly to find out which.
    """

    token: Token
    calls: Annotated[list[Call], msgspec.Meta(min_length=1, max_length=MAX_CALLS)]
    """Each is answered on its own."""
    after: U64 = 0
    """Serial of the latest `Release` that this client has sent to the incarnation, on any connection: the calls wait
    for it."""


class Cancel(Message, frozen=True, tag=2):
    """Drop these calls if they have not started; end those whose methods are asynchronous, and these streams.

    Each stopped call is answered with `cancelled`, every other as usual. Unknown ids are ignored.
    """

    token: Token
    ids: Annotated[list[U64], msgspec.Meta(max_length=MAX_CALLS)]


class Release(Message, frozen=True, tag=3):
    """Give back leases, borrows and mappings.

    Not answered: `Replies.released` says which were taken in. A repeated serial changes nothing. After a lost
    connection, repeat on another what no `Replies` has named.
    """

    token: Token
    serial: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    """Counts the session's releases to this incarnation from 1, over all connections."""
    leases: Annotated[list[BufferId], msgspec.Meta(max_length=MAX_RELEASED)]
    """Buffers; each entry gives one lease back."""
    borrows: Annotated[list[U64], msgspec.Meta(max_length=MAX_RELEASED)]
    """Ids of borrows that the client has taken."""
    slabs: Annotated[list[SlabNumber], msgspec.Meta(max_length=MAX_RELEASED)]
    """Slabs that the client has unmapped."""


class LostParts(Message, frozen=True):
    """Tells that parts of a world's calls were lost with a connection, and that others may have reached their ranks."""

    world: U32
    epoch: U64
    """The epoch that they were for. It ends, since the other ranks would wait for these parts."""


class Unread(Message, frozen=True, tag=5):
    """Report that a connection of this session has ended while the worker lives, and that another has replaced it.

    Not answered. The new connection has a lane number of its own; send this on it before any call. The worker takes
    back the leases of everything after these replies on the old connection, and drops its calls that have not started.
    """

    token: Token
    lane: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """Number of the ended connection."""
    after: U64
    """`number` of the last `Replies` read on it, 0 if none."""
    parts: Annotated[list[LostParts], msgspec.Meta(max_length=MAX_CALLS)]
    """The worlds with unanswered calls on it, each once."""


class CallReply(Message, frozen=True):
    """The answer to one call."""

    id: U64
    frames: FrameCount
    body: Body
    """The result, msgpack; empty if there is an error."""
    error: ErrorInfo | None = None
    leases: Annotated[list[BufferId], msgspec.Meta(max_length=MAX_RELEASED)] = msgspec.field(default_factory=list)
    """Buffers of the refs in the result: the session has one more lease of each."""
    items: Annotated[list[Place], msgspec.Meta(max_length=MAX_ITEMS)] | None = None
    """For a call with items: the places of the items that this answers. The result is an array with one result for
    each; an error is the error of each. A reply without `items` answers all that are left."""
    failed: dict[Place, ErrorInfo] | None = None
    """Errors of single items; the result has nil in their places."""
    gpu_ns: U64 = 0
    """How long the device has worked for the call, while the pool is traced; else 0, and so for calls with items."""
    batch_rows: U32 = 0
    """Rows of the batch, in the first of its calls' answers that has a result, if `MethodInfo.batches_rows`; else 0."""
    ran_ns: U64 = 0
    """From the call of the method, or of its batch, to this answer: without what it waited for. 0 if none ran."""


class Replies(Message, frozen=True, tag=1):
    """Answers to calls, and the ends of streams."""

    token: Token
    replies: Annotated[list[CallReply], msgspec.Meta(max_length=MAX_CALLS)]
    """In the order in which the calls ended."""
    returned: Annotated[list[U64], msgspec.Meta(max_length=MAX_RELEASED)] = msgspec.field(default_factory=list)
    """Ids of arrays in the client's memory (extension type 3) that are out of use in the worker."""
    released: U64 = 0
    """All the session's releases up to this serial have been taken in."""
    number: U64 = 0
    """Counts the worker's messages to this session from 1, over all connections."""


class Alone(Calls, frozen=True, tag=4):
    """Run this call while nothing else runs: it is suspected of ending workers.

    A part of a world's call begins once all members have got it so, and nothing else runs on any of them.
    """


class StreamCall(Message, frozen=True):
    """A request that is answered by parts, and then by a reply."""

    id: U64
    """Growing, unique among all requests of the session."""
    method: Name
    """One whose `MethodInfo.streams` is true."""
    deadline_ns: U64
    """CLOCK_MONOTONIC; if it has not started by then, `deadline_exceeded`."""
    frames: FrameCount
    body: Body
    """Arguments, as in `Call`."""
    parts: U64
    """First credit, see `Grant`."""
    nbytes: U64
    """First credit, see `Grant`."""
    between_ns: U64
    """Time after which a step is late: a watchdog's limit that no actor has set begins there."""
    until_ns: U64
    """CLOCK_MONOTONIC; the stream ends then by `deadline_exceeded`, between two steps."""
    refs: Annotated[int, msgspec.Meta(ge=0)] = 0
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    """As in `Call`, for each step."""
    trace: Annotated[bytes, msgspec.Meta(max_length=MAX_TRACE_BYTES)] | None = None
    start: U64 = 0
    """Parts that the client has of another incarnation: the next part has this number."""
    start_bytes: U64 = 0
    """Bytes that these parts count for in the credit."""
    sent: Annotated[list[Body], msgspec.Meta(max_length=MAX_SENT)] = msgspec.field(default_factory=list)
    """Their bodies, if `MethodInfo.resumes` is `"sent"`."""
    gang: Gang | None = None
    """For a method of a world's actor: rank 0 alone sends parts, and decides when all ranks take a step."""
    submitted_ns: U64 = 0
    """As in `Call`."""


class Streams(Message, frozen=True, tag=6):
    """Open these streams.

    Each is answered by `Parts`, and at its end by a reply with the generator's return value. [How streams
    run](protocol.md#how-streams-run) has the rules.
    """

    token: Token
    calls: Annotated[list[StreamCall], msgspec.Meta(min_length=1, max_length=MAX_CALLS)]
    after: U64 = 0
    alone: bool = False
    """Run the first step of each while nothing else runs, as `Alone`."""


class Grant(Message, frozen=True):
    """Credit of a stream, counted from its first part; repeating a grant does no harm."""

    id: U64
    parts: U64
    """Parts that may be sent in all."""
    nbytes: U64
    """After parts of so many bytes, none may be sent."""


class Credit(Message, frozen=True, tag=7):
    """Let these streams go on. Not answered; ended streams are ignored."""

    token: Token
    grants: Annotated[list[Grant], msgspec.Meta(max_length=MAX_CALLS)]


class Part(Message, frozen=True):
    """One part of a stream."""

    id: U64
    number: U64
    """Its place, from 0."""
    frames: FrameCount
    body: Body
    """Its value."""
    nbytes: U64
    """Bytes that it counts for in the credit: body, frames, and arrays in shared memory."""
    leases: Annotated[list[BufferId], msgspec.Meta(max_length=MAX_RELEASED)] = msgspec.field(default_factory=list)
    """As in `CallReply`."""


class Parts(Message, frozen=True, tag=2):
    """Parts of streams. A stream's end comes in a later `Replies`."""

    token: Token
    parts: Annotated[list[Part], msgspec.Meta(max_length=MAX_CALLS)]
    """The parts; those of one stream are in order."""
    number: U64 = 0
    """Counted together with `Replies`."""


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
