"""Messages between the supervisor and a worker, over a SOCK_SEQPACKET socket pair: one packet, one message. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, Literal

import msgspec

from atomr_mp.protocol.codec import MAX_DEVICES, U16, U32, U64, Bytes16, Codec, ErrorInfo, Message, Name, Text, Weight
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages.devices import ActorInfo
from atomr_mp.protocol.messages.session import SlabHandle
from atomr_mp.protocol.raised import LogErrors
from atomr_mp.protocol.refs import SlabNumber

Checksum = Annotated[bytes, msgspec.Meta(max_length=64)]
"""Checksum of resident memory's content; empty if there is none."""


MAX_USED: Final = 512
"""Methods of libraries that a worker tells of."""

UsedMethods = Annotated[list[Name], msgspec.Meta(max_length=MAX_USED)]

MAX_READERS: Final = 64
"""Most sessions for which a standby is to have slabs."""

MAX_MODULES: Final = 4096
"""Modules imported by requests that are remembered of a device."""

MAX_MODULES_AT_A_TIME: Final = 256
"""Modules in one message."""


MAX_WORLD_ACTORS: Final = 64
"""Actors of one world."""

MAX_LIMIT_S: Final = 1e9
"""The longest limit that an example is given."""


class ImportedModule(Message, frozen=True):
    """A module that a request has imported from a file."""

    name: Name
    file: Bytes16
    """A digest of the file's path: elsewhere the name may mean another file."""


ImportedModules = Annotated[list[ImportedModule], msgspec.Meta(max_length=MAX_MODULES_AT_A_TIME)]
"""Those that have imported others come before these."""


class ActorSpec(Message, frozen=True):
    """A user's actor, named, never pickled."""

    name: Name
    target: Text
    """"package.module:Class" or "path/to/file.py:Class", an absolute path."""
    devices: Annotated[tuple[U16, ...], msgspec.Meta(max_length=MAX_DEVICES)] = ()
    """The devices that have it, in order; empty for all."""
    in_world: bool = False
    """Whether it belongs to a world, so that all of its processes have to have the same code."""


class Execution(Message, frozen=True):
    """Settings for a worker's use of its device; `PoolSettings` has the fields of the same names."""

    memory_bytes: U64
    streams: Name
    completion: Name
    inline_bytes: U64
    max_queue: U64 = 2**62
    hang_timeout_s: float = 0.0
    stall_s: float = 0.0
    """How long a stream may lack credit; 0: no limit."""
    log_errors: LogErrors = "full"
    """What the worker's log shows of exceptions that methods raise."""


# --- supervisor to worker ------------------------------------------------------------------------------------------


class Start(Message, frozen=True, tag="start"):
    """Become a worker, or a standby: the first message, except for `Prepare`."""

    pool: Name
    epoch: Bytes16
    device: U16
    name: Name
    backend: Name
    generation: U32
    endpoint: Text
    """ZeroMQ address to bind."""
    actors: list[ActorSpec]
    window: Window
    execution: Execution
    standby: bool = False
    """Do all that comes before `Ready`, and answer handshakes, but read no calls before `Promote`."""
    gpu: U16 = 0
    """Position of the device's GPU among the pool's."""
    worker: U16 = 0
    """Number of the device among those of its GPU."""
    workers_per_gpu: U16 = 1
    """How many devices its GPU has."""


class Prepare(Message, frozen=True, tag="prepare"):
    """Import modules that will be needed. Comes before `Start`, maybe long before. No answer."""

    backend: Name
    """The device whose driver to start up, without taking anything of the device."""
    actors: list[ActorSpec]
    """The actors whose modules to import. What cannot be done is tried again after `Start`, which tells why."""


class Promote(Message, frozen=True, tag="promote"):
    """Take calls: what was a standby is the device's worker now. May come before it is ready.

    With one file descriptor if the worker before it was killed and has not ended: its pidfd. `IncarnationOver` follows.
    """


class MakeReady(Message, frozen=True, tag="make_ready"):
    """To a standby: have ready what the device's worker is used for, as it has said (`Used`). No answer."""

    methods: UsedMethods
    slabs: U16
    results: U16
    readers: Annotated[list[U32], msgspec.Meta(max_length=MAX_READERS)] = msgspec.field(default_factory=list)


class ImportAhead(Message, frozen=True, tag="import_ahead"):
    """Import what requests have imported in the device's processes before (`Imported`). Answered by `Importing`.

    A process that is not ready does so first; one that takes calls does not.
    """

    modules: ImportedModules
    more: bool = False
    """Whether further ones follow, without which a process is not ready."""


class SessionOpened(Message, frozen=True, tag="session_opened"):
    """Admit a client; answered `SessionAdmitted`. May come before the worker is ready."""

    number: U32
    """The session's short name on this channel and on the board."""
    session: Bytes16
    secret: Bytes16
    shared_memory: bool = False
    """Large results may go by shared memory."""
    weight: Weight = 1.0
    """Its share, beside other sessions with requests waiting."""
    group: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Sessions of one group, as those of a remote client's key, share one weight; empty for none."""
    pid: U32 = 0
    """The client's process, for messages about it."""
    tracebacks: bool = True
    """Whether errors show it tracebacks."""
    relayed: bool = False
    """Whether what it sends comes through a relay, which may stand still for a while."""
    no_kernels: Annotated[str, msgspec.Meta(max_length=400)] = ""
    """Why it may not compile, load or launch kernels of its own; empty if it may."""


class SessionEnded(Message, frozen=True, tag="session_ended"):
    """Discard the session's undecoded requests and refuse its routing ids for ever; answered `SessionClosed`.

    The session's memory stays until `Reclaim`.
    """

    number: U32


class SessionUnmapped(Message, frozen=True, tag="session_unmapped"):
    """The session goes on, and the process that had mapped slabs for its client has ended: count none as opened."""

    number: U32


class SessionAway(Message, frozen=True, tag="session_away"):
    """The client of a session cannot be reached just now, or is back: away, it holds up no planned end."""

    number: U32
    away: bool


class Reclaim(Message, frozen=True, tag="reclaim"):
    """Free what only this session held: no worker works for it now, and its process cannot reach the memory."""

    number: U32


class ExportSlab(Message, frozen=True, tag="export_slab"):
    """Hand out a slab in which the session has a lease, and count it as opened; answered `SlabExported`."""

    id: U32
    number: U32
    """The session."""
    slab: SlabNumber
    to_device: U16 | None = None
    """The device whose worker will map it; None for the client."""


class ResultSlabOpened(Message, frozen=True, tag="result_slab_opened"):
    """A client has got a slab that was handed in (`ResultSlab`): count it as opened. Not answered."""

    number: U32
    """The session."""
    slab: SlabNumber


class ClientSlab(Message, frozen=True, tag="client_slab"):
    """Memory of a client, for arguments of its calls. With one file descriptor, a memfd."""

    number: U32
    slab: SlabNumber
    nbytes: U64


class ClientSlabForgotten(Message, frozen=True, tag="client_slab_forgotten"):
    """The client has no further use for it."""

    number: U32
    slab: SlabNumber


class ForeignSlab(Message, frozen=True, tag="foreign_slab"):
    """Another device's slab, for arguments of this session's calls. With one file descriptor on the host backend."""

    number: U32
    device: U16
    generation: U32
    slab: SlabNumber
    nbytes: U64
    handle: SlabHandle


class IncarnationOver(Message, frozen=True, tag="incarnation_over"):
    """Another incarnation has ended.

    Of another device: close what was mapped of it, and count it as a holder no more. Of this one: the predecessor's
    memory is back.
    """

    device: U16
    generation: U32


class ResidentAnswer(Message, frozen=True):
    """Answer to `ResidentWanted`, one of those below."""

    name: Name
    version: Name


class ResidentFill(ResidentAnswer, frozen=True, tag="resident_fill"):
    """Make it and fill it; answered `ResidentSealed` or `ResidentAbandoned`."""


class ResidentAdopt(ResidentAnswer, frozen=True, tag="resident_adopt"):
    """It is there. With one file descriptor."""

    checksum: Checksum


class ResidentRefused(ResidentAnswer, frozen=True, tag="resident_refused"):
    """There is none for this process."""

    error: ErrorInfo


class WorldFileKind(IntEnum):
    """Kinds of descriptors that the members of a world share."""

    STOP = 0
    """The memory of the stop word, to be read only."""
    MEMORY = 1
    """The memory of one process, see `protocol.world.memory`. Others map it read-only."""
    LOOP_BELL = 2
    """An eventfd that wakes the loop of a process."""
    THREAD_BELL = 3
    """An eventfd that wakes the thread on which a process runs the world's calls."""
    MAILBOX = 4
    """Memory on a device in which another process takes part in collectives, as that process has sent it."""


class WorldFile(Message, frozen=True, tag="world_file"):
    """A file of a world, of this process or of another one. With one descriptor.

    Mailboxes (`WorldMailbox`) are those of other ranks. They come as soon as they are there, to standbys too.
    """

    world: U32
    rank: U16
    generation: U32
    """The process that it belongs to."""
    kind: WorldFileKind


class WorldOffered(Message, frozen=True, tag="world_offered"):
    """This process is a member, or the standby of one. Comes behind its own files. No answer.

    It comes before `Start`, or later, if a session makes the world then.
    """

    world: U32
    """Names the world on this channel and in calls."""
    name: Name
    rank: U16
    size: U16
    generation: U32
    """This process."""
    actors: Annotated[list[Name], msgspec.Meta(max_length=MAX_WORLD_ACTORS)]
    """The actors that run on the world's thread, by name. Without any, its calls are collectives on refs."""
    begin_timeout_s: float
    """Time within which each member has to begin an entry that was published."""
    session: U32 = 0
    """Number of the session that has made it, whose calls alone are taken; 0 for a world of the pool."""
    devices: Annotated[list[U16], msgspec.Meta(max_length=MAX_DEVICES)] = msgspec.field(default_factory=list)
    """The devices by rank. `IncarnationOver` names them: mailboxes are given back with their process."""
    engine: Literal["mailboxes", "nccl"] = "mailboxes"
    """What collectives on GPUs go through. With NCCL a mailbox is a page in the host's memory."""
    spares: bool = False
    """Whether standbys form communicators of NCCL ahead."""


class JoinEpoch(Message, frozen=True, tag="join_epoch"):
    """Join an epoch: calls of the world may come. Behind the files of all its members; answered `EpochJoined`."""

    world: U32
    epoch: U64
    generations: Annotated[list[U32], msgspec.Meta(max_length=MAX_DEVICES)]
    """The processes of its members, by rank."""


class CloseEpoch(Message, frozen=True, tag="close_epoch"):
    """An epoch ends as planned: rank 0 publishes its last entry, and each member leaves behind that by itself.

    A call that was not published is answered `CollectiveAborted` with `planned`. A stream whose reader takes nothing is
    ended. Answered `EpochLeft` by all; before that rank 0 says who holds the epoch (`EpochHeld`).
    """

    world: U32
    epoch: U64


class DepartEpoch(Message, frozen=True, tag="depart_epoch"):
    """Leave an epoch, which is over: begin nothing more, and answer all of its calls. Answered `EpochLeft`."""

    world: U32
    epoch: U64
    rank: Annotated[int, msgspec.Meta(ge=-1, lt=MAX_DEVICES)] = -1
    """The rank where its end came from, -1 if from none."""
    cause: Annotated[str, msgspec.Meta(max_length=2000)] = ""


class WithdrawWorld(Message, frozen=True, tag="withdraw_world"):
    """A world of a session is over: close its files, and end its thread. This process is in none of its epochs."""

    world: U32


class Trace(Message, frozen=True, tag="trace"):
    """Record the requests that begin from now on, or no more. With one file descriptor if `on`: a ring. No answer.

    It comes before `Ready` if the pool is traced when this process starts.
    """

    on: bool


class Drain(Message, frozen=True, tag="drain"):
    """Finish what has been received, answer it, and exit with status 0."""

    waited_for: bool
    """Whether nothing takes calls before that, so that a stream whose reader takes nothing is ended."""


class Rebind(Message, frozen=True, tag="rebind"):
    """Bind the data socket anew, at the same path: its file was removed. Connections stay. No answer."""


class NamedPart(Message, frozen=True):
    """A process's part of a call of a world."""

    world: U32
    session: U32
    gang: U64


class RefusePart(Message, frozen=True, tag="refuse_part"):
    """A part that waits for its memory, behind calls that wait for this one on other devices: refuse it."""

    part: NamedPart


FromSupervisor = (
    Start
    | Rebind
    | SessionOpened
    | SessionEnded
    | SessionUnmapped
    | SessionAway
    | Reclaim
    | ExportSlab
    | ResultSlabOpened
    | ClientSlab
    | ClientSlabForgotten
    | ForeignSlab
    | IncarnationOver
    | Promote
    | MakeReady
    | ImportAhead
    | ResidentFill
    | ResidentAdopt
    | ResidentRefused
    | WorldFile
    | WorldOffered
    | JoinEpoch
    | CloseEpoch
    | DepartEpoch
    | WithdrawWorld
    | RefusePart
    | Trace
    | Drain
    | Prepare
)


# --- worker to supervisor ------------------------------------------------------------------------------------------


class WorldCode(Message, frozen=True):
    """The code that a process has for the actors of a world."""

    world: U32
    code: Annotated[bytes, msgspec.Meta(max_length=16)]
    """A digest. Only processes with equal ones meet in an epoch."""


class Ready(Message, frozen=True, tag="ready"):
    """All actors are set up and the data socket is bound."""

    actors: list[ActorInfo]
    worlds: Annotated[list[WorldCode], msgspec.Meta(max_length=MAX_DEVICES)] = msgspec.field(default_factory=list)


class SessionAdmitted(Message, frozen=True, tag="session_admitted"):
    """Calls of the session will be taken."""

    number: U32


class SessionClosed(Message, frozen=True, tag="session_closed"):
    """Nothing of the session runs or will be started; what was mapped for it is closed."""

    number: U32


class SlabExported(Message, frozen=True, tag="slab_exported"):
    """Answer to `ExportSlab`. On the host backend with one file descriptor, unless there is an error."""

    id: U32
    nbytes: U64
    handle: SlabHandle = b""
    error: ErrorInfo | None = None


class Used(Message, frozen=True, tag="used"):
    """Report what the device's next process should have ready; replaces the report before."""

    methods: UsedMethods
    """Methods of libraries that were called."""
    slabs: U16
    """Number of recently active sessions that have slabs in the device's memory."""
    results: U16
    """Number of recently active sessions that have slabs in the host's memory, if the device has its own."""
    readers: Annotated[list[U32], msgspec.Meta(max_length=MAX_READERS)] = msgspec.field(default_factory=list)
    """Sessions that were active lately and have had large results; the next process makes a slab for each."""


class Imported(Message, frozen=True, tag="imported"):
    """Report modules that requests have imported on the loop's thread since this process was ready, once each."""

    modules: ImportedModules


class Importing(Message, frozen=True, tag="importing"):
    """By order (`ImportAhead`), this module is going to be imported, and the one before it has been."""

    name: Annotated[str, msgspec.Meta(max_length=200)]
    """Empty once all are."""


class WarmingUp(Message, frozen=True, tag="warming_up"):
    """Before `Ready`: this method is called with its example, and the one before has been."""

    method: Annotated[str, msgspec.Meta(max_length=200)]
    """Empty once all have been called."""
    limit_s: Annotated[float, msgspec.Meta(ge=0.0, le=MAX_LIMIT_S)] = 0.0
    """How long that may take; 0: as long as the start."""


class MemoryWanted(Message, frozen=True, tag="memory_wanted"):
    """Some memory of this session, or that it has lent, could not be mapped, for want of a descriptor for one.

    Introduce it once more: answered by `ClientSlab` and `ForeignSlab` for all of it.
    """

    number: U32


class ResultSlab(Message, frozen=True, tag="result_slab"):
    """A slab in which results by value are going to be sent: keep it open. With one file descriptor, a sealed memfd.

    Comes before the first answer with such a result, which then can be read after the worker's end too.
    """

    number: U32
    """The session whose results they are."""
    slab: SlabNumber
    nbytes: U64


class ResultSlabFreed(Message, frozen=True, tag="result_slab_freed"):
    """No result lies in such a slab now, and the worker has freed it."""

    number: U32
    slab: SlabNumber


class SessionViolated(Message, frozen=True, tag="session_violated"):
    """The session broke the rules of the data plane and should be ended."""

    number: U32
    reason: Annotated[str, msgspec.Meta(max_length=2000)]


class Unsound(Message, frozen=True, tag="unsound"):
    """The worker goes on, but should be replaced at a quiet time: it meets faults of its own."""

    reason: Annotated[str, msgspec.Meta(max_length=2000)]


class Fault(Message, frozen=True, tag="fault"):
    """The worker cannot go on, and exits: set-up failed, or the context is poisoned."""

    error: ErrorInfo
    settled: bool = False
    """All methods of requests have stopped, and the board stays as it is: unanswered requests will not be answered."""


class OfResident(Message, frozen=True):
    """Base of messages about resident memory, before `Ready`."""

    name: Name
    version: Name


class ResidentWanted(OfResident, frozen=True, tag="resident_wanted"):
    """Ask for resident memory; answered by a `ResidentAnswer`, at once or when another process has sealed it."""

    layout: Bytes16
    """A digest of the names, shapes and element types of its arrays."""
    arrays: U32
    nbytes: Annotated[int, msgspec.Meta(ge=1, le=2**62)]


class ResidentSealed(OfResident, frozen=True, tag="resident_sealed"):
    """It is filled, and sealed against writing. With one file descriptor."""

    checksum: Checksum


class ResidentAbandoned(OfResident, frozen=True, tag="resident_abandoned"):
    """It could not be filled."""


class ResidentRejected(OfResident, frozen=True, tag="resident_rejected"):
    """The adopted memory has another checksum, and is not used."""


class WorldMailbox(Message, frozen=True, tag="world_mailbox"):
    """The memory by which this process takes part in collectives on the device. With one file descriptor.

    Comes at most once a world, where `backend` is cuda: before `Ready`, or behind `WorldOffered` if that comes later.
    """

    world: U32


class WorldRefused(Message, frozen=True, tag="world_refused"):
    """This process takes no place in a world that a session has made, since it cannot make its mailbox."""

    world: U32
    reason: Annotated[str, msgspec.Meta(max_length=2000)]


class BlockedPart(Message, frozen=True):
    """A part that has not begun, since its memory is in use by others that have not."""

    part: NamedPart
    behind: NamedPart
    """One of those for whom it waits, whose own memory is free here."""


MAX_WAITS: Final = 512
"""Most waits that a `PartsWait` names."""


class PartsWait(Message, frozen=True, tag="parts_wait"):
    """Parts are blocked by others. Stands for all that was said before."""

    blocked: Annotated[list[BlockedPart], msgspec.Meta(max_length=MAX_WAITS)]


class EpochJoined(Message, frozen=True, tag="epoch_joined"):
    """This process has joined an epoch."""

    world: U32
    epoch: U64


class EpochLeft(Message, frozen=True, tag="epoch_left"):
    """This process has answered all calls of an epoch and runs none of them; or it could not join it."""

    world: U32
    epoch: U64
    reason: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    """Why it has left unasked, or not joined; empty if it was asked to leave."""
    unfit: bool = False
    """Whether it could not join: it is to be replaced, for the next epoch would be no better."""


class EpochBroken(Message, frozen=True, tag="epoch_broken"):
    """An epoch cannot go on, though no process may have ended: have all of its members leave."""

    world: U32
    epoch: U64
    reason: Annotated[str, msgspec.Meta(max_length=2000)]
    rank: Annotated[int, msgspec.Meta(ge=-1, lt=MAX_DEVICES)] = -1
    """The rank where that came from, -1 if from none."""
    late: bool = False
    """Whether that rank has not begun in time: its process is to be replaced."""


MAX_HOLDERS: Final = 4
"""Most requests that an `EpochHeld` names."""


class EpochHolder(Message, frozen=True):
    """A call that runs, or a stream that is open."""

    session: U32
    method: Name
    since_ns: U64
    """When it has come, CLOCK_MONOTONIC."""


class EpochHeld(Message, frozen=True, tag="epoch_held"):
    """An epoch that ends as planned waits for these requests. Said by rank 0, and again when others are the first."""

    world: U32
    epoch: U64
    holders: Annotated[list[EpochHolder], msgspec.Meta(max_length=MAX_HOLDERS)]
    """The earliest ones; empty once nothing holds it."""
    count: U32
    """How many there are."""


FromWorker = (
    Ready
    | SessionAdmitted
    | SessionClosed
    | SlabExported
    | ResultSlab
    | ResultSlabFreed
    | Used
    | Imported
    | Importing
    | WarmingUp
    | MemoryWanted
    | SessionViolated
    | Unsound
    | Fault
    | ResidentWanted
    | ResidentSealed
    | ResidentAbandoned
    | ResidentRejected
    | WorldMailbox
    | WorldRefused
    | PartsWait
    | EpochJoined
    | EpochLeft
    | EpochBroken
    | EpochHeld
)

FROM_SUPERVISOR: Final[Codec[FromSupervisor]] = Codec(FromSupervisor, channel="control")
FROM_WORKER: Final[Codec[FromWorker]] = Codec(FromWorker, channel="control")
