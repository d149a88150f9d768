"""Messages of a session by which operators see and steer a pool: questions, orders, answers. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import U16, U32, U64, Bytes16, Message, Name, Text, Weight
from atomr_mp.protocol.messages.devices import DeviceInfo
from atomr_mp.protocol.messages.suspects import RequestKey


class StatusRequest(Message, frozen=True, tag="status"):
    """Ask for a snapshot of the pool; answered by `Status`."""

    id: U32


class InventoryRequest(Message, frozen=True, tag="inventory"):
    """Ask for the pool's processes, sessions and memory; answered by `Inventory`."""

    id: U32


class RestartRequest(Message, frozen=True, tag="restart"):
    """Replace a device's worker after it has finished what it holds.

    It also starts a device that was stopped after too many restarts. Answered by `Answer` once the order is taken.
    """

    id: U32
    device: U16


class ReloadRequest(Message, frozen=True, tag="reload"):
    """Read the configuration file again, if there is one, and replace all workers, one device at a time.

    The new workers run the actors' code as it is then. Answered at the end: by `Reloaded`, or by `Answer` with the
    error for which the reload was given up.
    """

    id: U32


class StopRequest(Message, frozen=True, tag="stop"):
    """Stop the pool after the workers have finished what they hold.

    Answered by `Answer` once the order is taken.
    """

    id: U32


class ListResidents(Message, frozen=True, tag="list_residents"):
    """Ask for all resident memory.

    Answered by `Residents`.
    """

    id: U32


class FreeResident(Message, frozen=True, tag="free_resident"):
    """Free resident memory: no further process gets it, and what is in use goes with its users.

    Answered by `Residents` with what was freed. Answered by `Answer` with `invalid_request` if nothing was: there is
    none of this name, it is being filled, or it is in use and `force` is false.
    """

    id: U32
    name: Name
    device: U16 | None = None
    """In whose memory; nil for any."""
    version: Name | None = None
    """Which version; nil for all."""
    force: bool = False
    """Also what is in use: the memory goes with its users."""


class AdmitRequest(Message, frozen=True, tag="admit"):
    """Admit a request again that is in quarantine.

    Answered by `Answer`: `invalid_request` if it is not. All clients hear of it by `Suspicions`.
    """

    id: U32
    request: RequestKey


class ReadKeys(Message, frozen=True, tag="read_keys"):
    """Have the gateway read the admitted keys again.

    Answered by `Answer` once it has done so and has ended the sessions of revoked keys: with `invalid_request` if the
    pool admits no remote clients, with `configuration_error` if the keys cannot be read; the former keys hold then.
    """

    id: U32


class Reloaded(Message, frozen=True, tag="reloaded"):
    """Answer to `ReloadRequest`: every device runs what is there now."""

    id: U32
    pending: list[Name]
    """Settings that have changed and need a restart of the pool."""


class BatchStatus(Message, frozen=True):
    """Counts of a batched method in this incarnation."""

    method: Name
    """`Actor.method`."""
    batches: U64
    items: U64
    """Requests in these batches."""
    wait_s: float
    """Sum of the times from a request's arrival to the start of its batch."""
    longest_wait_s: float
    """The longest of these."""
    sizes: list[U64]
    """Batches of 1, 2, 3 to 4, 5 to 8, … 513 to 1024 requests."""


class PlanStatus(Message, frozen=True):
    """Counts of a library's plans, which it makes for a request and uses again, in this incarnation."""

    library: Name
    """Such as `fft`."""
    misses: U64
    """Requests whose plan had to be made."""
    hits: U64
    """Requests whose plan was there, or was being made."""
    dropped: U64
    """Plans that had to make room for others."""
    kept: U64
    """Plans that are there."""
    engine: Text = ""
    """What serves the library, such as cuTENSOR, where there is a choice and one was made."""


class GraphStatus(Message, frozen=True):
    """Counts of the programs' CUDA graphs in this incarnation."""

    captured: U64
    """Graphs that were recorded."""
    replayed: U64
    """Runs that were a launch of one."""
    dropped: U64
    """Graphs that had to make room for others of the same program."""
    busy: U64
    """Runs that went step by step, because the last launch's verdict had not been read."""
    not_capturable: U64
    """Programs with a step that cannot be recorded."""
    capture_failed: U64
    """Programs that the device has refused to record; the worker's log says why."""
    no_memory: U64
    """Programs for whose graphs there was no room."""


class EndCount(Message, frozen=True):
    """How often a device's incarnations have ended for a reason."""

    cause: Name
    """`board`, `recycle`, `reload`, `restart` or `stop` where that was wanted; else an error's code, `exit`, or a
    signal's name in small letters."""
    count: U64


class Figures(Message, frozen=True):
    """What a device has done since the pool's start, in all its incarnations."""

    received: U64
    """Requests that a worker has taken."""
    answered: U64
    """Requests that a worker has answered with a result."""
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
    """How often incarnations have ended, by cause."""


NOTHING_DONE: Final = Figures(0, 0, 0, 0, 0, 0, 0, 0, [], [])


class StandbyStatus(Message, frozen=True):
    """What stands behind a device's worker."""

    mode: Name
    """How the pool was started: `hot`, `warm` or `none`."""
    state: Name
    """State of the standby process: `ready`, `starting`, `failed` (tried too often) or `none`."""
    standby_pid: U32 | None
    """None if there is no process; `pid` raises then."""
    generation: U32
    """The generation that it will have, 0 if there is none."""
    restarts: U32
    """Standbys that have ended without being needed."""
    next_fault_costs_ms: float | None
    """How long the device would take no calls after a fault, by what was measured since the pool's start."""
    note: Text = ""
    """What an operator should know of it."""

    @property
    def pid(self) -> int:
        """Its process, or the zygote if it is to be forked.

        Raises:
            DeviceUnavailable: Nothing stands by now.
        """
        if self.standby_pid is None:
            raise errors.DeviceUnavailable(
                f"no process stands by (mode {self.mode}, state {self.state}), so there is no pid; look again when the "
                "state is `ready`",
                maybe_executed=False,
            )
        return self.standby_pid


class WorkerStatus(Message, frozen=True):
    """A device in a status snapshot."""

    device: DeviceInfo
    """Its `admitted` is false and its `endpoint` empty: calls need the session's own messages."""
    queue_depth: U64
    """Requests received and not ended."""
    started: U64
    completed: U64
    refused: U64
    """Messages refused: unknown peers, undecodable bytes, exceeded windows."""
    running: U32
    """Requests that run now."""
    running_for_s: float
    """Age of the oldest of them."""
    started_at: float
    """Start of the process, seconds since 1970."""
    memory_bytes: U64
    """Resident memory of the process."""
    notes: list[Text] = msgspec.field(default_factory=list)
    """What an operator should know of the device, as it was when the pool was started."""
    batches: list[BatchStatus] = msgspec.field(default_factory=list)
    """Batches of each batched method, in the order of actors and methods."""
    slab_bytes: U64 = 0
    """Device memory of the slabs in which buffers lie."""
    leases: U64 = 0
    """How often sessions hold buffers in them."""
    figures: Figures = NOTHING_DONE
    """What the device has done since the pool's start."""
    last_fault: Text = ""
    """Cause of the last unplanned end, or why there is no incarnation; empty if neither has happened."""
    last_fault_at: float = 0.0
    """When, seconds since 1970."""
    standby: StandbyStatus | None = None
    """What stands behind its worker."""
    plans: list[PlanStatus] = msgspec.field(default_factory=list)
    """Plans of each library that has made some."""
    graphs: GraphStatus | None = None
    """Graphs of programs; nil if none has run on a device that records graphs."""


class EndedIncarnation(Message, frozen=True):
    """Where a worker has ended."""

    device: U16
    generation: U32


class QuarantinedRequest(Message, frozen=True):
    """A request that is refused, for it ends workers."""

    request: RequestKey
    since: float
    """When that was found, seconds since 1970."""
    ends: U32
    """How many workers have ended while it ran."""
    where: list[EndedIncarnation]
    """The last 8 of these, oldest first."""


class RemoteSessionStatus(Message, frozen=True):
    """A remote client's session."""

    client: Name
    """Its name in its hello."""
    key: Name
    """The name of its key."""
    connected: bool
    """False after a cut."""
    open_calls: U32
    """Calls that run, or whose answers it has not acknowledged."""
    kept_bytes: U64
    """Their arguments and answers in the gateway."""
    refs: U32
    """Leases that it holds."""


class RemoteStatus(Message, frozen=True):
    """How remote clients are served."""

    address: Name
    """Where the gateway listens."""
    pid: U32
    """The gateway's, 0 while it is being started again."""
    listening: bool
    """Whether connections are taken."""
    restarts: U32
    """How often it has ended."""
    refused: U64
    """Handshakes, hellos and messages that it has refused."""
    sessions: list[RemoteSessionStatus]
    """At most 256."""
    standby_pid: U32 = 0
    """The process that takes over at the gateway's end, 0 while there is none."""


class Status(Message, frozen=True, tag="status"):
    """Answer to `StatusRequest`."""

    id: U32
    pool: Name
    backend: Name
    """`host` or `cuda`."""
    version: Name
    """The package's version."""
    supervisor_pid: U32
    supervisor_started_at: float
    """Seconds since 1970."""
    supervisor_memory_bytes: U64
    stopping: bool
    sessions: U32
    """Clients that may call; observers, like the one that asks, are not counted."""
    refused: U64
    """Sessions refused since the start: another user, another version, bytes that were no message."""
    workers: list[WorkerStatus]
    resident_bytes: U64 = 0
    """Resident memory, of all devices together, what is being filled included."""
    quarantined: list[QuarantinedRequest] = msgspec.field(default_factory=list)
    """Requests that are refused, in the order in which they were last heard of."""
    unkept_results: U64 = 0
    """Slabs with large results that the supervisor could not keep open, for want of descriptors or of room, since the
    start: what lies in them ends with its worker."""
    remote: RemoteStatus | None = None
    """How remote clients are served; nil if none are admitted."""

    @property
    def unanswered(self) -> int:
        """Requests that the workers hold: those that run and those that wait there."""
        return sum(max(worker.queue_depth, worker.running) for worker in self.workers)


class ResidentUser(Message, frozen=True):
    """A process that uses resident memory."""

    device: U16
    generation: U32
    pid: U32 | None
    """Nil if the process has ended."""


class ResidentInfo(Message, frozen=True):
    """A piece of resident memory."""

    device: U16 | None
    """The device whose memory it lies in; nil for the host's, which all devices of the host backend share."""
    name: Name
    version: Name
    """Version of its content."""
    state: Name
    """`filling`, `sealed`, or `freed`: handed to nobody any more, and still in use."""
    nbytes: U64
    arrays: U32
    """Number of its arrays."""
    users: list[ResidentUser]
    """Who has it mapped; while it is being filled, who fills it and who waits for it."""


class Residents(Message, frozen=True, tag="residents"):
    """Answer to `ListResidents`: all resident memory; to `FreeResident`: the memory that was freed."""

    id: U32
    residents: list[ResidentInfo]
    """At most 256."""
    max_bytes: U64
    """Largest size of all resident memory in the pool; 0: no limit."""


class ProcessHeld(Message, frozen=True):
    """A process that the supervisor has started, or had as a child before it was one, and has not reaped."""

    role: Name
    """`worker`, `standby`, `predecessor` (a standby has taken its place), `stuck` (killed, and not ended), `zygote`,
    `reserve` (made ahead), `helper`, `process from before the pool` (a child that the supervisor's process had before
    it was one)."""
    pid: U32
    start_ticks: U64
    """Field 22 of /proc/PID/stat: a later process of this pid has another."""
    device: U16 | None = None
    """Device of a worker, standby or predecessor."""
    generation: U32 = 0
    slab_bytes: U64 = 0
    """Bytes of its slabs, by its own account."""
    leases: U64 = 0
    """How often sessions hold buffers in them."""
    running: U32 = 0
    """Requests that run; while they do, `slab_bytes` and `leases` may be those of before."""
    believed: bool = True
    """Whether its board is credible; if not, its memory and requests are unknown, and the three fields above are 0."""


class SessionHeld(Message, frozen=True):
    """A session that lives, or whose memory was not given back yet."""

    number: U32
    client: Name
    """The name in its hello, shortened."""
    pid: U32 | None
    """Its process; nil if the process has ended and is not waited for."""
    state: Name
    """`calls`, `observes`, `connects` (before its hello), `ended`."""
    weight: Weight = 1.0
    """The weight of its hello."""


class Inventory(Message, frozen=True, tag="inventory"):
    """What a pool has to have, besides the supervisor itself.

    `atomr-mp doctor` compares it with what the kernel tells.
    """

    id: U32
    epoch: Bytes16
    """This life of the supervisor."""
    backend: Name
    """`host` or `cuda`."""
    processes: list[ProcessHeld]
    """Processes that the supervisor has started and not reaped."""
    sessions: list[SessionHeld]
    """All sessions, with the one that asks."""
    memfds: list[U64]
    """Inodes of the memory that the supervisor keeps a descriptor of: clients' own slabs, and lent ones."""
    complete: bool
    """No sessions or descriptors are left out of it, as they are where there are very many."""
    remote: RemoteStatus | None = None
    """None if remote clients are not admitted."""
