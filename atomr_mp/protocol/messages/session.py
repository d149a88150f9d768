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
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages.devices import ActorInfo, DeviceInfo
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
)
from atomr_mp.protocol.messages.suspects import Acquit, Suspect, Suspicion, Suspicions
from atomr_mp.protocol.refs import SlabNumber

SlabHandle = Annotated[bytes, msgspec.Meta(max_length=64)]
"""What opens a slab where no file descriptor does: a CUDA IPC handle; empty on the host backend."""


MAX_REMOTE_ID: Final = 2**53
"""The largest id of a remote client's call; what the gateway itself asks of workers has larger ones."""


class RemoteOrigin(Message, frozen=True):
    """For whom on another machine a session of the gateway is."""

    key: Name
    """The name of the client's key."""
    session: Bytes16
    """The remote session's id; ids of its calls are those of the requests."""


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
    origin: RemoteOrigin | None = None
    """For whom on another machine it is; nil if for the process itself."""


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


class Reach(Message, frozen=True, tag="reach"):
    """How the client's connections to a worker that lives fare. Not answered."""

    device: U16
    generation: U32
    failures: U32
    """How many in a row have failed on one of its lanes; 0 if it has one again."""


class ResultsRead(Message, frozen=True, tag="results_read"):
    """Of an incarnation that has ended: its large results were read, or are not wanted. Not answered."""

    device: U16
    generation: U32


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
    | ReadKeys
    | OpenSlab
    | RegisterSlab
    | ForgetSlab
    | LendSlab
    | Suspect
    | Acquit
    | Reach
    | ResultsRead
    | Bye
)


# --- supervisor to client ------------------------------------------------------------------------------------------


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


class IncarnationStopped(Message, frozen=True, tag="stopped"):
    """Nothing of an incarnation runs any more, and its end will be told: its connections are not closed yet.

    What it had answered may still be on its way; of all else it is known already what will become of it.
    """

    ended: IncarnationEnded
    """What will be told then."""


class Answer(Message, frozen=True, tag="answer"):
    """Answer to a request by id: done, or refused with an error."""

    id: U32
    error: ErrorInfo | None = None


class SlabOpened(Message, frozen=True, tag="slab_opened"):
    """Answer to `OpenSlab`: on the host backend with one file descriptor, a sealed memfd."""

    id: U32
    nbytes: U64
    handle: SlabHandle = b""
    """On CUDA: the IPC handle of its allocation."""


class Goodbye(Message, frozen=True, tag="goodbye"):
    """The supervisor ends this session; its end of file follows."""

    error: ErrorInfo


FromSupervisor = (
    Welcome
    | DeviceChanged
    | IncarnationStopped
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
