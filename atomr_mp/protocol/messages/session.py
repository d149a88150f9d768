"""Messages between a client and the supervisor, over a unix stream socket. Pure.

A frame is a 4-byte big-endian length and one msgpack message (`Framing`). The client speaks first (`Hello`) and is
answered `Welcome` or `Goodbye`; then requests may come at any time and are answered by id, and lifecycle events are
pushed. File descriptors travel beside the bytes (SCM_RIGHTS).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import (
    MAX_DEVICES,
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
    Weight,
)
from atomr_mp.protocol.decoders import decoder
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages.devices import ActorInfo, DeviceInfo, WorldInfo
from atomr_mp.protocol.messages.operators import (
    AdmitRequest,
    FreeResident,
    Inventory,
    InventoryRequest,
    ListResidents,
    ReadKeys,
    Reloaded,
    ReloadRequest,
    Residents,
    RestartRequest,
    Status,
    StatusRequest,
    StopRequest,
    TraceBegun,
    TraceRequest,
    TraceRing,
)
from atomr_mp.protocol.messages.suspects import Acquit, Suspect, Suspicion, Suspicions
from atomr_mp.protocol.refs import SlabNumber

SlabHandle = Annotated[bytes, msgspec.Meta(max_length=64)]
"""Opens a slab without a file descriptor: a CUDA IPC handle; empty on the host backend."""


class RemoteOrigin(Message, frozen=True):
    """The remote client that a session serves."""

    key: Name
    """Name of the client's key."""
    operate: bool = True
    """Whether the key may give orders, and is shown tracebacks; see `rights`."""
    kernels: bool = False
    """Whether the key may use kernels of its own where clients of the pool's machine may; see `rights`."""


class SessionProof(Message, frozen=True):
    """The session with which a connection goes on, as its `Welcome` has named it."""

    session: Bytes16
    secret: Bytes16


# --- client to supervisor ------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag="hello"):
    """Open a session; the first message."""

    version: U32
    """2; any other is answered with `Goodbye`."""
    client: Name
    """For logs and status."""
    observer: bool = False
    """Questions and orders only: no calls, and the workers do not hear of this session."""
    shared_memory: bool = False
    """This client can open slabs (`OpenSlab`): large arrays in results may come as refs."""
    weight: Weight = 1.0
    """Share of a busy device's time, relative to other sessions; above the pool's `max_weight`: `Goodbye` with
    `invalid_request`."""
    origin: RemoteOrigin | None = None
    """Set by the relay, from the client's key."""
    slab_offers: bool = False
    """Send `SlabOffered`: this client maps slabs before it needs them."""
    probe: bool = False
    """An operator's session, though it calls, as that of `atomr-mp ready`: it may take the room kept for operators."""
    resume: SessionProof | None = None
    """Go on with a session whose connection has ended: answered by `Welcome`, the session's `SlabKept`, the ends of
    incarnations that it may have missed, and `SessionResumed`; or by `Goodbye` with `session_lost`."""


class OpenSlab(Message, frozen=True, tag="open_slab"):
    """Ask for a slab of a device in which this session has a lease, to map it.

    Answered by `SlabOpened`; `gpu_ref_stale` if the incarnation ends first; `overloaded` above 256 unanswered
    `OpenSlab` and `LendSlab`. A worker that is busy in an actor's method answers after it. Say `Bye` once all is
    unmapped, or before, with `mapped`: until then, or until the client's process ends, the memory is not used for
    anything else.
    """

    id: U32
    device: U16
    generation: U32
    slab: SlabNumber
    """Number of the slab, from the ref."""


class RegisterSlab(Message, frozen=True, tag="register_slab"):
    """Make memory of the client known to all workers, present and future, for arguments of this session's calls.

    With one file descriptor: a memfd of exactly `nbytes`, at least one, sealed against shrinking and growing
    (F_SEAL_SHRINK, F_SEAL_GROW); else `invalid_request`. Refer to the slab after the answer. `overloaded` if the
    session has 256 slabs registered, the supervisor no descriptors to spare, or a worker is too far behind.
    """

    id: U32
    slab: SlabNumber
    """Chosen by the client; growing, never used twice in a session."""
    nbytes: U64


class ForgetSlab(Message, frozen=True, tag="forget_slab"):
    """Have the workers forget a registered slab. Not answered; an unknown number is ignored."""

    slab: SlabNumber


class LendSlab(Message, frozen=True, tag="lend_slab"):
    """Have a device's slab, in which this session has a lease, mapped by another device's workers.

    The present incarnation and all that follow map it, until the slab's own incarnation or the session ends. After the
    answer, calls to that device may have refs into the slab. `gpu_ref_stale` if the slab's incarnation has ended;
    `overloaded` as for `RegisterSlab`.
    """

    id: U32
    device: U16
    generation: U32
    slab: SlabNumber
    to_device: U16
    """The device that maps it."""


class MakeWorld(Message, frozen=True, tag="make_world"):
    """Make a world of this session, for collectives on refs. It ends with `CloseWorld`, or with the session.

    Answered `WorldMade`, behind the world's first `WorldChanged`. `invalid_request` if a device does not exist or is
    named twice; `overloaded` if the session or the pool has as many worlds as may be, or the supervisor no descriptors
    to spare.
    """

    id: U32
    devices: Annotated[list[U16], msgspec.Meta(min_length=1, max_length=MAX_DEVICES)]
    """Its devices, by rank."""


class CloseWorld(Message, frozen=True, tag="close_world"):
    """End a world that this session has made; what its ranks have begun runs to its end. An unknown one is ignored."""

    id: U32
    world: U32


class Reach(Message, frozen=True, tag="reach"):
    """Report the latest attempt to restore a lost data connection to a worker that lives. Not answered."""

    device: U16
    generation: U32
    failures: U32
    """Failed attempts in a row on one lane; 0 after a success."""


class ResultsRead(Message, frozen=True, tag="results_read"):
    """Have the supervisor free what it keeps of an ended incarnation's large results. Not answered."""

    device: U16
    generation: U32


class ClientAway(Message, frozen=True, tag="client_away"):
    """Tell whether the remote client can be reached. Said by the relay in its place. Not answered."""

    away: bool


class Bye(Message, frozen=True, tag="bye"):
    """End the session. The supervisor closes the connection, and memory of slabs is free at once.

    Say it also after a `Goodbye`: only then it is known that no slabs are mapped.
    """

    mapped: bool
    """Whether some are mapped still. Then their memory is free, and the supervisor closes the connection, when you
    close it: do so once all are unmapped."""


FromClient = (
    Hello
    | StatusRequest
    | InventoryRequest
    | RestartRequest
    | ReloadRequest
    | TraceRequest
    | StopRequest
    | ListResidents
    | FreeResident
    | AdmitRequest
    | ReadKeys
    | OpenSlab
    | RegisterSlab
    | ForgetSlab
    | LendSlab
    | MakeWorld
    | CloseWorld
    | Suspect
    | Acquit
    | Reach
    | ResultsRead
    | ClientAway
    | Bye
)


# --- supervisor to client ------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, tag="welcome"):
    """The session is open."""

    version: U32
    pool: Name
    epoch: Bytes16
    """Part of every token."""
    supervisor_pid: U32
    session: Bytes16
    """The session's name; part of every routing id."""
    secret: Bytes16
    """Shown by the session's data connections by ZeroMQ PLAIN: user name `session`, password `secret`, both in hex."""
    window: Window
    """The credit, per device and connection."""
    devices: list[DeviceInfo]
    """All, by index."""
    actors: list[ActorInfo]
    """Empty until the first worker is ready; a `DeviceChanged` brings them."""
    suspicions: list[Suspicion] = msgspec.field(default_factory=list)
    max_replays: U16 = 0
    """How often a client may send a started request again by itself."""
    worlds: list[WorldInfo] = msgspec.field(default_factory=list)
    """The pool's, by number."""


class DeviceChanged(Message, frozen=True, tag="device"):
    """A device has changed."""

    device: DeviceInfo
    """All of it, as it is now."""
    actors: list[ActorInfo] | None = None
    """Nil if they have not changed."""


class WorldChanged(Message, frozen=True, tag="world"):
    """A world of the pool, or of this session, has changed.

    It comes before the `IncarnationEnded` that has ended the world's epoch.
    """

    world: WorldInfo
    """All of it, as it is now."""


class IncarnationEnded(Message, frozen=True, tag="ended"):
    """An incarnation has ended; nothing answers once what the kernel still holds has been read.

    Every unanswered request to it has failed with `error`. It was never started if it is not in `started` **and** was
    sent after `known_since_ns`; any other may have run.
    """

    device: U16
    generation: U32
    planned: bool
    """It left by itself, after it had finished what it held."""
    error: ErrorInfo
    started: list[U64]
    """This session's started requests, as far back as `known_since_ns`."""
    known_since_ns: U64
    """CLOCK_MONOTONIC."""
    running: list[U64] = msgspec.field(default_factory=list)
    """Those in `started` that had not ended. A request that caused the end is among them."""
    suspects: list[U64] = msgspec.field(default_factory=list)
    """This session's requests that it may have died of; empty if the end was asked for."""


class IncarnationStopped(Message, frozen=True, tag="stopped"):
    """Requests have ceased to run on an incarnation, but its connections are still open.

    Its process or its memory is still being taken down. Comes before the `IncarnationEnded` that it holds, or not at
    all.
    """

    ended: IncarnationEnded
    sends: bool = False
    """Whether it may still send answers that clients have not read fast enough."""


class Answer(Message, frozen=True, tag="answer"):
    """The request was done or the order was taken, unless there is an error."""

    id: U32
    error: ErrorInfo | None = None


class SlabOpened(Message, frozen=True, tag="slab_opened"):
    """Answer to `OpenSlab`.

    On the host backend with one file descriptor: a memfd, sealed against shrinking and growing. Check its size and
    seals before mapping it.
    """

    id: U32
    nbytes: U64
    handle: SlabHandle = b""
    """On CUDA, the IPC handle of the allocation, instead of a descriptor."""


class WorldMade(Message, frozen=True, tag="world_made"):
    """Answer to `MakeWorld`."""

    id: U32
    world: U32


class SlabOffered(Message, frozen=True, tag="slab_offered"):
    """A standby has made a slab for this session's large results. Only with `Hello.slab_offers`.

    With one file descriptor, as `SlabOpened`: map it now, and the first large results after a takeover need no
    `OpenSlab`. Once the standby has taken over, name the slab in a `Release` when it is unmapped. Unmap it when neither
    the device nor its `standby` has this generation.
    """

    device: U16
    generation: U32
    """The standby's."""
    slab: SlabNumber
    nbytes: U64


class SlabKept(Message, frozen=True, tag="slab_kept"):
    """A slab that this session has registered, for the connection that goes on with it. With one file descriptor."""

    slab: SlabNumber
    nbytes: U64


class LivingIncarnation(Message, frozen=True):
    """An incarnation that has not ended."""

    device: U16
    generation: U32


class SessionResumed(Message, frozen=True, tag="resumed"):
    """The session goes on. Comes after all `IncarnationEnded` that may have been missed; `Welcome` has the devices.

    An incarnation that is not `living`, and whose `IncarnationEnded` never came, has ended: all unanswered requests to
    it may have run.
    """

    living: list[LivingIncarnation]
    """All incarnations that live."""


class TraceChanged(Message, frozen=True, tag="traced"):
    """The pool is traced from now on, or no more: calls say when they were made, see `Call.submitted_ns`."""

    on: bool


class Goodbye(Message, frozen=True, tag="goodbye"):
    """The supervisor ends this session; end of file follows."""

    error: ErrorInfo


FromSupervisor = (
    Welcome
    | DeviceChanged
    | WorldChanged
    | IncarnationStopped
    | IncarnationEnded
    | Suspicions
    | Answer
    | Reloaded
    | Status
    | Residents
    | SlabOpened
    | WorldMade
    | SlabOffered
    | SlabKept
    | SessionResumed
    | Inventory
    | TraceBegun
    | TraceRing
    | TraceChanged
    | Goodbye
)

FROM_CLIENT: Final[Codec[FromClient]] = Codec(FromClient, channel="session")
FROM_SUPERVISOR: Final[Codec[FromSupervisor]] = Codec(FromSupervisor, channel="session")


def from_client(message: bytes) -> FromClient:
    """Return the message in `message`.

    Raises:
        ProtocolError: It is not a message; of a hello of another version, whose other fields may differ, that is the
            reason.
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
    """The beginning of a hello of any version."""

    version: U32


_HELLO_VERSION: Final = decoder(_HelloVersion)


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
        if isinstance(weight, str | bytes | bool):
            raise TypeError
        fits = MIN_WEIGHT <= float(weight) <= most  # a NaN does not fit
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
