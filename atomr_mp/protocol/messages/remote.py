"""Messages between a remote client and a pool's gateway, over ZeroMQ with CURVE. Pure.

Each message is one ZeroMQ frame (`zmtp.framing.pack`): a msgpack header and payload frames. After a connection's
handshake the client says `Hello` and is answered `Welcome`; it then says what it has sent and not had answered
(`Resume`), and is told what of it the gateway knows (`Resumed`). Only then calls may follow. All further messages of
the client name the gateway's epoch: those of an older one run nothing.

Two machines' clocks are never compared: times travel as time left, or as time passed.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from atomr_mp.protocol.codec import MAX_U64, U16, U32, U64, Bytes16, Codec, ErrorInfo, Message, Name, Text
from atomr_mp.protocol.flow.flight import MAX_STREAMS, Window
from atomr_mp.protocol.messages import operators, session
from atomr_mp.protocol.messages.data import MAX_PRIORITY, MIN_PRIORITY
from atomr_mp.protocol.messages.devices import ActorInfo, DeviceInfo
from atomr_mp.protocol.refs import BufferId, WireRef
from atomr_mp.protocol.token import TOKEN_BYTES

MAX_REMOTE_MESSAGE_BYTES: Final = 320 * 1024
"""Largest message between a remote client and a gateway; both have libzmq end connections that send a larger one. It is
also what a stranger may park in the gateway before the login."""

MAX_CALL_BYTES: Final = 128 * 1024
"""Largest call or answer (body and payload frames) that travels in a message; larger ones go in chunks."""

MAX_REMOTE_IDS: Final = 8192
"""Most ids in one list of a message."""

RemoteId = Annotated[int, msgspec.Meta(ge=1, le=session.MAX_REMOTE_ID)]
"""Names a call in its session; grows from one to the next, and is never used again."""

Ids = Annotated[list[RemoteId], msgspec.Meta(max_length=MAX_REMOTE_IDS)]
Token = Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
Body = Annotated[bytes, msgspec.Meta(max_length=MAX_REMOTE_MESSAGE_BYTES)]
Duration = U64
"""Microseconds."""

ACKNOWLEDGE_PARTS: Final = 512
"""Parts of streams, of all of a session together, that have come without being acknowledged: then they are, all."""

ACKNOWLEDGE_BYTES: Final = 32 * 1024
"""The same in bytes that count for the credit. The gateway counts on it where it has little room."""


# --- client to gateway ---------------------------------------------------------------------------------------------


class RemoteHello(Message, frozen=True, tag="remote_hello"):
    """Open a session, or come back to one; the first message of each connection."""

    version: U32
    client: Name
    """For logs and `status`."""
    session: Bytes16 | None = None
    """The session to come back to; nil for a new one."""


class Unanswered(Message, frozen=True):
    """A call that was sent and not answered."""

    id: RemoteId
    age_us: Duration
    """Since it was first sent."""


class RemoteGrant(Message, frozen=True):
    """Credit of a stream, and the parts that have come, counted from its first part; repeating it does no harm."""

    id: RemoteId
    parts: U64
    """Parts that may be sent in all."""
    nbytes: U64
    """After parts of so many bytes, none may be sent."""
    received: U64
    """Parts that the client has: the gateway forgets them."""


class GivenUp(Message, frozen=True):
    """A request that is settled without its answer, such as one whose deadline has passed.

    The gateway frees the leases of the answer and of parts that were not taken. Ignore those if they come.
    """

    id: RemoteId
    parts: U64 = 0
    """Parts that the client has taken, of a stream."""


class Resume(Message, frozen=True, tag="resume"):
    """Say which calls are unanswered. Every other id below `next_id` is settled."""

    epoch: Bytes16
    unanswered: Annotated[list[Unanswered], msgspec.Meta(max_length=MAX_REMOTE_IDS)]
    """Calls, and streams that have not ended."""
    next_id: RemoteId
    streams: Annotated[list[RemoteGrant], msgspec.Meta(max_length=MAX_STREAMS)] = msgspec.field(default_factory=list)
    """Each stream's credit, and its parts that have come: the gateway sends the others again."""
    given_up: Annotated[list[GivenUp], msgspec.Meta(max_length=MAX_REMOTE_IDS)] = msgspec.field(default_factory=list)
    """Requests that were given up, unless a `RemoteRelease` that was acknowledged names them."""


class RemoteCall(Message, frozen=True, gc=True):
    """A request."""

    id: RemoteId
    method: Name
    left_us: Duration
    """Time left until its deadline."""
    frames: U16
    """Payload frames, which follow in the calls' order."""
    body: Body
    """Arguments; empty if they come in chunks."""
    device: U16 | None = None
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    refs: Annotated[list[WireRef], msgspec.Meta(max_length=1024)] = msgspec.field(default_factory=list)
    """Refs among its arguments."""
    replay: bool = False
    """It may have run under an earlier gateway, and is idempotent: it waits until its first copy has ended."""
    upload: U64 = 0
    """Bytes of its blob, if the gateway has to pull that."""
    replays: U16 = 0
    """Ends of workers that it was part of already."""


class RemoteCalls(Message, frozen=True, tag="remote_calls", gc=True):
    """Send requests, and acknowledge answers."""

    epoch: Bytes16
    settled: Ids
    """Answers that have come since the last such message."""
    calls: Annotated[list[RemoteCall], msgspec.Meta(max_length=1024)]


class RemoteStream(Message, frozen=True, gc=True):
    """A request that is answered by parts, and then by an answer."""

    call: RemoteCall
    """Its method is one whose `MethodInfo.streams` is true; its time left is that of the next part."""
    parts: U64
    """First credit, see `RemoteGrant`."""
    nbytes: U64
    between_us: Duration
    """How long a part may take, from the one before it, while there is credit."""
    until_us: Duration
    """Time left until the whole stream ends."""
    start: U64 = 0
    """Parts that the client has from an earlier gateway: the next part has this number."""
    start_bytes: U64 = 0
    """Bytes that these parts count for in the credit."""
    sent: bool = False
    """The last payload frame has the bodies of these parts, as a msgpack array of bin."""


class RemoteStreams(Message, frozen=True, tag="remote_streams", gc=True):
    """Open streams. One that is given up before its end is ended at its next step."""

    epoch: Bytes16
    settled: Ids
    streams: Annotated[list[RemoteStream], msgspec.Meta(max_length=MAX_STREAMS)]


class RemoteCredit(Message, frozen=True, tag="remote_credit"):
    """Let streams go on, and acknowledge parts. Ended streams and lower figures are ignored."""

    epoch: Bytes16
    grants: Annotated[list[RemoteGrant], msgspec.Meta(max_length=MAX_STREAMS)]


class RemoteCancel(Message, frozen=True, tag="remote_cancel"):
    """Do not start these requests."""

    epoch: Bytes16
    ids: Ids


class RefsReleased(Message, frozen=True):
    """Leases that are given back."""

    token: Token
    buffers: Annotated[list[BufferId], msgspec.Meta(max_length=MAX_REMOTE_IDS)]


class RemoteRelease(Message, frozen=True, tag="remote_release"):
    """Give leases back, and give requests up. Repeat it after a cut until its serial is acknowledged."""

    epoch: Bytes16
    serial: U64
    """1, 2, 3, ... in a session."""
    refs: Annotated[list[RefsReleased], msgspec.Meta(max_length=1024)]
    given_up: Annotated[list[GivenUp], msgspec.Meta(max_length=MAX_REMOTE_IDS)] = msgspec.field(default_factory=list)


Question = (
    operators.StatusRequest
    | operators.InventoryRequest
    | operators.RestartRequest
    | operators.ReloadRequest
    | operators.ListResidents
    | operators.FreeResident
    | operators.AdmitRequest
    | operators.StopRequest
)


class RemoteQuestion(Message, frozen=True, tag="remote_question"):
    """Ask the supervisor; answered by `RemoteTold` with the question's id."""

    epoch: Bytes16
    question: Question


class RemoteBye(Message, frozen=True, tag="remote_bye"):
    """End the session now."""

    epoch: Bytes16


class BulkHello(Message, frozen=True, tag="bulk_hello"):
    """The first message of a bulk connection, after its session is resumed."""

    epoch: Bytes16
    session: Bytes16


class BulkWant(Message, frozen=True, tag="bulk_want"):
    """Ask for a chunk: the gateway of a call's blob, the client of an answer's or a part's."""

    epoch: Bytes16
    id: RemoteId
    offset: U64
    nbytes: U32
    part: U64 = 0
    """One more than the part's number; 0 for a call or an answer."""


class BulkData(Message, frozen=True, tag="bulk_data"):
    """A chunk that was asked for, in the payload frame."""

    epoch: Bytes16
    id: RemoteId
    offset: U64
    part: U64 = 0


FromRemoteBulk = BulkHello | BulkWant | BulkData
FromRemote = (
    RemoteHello
    | Resume
    | RemoteCalls
    | RemoteStreams
    | RemoteCredit
    | RemoteCancel
    | RemoteRelease
    | RemoteQuestion
    | RemoteBye
)


# --- gateway to client ---------------------------------------------------------------------------------------------


class RemoteWelcome(Message, frozen=True, tag="remote_welcome"):
    """Answer to a hello."""

    version: U32
    epoch: Bytes16
    session: Bytes16
    pool: Name
    pool_epoch: Bytes16
    supervisor_pid: U32
    window: Window
    """How much the session may have unanswered, in all."""
    grace_s: float
    """How long the session is kept after a cut."""
    operate: bool
    """Its key may give orders."""
    devices: list[DeviceInfo]
    actors: list[ActorInfo]
    max_replays: U16 = 0
    bulk_port: U16 = 0
    """Port of bulk connections."""


class Fate(Message, frozen=True):
    """An earlier gateway's call."""

    id: RemoteId
    maybe_executed: bool


class Resumed(Message, frozen=True, tag="resumed"):
    """Answer to `Resume`: calls may follow."""

    epoch: Bytes16
    known: Ids
    """Calls that run, or whose answers follow. An unanswered call that is neither here nor in `lost` never arrived."""
    lost: Annotated[list[Fate], msgspec.Meta(max_length=MAX_REMOTE_IDS)] = msgspec.field(default_factory=list)
    """Calls that an earlier gateway had and that may have started."""
    released: U64 = 0
    """Serial of the last `RemoteRelease` that was taken in."""


class RefLeased(Message, frozen=True):
    """A lease that comes with an answer."""

    token: Token
    buffer: BufferId


class RemoteAnswer(Message, frozen=True, gc=True):
    """The outcome of a request."""

    id: RemoteId
    frames: U16
    """Payload frames, which follow in the answers' order."""
    body: Body = b""
    """The result; empty if it comes in chunks."""
    error: ErrorInfo | None = None
    leases: Annotated[list[RefLeased], msgspec.Meta(max_length=65536)] = msgspec.field(default_factory=list)
    device: int = -1
    generation: U32 = 0
    download: U64 = 0
    """Bytes of its blob, if the client has to pull that."""
    parts: U64 = 0
    """Of a stream: parts that were sent in all; 0 if it was not opened."""


class RemotePart(Message, frozen=True, gc=True):
    """One part of a stream."""

    id: RemoteId
    number: U64
    """Its place, from 0. Drop one that has come already: it is repeated after a cut."""
    frames: U16
    """Payload frames, which follow in the parts' order."""
    body: Body
    """Its value; empty if it comes in chunks."""
    nbytes: U64
    """Bytes that it counts for in the credit."""
    leases: Annotated[list[RefLeased], msgspec.Meta(max_length=65536)] = msgspec.field(default_factory=list)
    device: int = -1
    generation: U32 = 0
    download: U64 = 0
    """Bytes of its blob, if the client has to pull that."""


class RemoteParts(Message, frozen=True, tag="remote_parts", gc=True):
    """Parts of streams. A stream's end comes later, in `RemoteAnswers`."""

    epoch: Bytes16
    parts: Annotated[list[RemotePart], msgspec.Meta(max_length=1024)]
    """The parts; those of one stream are in order."""


class RemoteAnswers(Message, frozen=True, tag="remote_answers", gc=True):
    """Answers."""

    epoch: Bytes16
    answers: Annotated[list[RemoteAnswer], msgspec.Meta(max_length=1024)]
    released: U64 = 0


class RemoteTold(Message, frozen=True, tag="remote_told"):
    """The supervisor's answer to a question."""

    id: U32
    answer: session.Answer | operators.Reloaded | operators.Residents | operators.Status | operators.Inventory


class HelloWanted(Message, frozen=True, tag="hello_wanted"):
    """A message came before its connection's hello, or of another epoch; it was dropped."""


class RemotePing(Message, frozen=True, tag="remote_ping"):
    """Shows a lost connection: it fails to be sent."""


class BulkWelcome(Message, frozen=True, tag="bulk_welcome"):
    """Answer to `BulkHello`: chunks may be asked for."""


class RemoteGoodbye(Message, frozen=True, tag="remote_goodbye"):
    """The session is over, or was refused."""

    error: ErrorInfo


ToRemoteBulk = BulkWelcome | BulkWant | BulkData | HelloWanted | RemoteGoodbye
ToRemote = (
    RemoteWelcome
    | Resumed
    | RemoteAnswers
    | RemoteParts
    | RemoteTold
    | HelloWanted
    | RemotePing
    | RemoteGoodbye
    | session.DeviceChanged
    | session.IncarnationEnded
)


# --- gateway and supervisor ----------------------------------------------------------------------------------------


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the gateway's process, given as JSON when it is started: how it listens, and its limits."""

    endpoint: str
    """"tcp://HOST:PORT" as it was set, for texts."""
    listener: int
    """Descriptor of the listening socket."""
    bulk_listener: int
    """Descriptor of the listening socket for bulk connections."""
    bulk_port: int
    session_socket: str
    run_dir: str
    keys_dir: str
    """Empty for no encryption, on loopback."""
    max_sessions: int
    max_bytes: int
    """Most bytes of arguments and kept answers of all sessions."""
    grace_s: float
    max_replays: int
    control: int = -1
    """Descriptor of the socket to the supervisor."""


class KeysChanged(Message, frozen=True, tag="keys_changed"):
    """Read the admitted keys again, and end the sessions of revoked keys; answered `KeysRead`."""

    id: U32


class GatewayListens(Message, frozen=True, tag="gateway_listens"):
    """Listen: until then a gateway stands by, with everything made ready."""


class GatewayStops(Message, frozen=True, tag="gateway_stops"):
    """The pool has ended: say so to all sessions, and end."""

    why: Text


class SessionFound(Message, frozen=True, tag="session_found"):
    """Answer to `FindSession`."""

    id: U32
    found: bool


class FatesKnown(Message, frozen=True, tag="fates_known"):
    """Answer to `AskFates`: calls of former gateways have ceased to start."""

    id: U32
    started: list[RemoteId]
    """Unanswered calls that have started."""
    known_since_ns: Annotated[int, msgspec.Meta(ge=0, le=MAX_U64)]
    """CLOCK_MONOTONIC; calls that were sent earlier may have started without being listed."""


class SessionQuiet(Message, frozen=True, tag="session_quiet"):
    """Follows `FatesKnown`: calls of former gateways have ceased to run."""

    id: U32


ToGateway = KeysChanged | GatewayListens | GatewayStops | SessionFound | FatesKnown | SessionQuiet


class KeysRead(Message, frozen=True, tag="keys_read"):
    """Answer to `KeysChanged`."""

    id: U32
    error: ErrorInfo | None = None


class GatewayEvent(Message, frozen=True, tag="gateway_event"):
    """Something for the event log."""

    event: Name
    text: Text
    client: Annotated[str, msgspec.Meta(max_length=200)] = ""
    key: Annotated[str, msgspec.Meta(max_length=200)] = ""


class GatewayFigures(Message, frozen=True, tag="gateway_figures"):
    """The state of the gateway, sent when it has changed."""

    listening: bool
    sessions: list[operators.RemoteSessionStatus]
    refused: U64
    """Handshakes, hellos and messages that were refused."""


class FindSession(Message, frozen=True, tag="find_session"):
    """Ask whether a remote session is known whose gateway has ended; answered `SessionFound`."""

    id: U32
    key: Name
    session: Bytes16


class AskFates(Message, frozen=True, tag="ask_fates"):
    """Ask what has started of calls that a former gateway took along; answered `FatesKnown`, then `SessionQuiet`."""

    id: U32
    key: Name
    session: Bytes16
    unanswered: Ids


class GatewayAlive(Message, frozen=True, tag="gateway_alive"):
    """Said every second: the gateway's loop turns."""


FromGateway = KeysRead | GatewayEvent | GatewayFigures | FindSession | AskFates | GatewayAlive

FROM_REMOTE_BULK: Final[Codec[FromRemoteBulk]] = Codec(FromRemoteBulk, channel="remote bulk")
TO_REMOTE_BULK: Final[Codec[ToRemoteBulk]] = Codec(ToRemoteBulk, channel="remote bulk")
FROM_REMOTE: Final[Codec[FromRemote]] = Codec(FromRemote, channel="remote")
TO_REMOTE: Final[Codec[ToRemote]] = Codec(ToRemote, channel="remote")
TO_GATEWAY: Final[Codec[ToGateway]] = Codec(ToGateway, channel="gateway")
FROM_GATEWAY: Final[Codec[FromGateway]] = Codec(FromGateway, channel="gateway")
