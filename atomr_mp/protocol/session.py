"""Messages between a client and the supervisor, over a unix stream socket. Pure.

A frame is a 4-byte big-endian length and one msgpack message (`Framing`). The client speaks first (`Hello`) and is
answered `Welcome` or `Goodbye`; then requests may come at any time and are answered by id, and lifecycle events are
pushed. File descriptors travel beside the bytes (SCM_RIGHTS).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import (
    MAX_SESSION_MESSAGE_BYTES,
    MAX_WEIGHT,
    MIN_WEIGHT,
    U16,
    U32,
    U64,
    VERSION,
    Bytes16,
    Codec,
    ErrorInfo,
    Message,
    Name,
    Text,
    Weight,
)
from atomr_mp.protocol.data import MAX_ITEMS
from atomr_mp.protocol.refs import SlabNumber

MAX_SUSPECTS: Final = 1024
"""Most requests of a session that are told at a time of those that ran when a worker ended."""

SlabHandle = Annotated[bytes, msgspec.Meta(max_length=64)]
"""What opens a slab where no file descriptor does: a CUDA IPC handle; empty on the host backend."""


class DeviceState(StrEnum):
    """What a client may know of a device's life; the supervisor's table has the same states."""

    STARTING = "starting"
    READY = "ready"
    POISONED = "poisoned"
    HUNG = "hung"
    LOST = "lost"
    DRAINING = "draining"
    STOPPING = "stopping"
    REBUILDING = "rebuilding"
    QUARANTINED = "quarantined"
    STOPPED = "stopped"


OUT_OF_USE: Final = frozenset({DeviceState.STOPPED, DeviceState.QUARANTINED})
"""States that nothing leads out of by itself, or not soon."""


class Verdict(StrEnum):
    """What is held of a request."""

    SUSPECTED = "suspected"
    """A worker has ended while it ran, or it and others: it is run alone."""
    QUARANTINED = "quarantined"
    """It ends workers: it is refused."""
    CLEARED = "cleared"
    """Nothing, any more."""


class Window(Message, frozen=True):
    """How much may be unanswered per worker and connection; the client keeps to it, the worker checks."""

    requests: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    payload_bytes: U64


class MethodInfo(Message, frozen=True):
    """A request that an actor answers."""

    name: Name
    parameters: list[Name]
    idempotent: bool
    deadline_s: float | None
    doc: Text
    batch_items: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most requests that it runs at a time; 0 if it takes them one by one."""
    call_items: Annotated[int, msgspec.Meta(ge=0, le=MAX_ITEMS)] = 0
    """Most items that a call of it may have; 0 if none: there is a call for each."""


class ActorInfo(Message, frozen=True):
    """An actor that every device of the pool runs."""

    name: Name
    methods: list[MethodInfo]


class StandbyInfo(Message, frozen=True):
    """A process that is to be a device's next incarnation: to be connected to, and sent nothing."""

    generation: U32
    """The generation that it will have."""
    endpoint: str
    """ZeroMQ address of its data socket."""


class DeviceInfo(Message, frozen=True):
    """A device as the supervisor sees it; sent whole whenever anything in it changes."""

    index: U16
    name: Name
    state: DeviceState
    generation: U32
    """The current incarnation, 0 before the first."""
    endpoint: str
    """ZeroMQ address of the current incarnation, empty unless `admitted`."""
    admitted: bool
    """The worker has acknowledged this session: calls may be sent."""
    pid: U32
    restarts: U32
    """Unplanned ends so far."""
    reason: Text
    """Why the device is in this state, for a person; empty when ready."""
    error: ErrorInfo | None = None
    """How its last incarnation ended, if the device is stopped because of it."""
    uuid: Text = ""
    """The GPU's, "GPU-…" or "MIG-…"; empty on the host backend."""
    standby: StandbyInfo | None = None
    """What stands ready to take the current incarnation's place, if it has acknowledged this session."""


# --- client to supervisor ------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag="hello"):
    """Open a session."""

    version: U32
    client: Name
    """What the client calls itself, for logs and `status`."""
    observer: bool = False
    """The session is for questions and orders only: the workers never hear of it, and it may not call."""
    shared_memory: bool = False
    """It can open slabs, so large results may come in shared memory; otherwise all come through the socket."""
    weight: Weight = 1.0
    """How much of a busy device's time it is to get, beside other sessions; at most the pool's `max_weight`."""


class StatusRequest(Message, frozen=True, tag="status"):
    """Ask for a snapshot of the pool; answered by `Status`."""

    id: U32


class InventoryRequest(Message, frozen=True, tag="inventory"):
    """Ask for all that the supervisor knows to be there; answered by `Inventory`."""

    id: U32


class RestartRequest(Message, frozen=True, tag="restart"):
    """Replace a device's worker after it has finished what it holds; also closes an open circuit."""

    id: U32
    device: U16


class ReloadRequest(Message, frozen=True, tag="reload"):
    """Read the configuration file again, if there is one, and replace all workers, one device at a time.

    Answered at the end: by `Reloaded`, or by `Answer` with why it was given up.
    """

    id: U32


class StopRequest(Message, frozen=True, tag="stop"):
    """Stop the pool, after the workers have finished what they hold."""

    id: U32


class ListResidents(Message, frozen=True, tag="list_residents"):
    """Ask for all resident memory; answered by `Residents`."""

    id: U32


class FreeResident(Message, frozen=True, tag="free_resident"):
    """Have resident memory handed to nobody any more; answered by `Residents`, or `Answer` with an error."""

    id: U32
    name: Name
    device: U16 | None = None
    """In whose memory; nil for any."""
    version: Name | None = None
    """Which; nil for all."""
    force: bool = False
    """Also what is in use: the memory goes with its users."""


class Request(Message, frozen=True):
    """What tells one request from another."""

    method: Name
    """ "Actor.method"."""
    fingerprint: Bytes16
    """Of its method and arguments; how it is made is the client's affair, but the same for all clients."""


class AdmitRequest(Message, frozen=True, tag="admit"):
    """Admit a request again that is in quarantine; answered by `Answer`."""

    id: U32
    request: Request


class OpenSlab(Message, frozen=True, tag="open_slab"):
    """Ask for a slab in which this session has a lease; answered by `SlabOpened`, or `Answer` with an error."""

    id: U32
    device: U16
    generation: U32
    slab: SlabNumber


class RegisterSlab(Message, frozen=True, tag="register_slab"):
    """Make memory of the client known to all workers, those to come included; answered by `Answer`.

    With one file descriptor: a memfd of exactly `nbytes`, sealed against shrinking and growing.
    """

    id: U32
    slab: SlabNumber
    """Chosen by the client; grows from one registration to the next."""
    nbytes: U64


class ForgetSlab(Message, frozen=True, tag="forget_slab"):
    """Have the workers forget a registered slab. Not answered."""

    slab: SlabNumber


class LendSlab(Message, frozen=True, tag="lend_slab"):
    """Have a device's slab, in which this session has a lease, mapped by another device's workers.

    Answered by `Answer`; calls to that device may then have refs into it, whichever incarnation they go to.
    """

    id: U32
    device: U16
    generation: U32
    slab: SlabNumber
    to_device: U16


class Suspect(Message, frozen=True, tag="suspect"):
    """Say which of this session's requests are among `IncarnationEnded.suspects`; answered by `Suspicions`."""

    id: U32
    device: U16
    generation: U32
    requests: Annotated[list[Request], msgspec.Meta(max_length=MAX_SUSPECTS)]


class Acquit(Message, frozen=True, tag="acquit"):
    """A suspect has run alone, and its worker lives. Not answered."""

    request: Request


class Bye(Message, frozen=True, tag="bye"):
    """The last message: the client has closed all its mappings of slabs, so their memory need not wait for its end."""


FromClient = (
    Hello
    | StatusRequest
    | InventoryRequest
    | RestartRequest
    | ReloadRequest
    | StopRequest
    | ListResidents
    | FreeResident
    | AdmitRequest
    | OpenSlab
    | RegisterSlab
    | ForgetSlab
    | LendSlab
    | Suspect
    | Acquit
    | Bye
)


# --- supervisor to client ------------------------------------------------------------------------------------------


class Suspicion(Message, frozen=True):
    """What is held of a request."""

    request: Request
    verdict: Verdict
    ends: U32
    """How many workers have ended while it ran."""


class Welcome(Message, frozen=True, tag="welcome"):
    """The session is open."""

    version: U32
    pool: Name
    epoch: Bytes16
    supervisor_pid: U32
    session: Bytes16
    """Name of the session; see `data.routing_id`."""
    secret: Bytes16
    """The session's data connections show it by ZeroMQ PLAIN: user name `session`, password `secret`, both in hex."""
    window: Window
    devices: list[DeviceInfo]
    actors: list[ActorInfo]
    suspicions: list[Suspicion] = msgspec.field(default_factory=list)
    """What is held of requests."""
    max_replays: U16 = 0
    """How often a client sends a request again by itself, if it does not know better."""


class DeviceChanged(Message, frozen=True, tag="device"):
    """A device's new state."""

    device: DeviceInfo
    actors: list[ActorInfo] | None = None
    """What the workers offer, when it has changed."""


class IncarnationEnded(Message, frozen=True, tag="ended"):
    """An incarnation has ended, and nothing of it will answer any more.

    A request that was sent to it and not answered was never started if it is not in `started` and was sent after
    `known_since_ns`.
    """

    device: U16
    generation: U32
    planned: bool
    """The worker left by itself after it had finished what it held."""
    error: ErrorInfo
    """What the requests that were on it fail with."""
    started: list[U64]
    """This session's requests that the worker had started, as far back as `known_since_ns`."""
    known_since_ns: U64
    """CLOCK_MONOTONIC; requests sent earlier may have been started without being listed."""
    running: list[U64] = msgspec.field(default_factory=list)
    """Those of `started` that had not ended: what it died of is among them, or none of them."""
    suspects: list[U64] = msgspec.field(default_factory=list)
    """Those of this session's requests of which it may have died, if that is not known to be nobody's fault."""


class Suspicions(Message, frozen=True, tag="suspicions"):
    """What is held of requests from now on, in the order in which it came about."""

    changed: list[Suspicion]
    id: U32 = 0
    """Of the `Suspect` that this answers, 0 if it was another session's, or nobody's."""


class Answer(Message, frozen=True, tag="answer"):
    """Answer to a request by id: done, or refused with an error."""

    id: U32
    error: ErrorInfo | None = None


class Reloaded(Message, frozen=True, tag="reloaded"):
    """Answer to `ReloadRequest`: every device runs what is there now."""

    id: U32
    pending: list[Name]
    """Settings that have changed and need a restart of the pool."""


class ResidentUser(Message, frozen=True):
    """A process that uses resident memory."""

    device: U16
    generation: U32
    pid: U32


class ResidentInfo(Message, frozen=True):
    """A piece of resident memory."""

    device: U16 | None
    """Whose memory it lies in; nil for the host's, which all devices of the host backend have in common."""
    name: Name
    version: Name
    state: Name
    """"filling"; "sealed"; or "freed": handed to nobody any more, and still in use."""
    nbytes: U64
    arrays: U32
    users: list[ResidentUser]
    """Who has it mapped; while it is being filled, who fills it and who waits for it."""


class Residents(Message, frozen=True, tag="residents"):
    """Answer to `ListResidents`: all there are; to `FreeResident`: those that were freed."""

    id: U32
    residents: list[ResidentInfo]
    max_bytes: U64
    """Most that there may be in the pool; 0 for no limit."""


class SlabOpened(Message, frozen=True, tag="slab_opened"):
    """Answer to `OpenSlab`: on the host backend with one file descriptor, a sealed memfd."""

    id: U32
    nbytes: U64
    handle: SlabHandle = b""
    """On CUDA: the IPC handle of its allocation."""


class BatchStatus(Message, frozen=True):
    """What a batched method has done so far in this incarnation."""

    method: Name
    batches: U64
    items: U64
    wait_s: float
    """How long the items have waited for their batches, in all."""
    longest_wait_s: float
    sizes: list[U64]
    """How many batches had 1, 2, 3-4, 5-8, ... 513-1024 items."""


class EndCount(Message, frozen=True):
    """How often a device's incarnations have ended for a reason."""

    cause: Name
    """"recycle", "reload", "restart" or "stop" where that was wanted; else an error's code, "exit", or a signal's name
    in small letters."""
    count: U64


class Figures(Message, frozen=True):
    """What a device has done since the pool's start, in all its incarnations."""

    received: U64
    """Requests that a worker has taken."""
    answered: U64
    """Of those: with a result."""
    failed: U64
    """With an error of the request."""
    cancelled: U64
    """Before they started."""
    expired: U64
    """Their deadline had passed before they started."""
    rejected: U64
    """Answered with an error and never received: no such method, or of another incarnation."""
    lost: U64
    """Received by a worker that ended before it had answered."""
    latency_ns: U64
    """Sum of all that `latencies` counts."""
    latencies: list[U64]
    """From arrival to answer: the N-th, from 0, counts what took less than 2^N ns and not less than half of it."""
    ends: list[EndCount]


NOTHING_DONE: Final = Figures(0, 0, 0, 0, 0, 0, 0, 0, [], [])


class StandbyStatus(Message, frozen=True):
    """What stands behind a device's worker."""

    mode: Name
    """How the pool was started: "hot", "warm" or "none"."""
    state: Name
    """Of the process on standby: "ready", "starting", "failed" (it was tried too often), or "none"."""
    pid: U32
    generation: U32
    """The generation that it will have, 0 if there is none."""
    restarts: U32
    """Standbys that have ended and were never needed."""
    next_fault_costs_ms: float | None
    """How long the device would take no calls, by what was measured since the pool's start; nil if nothing was."""
    note: Text = ""
    """What an operator should know of it."""


class WorkerStatus(Message, frozen=True):
    """A device in a status snapshot."""

    device: DeviceInfo
    queue_depth: U64
    started: U64
    completed: U64
    refused: U64
    """Messages refused: unknown peers, undecodable bytes, exceeded windows."""
    running: U32
    """Requests that run now."""
    running_for_s: float
    """Age of the oldest of them."""
    started_at: float
    """Start of the process, seconds since the epoch."""
    memory_bytes: U64
    """Resident memory of the process."""
    notes: list[Text] = msgspec.field(default_factory=list)
    """What an operator should know of the device, as it was when the pool was started."""
    batches: list[BatchStatus] = msgspec.field(default_factory=list)
    """Of each batched method, in the order of actors and methods."""
    slab_bytes: U64 = 0
    """Device memory of the slabs in which buffers lie."""
    leases: U64 = 0
    """How often sessions hold buffers in them."""
    figures: Figures = NOTHING_DONE
    last_fault: Text = ""
    """How an incarnation last ended that was not to, or why there is none; empty if that has never happened."""
    last_fault_at: float = 0.0
    """When, in seconds since the epoch."""
    standby: StandbyStatus | None = None
    """What stands behind its worker."""


class EndedIncarnation(Message, frozen=True):
    """Where a worker has ended."""

    device: U16
    generation: U32


class QuarantinedRequest(Message, frozen=True):
    """A request that is refused, for it ends workers."""

    request: Request
    since: float
    """When that was found, in seconds since the epoch."""
    ends: U32
    """How many workers have ended while it ran."""
    where: list[EndedIncarnation]
    """The last of these, oldest first."""


class Status(Message, frozen=True, tag="status"):
    """Answer to `StatusRequest`."""

    id: U32
    pool: Name
    backend: Name
    version: Name
    supervisor_pid: U32
    supervisor_started_at: float
    supervisor_memory_bytes: U64
    stopping: bool
    sessions: U32
    """Clients that may call; observers, like the one that asks, are not counted."""
    refused: U64
    """Sessions refused since the start: another user, another version, bytes that were no message."""
    workers: list[WorkerStatus]
    resident_bytes: U64 = 0
    """Resident memory, of all devices together."""
    quarantined: list[QuarantinedRequest] = msgspec.field(default_factory=list)
    """Requests that are refused, in the order in which they were last heard of."""


class ProcessHeld(Message, frozen=True):
    """A process that the supervisor has started, or had as a child before it was one, and has not reaped."""

    role: Name
    """"worker"; "standby"; "predecessor", whose place it has taken; "stuck", killed and not ended; "zygote"; "reserve",
    made ahead; "helper"; "process from before the pool", which its process had as a child and leaves alone."""
    pid: U32
    start_ticks: U64
    """Field 22 of /proc/PID/stat, so that a later process of this pid is not taken for it."""
    device: U16 | None = None
    generation: U32 = 0
    slab_bytes: U64 = 0
    """What its board says that its slabs take."""
    leases: U64 = 0
    """How often sessions hold buffers in them."""
    running: U32 = 0
    """Requests that run: while they do, they may have made memory that the board does not show yet."""


class SessionHeld(Message, frozen=True):
    """A session that lives, or whose memory was not given back yet."""

    number: U32
    client: Name
    pid: U32
    """The client's process; 0 if nobody waits for that."""
    state: Name
    """"calls"; "observes"; "connects", before its hello; "ended"."""
    weight: Weight = 1.0
    """See `Hello`."""


class Inventory(Message, frozen=True, tag="inventory"):
    """Answer to `InventoryRequest`: what there has to be, besides the supervisor itself."""

    id: U32
    epoch: Bytes16
    backend: Name
    processes: list[ProcessHeld]
    sessions: list[SessionHeld]
    memfds: list[U64]
    """Inodes of the memory of which the supervisor keeps a descriptor: clients' own slabs, and what was lent."""
    complete: bool
    """No sessions or descriptors are left out of it, as they are where there are very many."""


class Goodbye(Message, frozen=True, tag="goodbye"):
    """The supervisor ends this session; its end of file follows."""

    error: ErrorInfo


FromSupervisor = (
    Welcome
    | DeviceChanged
    | IncarnationEnded
    | Suspicions
    | Answer
    | Reloaded
    | Status
    | Residents
    | SlabOpened
    | Inventory
    | Goodbye
)

FROM_CLIENT: Final[Codec[FromClient]] = Codec(FromClient, channel="session")
FROM_SUPERVISOR: Final[Codec[FromSupervisor]] = Codec(FromSupervisor, channel="session")


def from_client(message: bytes) -> FromClient:
    """Return the message in `message`.

    Raises:
        ProtocolError: It is none; of a hello of another version, whose other fields may differ, that is the reason.
    """
    try:
        return FROM_CLIENT.decode(message)
    except errors.ProtocolError:
        try:
            hello = _HELLO_VERSION.decode(message)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass
        else:
            check_version(hello.version)
        raise


class _HelloVersion(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """What a hello of any version begins with."""

    version: U32


_HELLO_VERSION: Final = msgspec.msgpack.Decoder(_HelloVersion)


def check_version(version: int) -> None:
    """Raise `ProtocolError` unless the peer speaks our version."""
    if version != VERSION:
        raise errors.ProtocolError(
            f"the peer speaks protocol version {version}, this is version {VERSION}; install the same release on "
            "both sides"
        )


def check_weight(weight: float, most: float = MAX_WEIGHT) -> None:
    """Raise `InvalidRequest` unless a session may have this weight, where `most` is the largest that one may."""
    try:
        fits = MIN_WEIGHT <= float(weight) <= most  # which NaN is not
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        limit = "" if most == MAX_WEIGHT else ", as this pool's max_weight says"
        raise errors.InvalidRequest(f"a client's weight must be from {MIN_WEIGHT:g} to {most:g}{limit}; got {weight!r}")


class Framing:
    """Cuts a byte stream into messages; holds at most one incomplete message."""

    def __init__(self, limit_bytes: int = MAX_SESSION_MESSAGE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that `data` completes.

        Raises:
            ProtocolError: A frame announces more than the limit; the stream cannot be used any further.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._limit_bytes:
                raise errors.ProtocolError(f"a frame of {length} bytes; the limit is {self._limit_bytes}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            message = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield message


def frame(message: bytes) -> bytes:
    """Return `message` with its length in front."""
    return _LENGTH.pack(len(message)) + message


_LENGTH: Final = struct.Struct(">I")
