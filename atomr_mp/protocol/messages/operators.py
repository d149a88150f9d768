"""Messages of a session by which operators see and steer a pool: questions, orders, answers. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_DEVICES, U16, U32, U64, Bytes16, Message, Name, Text, Weight
from atomr_mp.protocol.messages.devices import DeviceInfo, WorldInfo
from atomr_mp.protocol.messages.health import GpuLink
from atomr_mp.protocol.messages.suspects import RequestKey
from atomr_mp.protocol.timeline import LONGEST_S


class StatusRequest(Message, frozen=True, tag="status"):
    """Ask for a snapshot of the pool; answered by `Status`."""

    id: U32


class InventoryRequest(Message, frozen=True, tag="inventory"):
    """Ask for processes, sessions and memory; answered by `Inventory`."""

    id: U32


class RestartRequest(Message, frozen=True, tag="restart"):
    """Replace a device's worker after it has finished what it holds.

    It also starts a device that was stopped after too many restarts.
    """

    id: U32
    device: U16


class ReloadRequest(Message, frozen=True, tag="reload"):
    """Read the configuration file again, if there is one, and replace all workers, one device at a time.

    The new workers run the actors' code as it is then. Answered at the end: by `Reloaded`, or by `Answer` with the
    error that ended the reload.
    """

    id: U32


class StopRequest(Message, frozen=True, tag="stop"):
    """Stop the pool after the workers have finished what they hold."""

    id: U32


class ListResidents(Message, frozen=True, tag="list_residents"):
    """Ask for all resident memory; answered by `Residents`."""

    id: U32


class FreeResident(Message, frozen=True, tag="free_resident"):
    """Free resident memory: no further process gets it.

    Answered by `Residents` with what was freed. `invalid_request` if nothing was: there is none of this name, it is
    being filled, or it is in use without `force`.
    """

    id: U32
    name: Name
    device: U16 | None = None
    """In the memory of this device's GPU; nil for any."""
    version: Name | None = None
    """Nil for all."""
    force: bool = False
    """Also free memory in use: it goes with its users."""


class AdmitRequest(Message, frozen=True, tag="admit"):
    """Release a request from quarantine.

    `invalid_request` if it is not in quarantine. All clients hear of it by `Suspicions`.
    """

    id: U32
    request: RequestKey


class ReadKeys(Message, frozen=True, tag="read_keys"):
    """Have the relay read the admitted keys again.

    Answered once the sessions of revoked keys have ended. `invalid_request` if the pool admits no remote clients;
    `configuration_error` if the keys cannot be read: the former keys hold then.
    """

    id: U32


class TraceRequest(Message, frozen=True, tag="trace"):
    """Trace the pool for so long. Answered by `TraceBegun`, and by a `TraceRing` for each process, also later ones.

    Who ends the session ends the trace. `overloaded` if the pool is traced already: one session traces at a time.
    """

    id: U32
    seconds: Annotated[float, msgspec.Meta(ge=0.0, le=LONGEST_S)]


class TraceBegun(Message, frozen=True, tag="trace_begun"):
    """Answer to `TraceRequest`, behind the rings of the processes that run now."""

    id: U32
    started_ns: U64
    """CLOCK_MONOTONIC."""


class TraceRing(Message, frozen=True, tag="trace_ring"):
    """The records of one process are read here. With one file descriptor: memory that this session alone reads."""

    number: U32
    """Counts the rings of the session from 1."""
    device: U16


class Reloaded(Message, frozen=True, tag="reloaded"):
    """Every device runs the new code and configuration."""

    id: U32
    pending: list[Name]
    """Settings that have changed and need a restart of the pool."""


class BatchStatus(Message, frozen=True):
    """Counts of a batched method in this incarnation."""

    method: Name
    """`Actor.method`."""
    batches: U64
    items: U64
    """Requests in these batches, or rows."""
    wait_s: float
    """Sum of the times from a request's arrival to the start of its batch."""
    longest_wait_s: float
    """The longest of these times."""
    sizes: list[U64]
    """Batches of 1, 2, 3 to 4, 5 to 8, … 513 to 1024 requests."""
    waits: list[U64] = msgspec.field(default_factory=list)
    """Requests that waited for less than 2^14, 2^15, … 2^36 ns, and for longer."""


class PlanStatus(Message, frozen=True):
    """Counts of a library's plans in this incarnation.

    A plan is made for a request and used again.
    """

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
    """What serves the library, such as cuTENSOR, if a choice was made."""


class GraphStatus(Message, frozen=True):
    """Counts of the programs' CUDA graphs in this incarnation."""

    captured: U64
    """Graphs that were recorded."""
    replayed: U64
    """Runs that launched one."""
    dropped: U64
    """Graphs that made room for others of the same program."""
    busy: U64
    """Runs step by step, because the last launch's verdict had not been read."""
    not_capturable: U64
    """Programs with a step that cannot be recorded."""
    capture_failed: U64
    """Programs that the device has refused to record; the worker's log says why."""
    no_memory: U64
    """Programs for whose graphs there was no room."""


class WorkStatus(Message, frozen=True):
    """Sums over the requests of a library's method in this incarnation that have succeeded and whose time is known.

    On GPUs that are those during traces. They begin anew before one gets to 2^62.
    """

    method: Name
    """`library.request`."""
    requests: U64
    execution_ns: U64
    """On a GPU, its own time; else from the method's call to its result."""
    flops: U64
    """Arithmetic operations, as the requests declare them."""
    moved_bytes: U64
    """Bytes read and written, as the requests declare them."""


class EndCount(Message, frozen=True):
    """Ends of a device's incarnations for one cause."""

    cause: Name
    """`board`, `recycle`, `reload`, `restart` or `stop` if planned; else an error's code, `exit`, or a signal's name in
    small letters."""
    count: U64


class Figures(Message, frozen=True):
    """A device's counts since the pool's start, over all its incarnations."""

    received: U64
    """Requests that a worker has taken."""
    answered: U64
    """With a result."""
    failed: U64
    """With an error of the request."""
    cancelled: U64
    """Before they started."""
    expired: U64
    """Their deadline passed before they started."""
    rejected: U64
    """Never received: no such method, or of another incarnation."""
    lost: U64
    """Received by a worker that ended before it had answered."""
    latency_ns: U64
    """Sum of all that `latencies` counts."""
    latencies: list[U64]
    """From arrival to answer: the N-th, from 0, counts those from 2^(N-1) to below 2^N ns."""
    ends: list[EndCount]
    internal_errors: U64 = 0
    """Faults of the workers themselves, each of which has cost a request, or a session."""


NOTHING_DONE: Final = Figures(0, 0, 0, 0, 0, 0, 0, 0, [], [])


class StandbyStatus(Message, frozen=True):
    """A device's standby."""

    mode: Name
    """As the pool was started: `hot`, `warm` or `none`."""
    state: Name
    """`ready`, `starting`, `failed` (tried too often) or `none`."""
    standby_pid: U32 | None
    """Nil if there is no process."""
    generation: U32
    """The generation that it will have, 0 if there is none."""
    restarts: U32
    """Standbys that have ended without being needed."""
    next_fault_costs_ms: float | None
    """Expected gap after a fault, as measured since the pool's start."""
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
    """A device in `Status`."""

    device: DeviceInfo
    """With `admitted` false and `endpoint` empty: calls need the session's own messages."""
    queue_depth: U64
    """Requests received and not ended."""
    started: U64
    completed: U64
    refused: U64
    """Messages refused: unknown peers, undecodable bytes, exceeded windows."""
    running: U32
    """Requests that run now."""
    running_for_s: float
    """Age of the oldest."""
    started_at: float
    """Start of the process, seconds since 1970."""
    memory_bytes: U64
    """Resident memory of the process."""
    notes: list[Text] = msgspec.field(default_factory=list)
    """What an operator should know of the device, as of the pool's start."""
    batches: list[BatchStatus] = msgspec.field(default_factory=list)
    """In the order of actors and methods."""
    slab_bytes: U64 = 0
    """Device memory of the slabs in which buffers lie."""
    leases: U64 = 0
    """Leases on buffers in them."""
    figures: Figures = NOTHING_DONE
    """Since the pool's start."""
    last_fault: Text = ""
    """Cause of the last unplanned end, or why there is no incarnation."""
    last_fault_at: float = 0.0
    """Seconds since 1970."""
    standby: StandbyStatus | None = None
    plans: list[PlanStatus] = msgspec.field(default_factory=list)
    """One for each library that has made plans."""
    graphs: GraphStatus | None = None
    """Nil if no program has run on a device that records graphs."""
    standstill: Text = ""
    """Why its process does not run although it lives, such as a SIGSTOP, with what has it go on; else empty."""
    work: list[WorkStatus] = msgspec.field(default_factory=list)
    """At most 32, those with the longest execution first."""

    @property
    def reason(self) -> str:
        """The reason of its state, or why its process stands still."""
        return "; ".join(filter(None, (self.device.reason, self.standstill)))


class EndedIncarnation(Message, frozen=True):
    """An incarnation that has ended."""

    device: U16
    generation: U32


class QuarantinedRequest(Message, frozen=True):
    """A request that is refused because it ends workers."""

    request: RequestKey
    since: float
    """Seconds since 1970."""
    ends: U32
    """How many workers have ended while it ran."""
    where: list[EndedIncarnation]
    """The last 8 ends, oldest first."""


class RemoteSessionStatus(Message, frozen=True):
    """A remote client's session."""

    client: Name
    """From its hello."""
    key: Name
    """Name of its key."""
    connected: bool
    """False after a cut."""
    kept_bytes: U64
    """Bytes that were sent to it and that it has not acknowledged."""


class RemoteStatus(Message, frozen=True):
    """The relay."""

    address: Name
    """Where the relay listens."""
    pid: U32
    """0 while it is being started again."""
    listening: bool
    restarts: U32
    """How often it has ended."""
    refused: U64
    """Handshakes, hellos and messages."""
    sessions: list[RemoteSessionStatus]
    """At most 256."""
    standby_pid: U32 = 0
    """0 if there is none."""


class WorldMemberProgress(Message, frozen=True):
    """Where a member of a world is, as its page shows it."""

    begun: U64
    """The latest call that it has begun, as its number in the order of the epoch's calls."""
    ended: U64
    doing: Text
    """In words: "is idle", "runs call 3", "waits in all_reduce"."""


class WorldProgress(Message, frozen=True):
    """Where a world's members are. Of a world without an epoch that goes on there are none."""

    published: U64 = 0
    """How many calls the epoch's order has."""
    members: Annotated[list[WorldMemberProgress], msgspec.Meta(max_length=MAX_DEVICES)] = msgspec.field(
        default_factory=list
    )
    """By rank."""
    waits: Text = ""
    """A sentence on the ranks that wait for others; empty if none waits for long."""


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
    """Clients that may call, without observers."""
    refused: U64
    """Sessions refused since the start."""
    workers: list[WorkerStatus]
    resident_bytes: U64 = 0
    """All devices together; what is being filled is included."""
    quarantined: list[QuarantinedRequest] = msgspec.field(default_factory=list)
    """Requests that are refused, the longest unheard of first."""
    unkept_results: U64 = 0
    """Slabs with large results that the supervisor could not keep open, since the start: what lies in them ends with
    its worker."""
    remote: RemoteStatus | None = None
    """Nil if no remote clients are admitted."""
    worlds: list[WorldInfo] = msgspec.field(default_factory=list)
    """All, by number."""
    progress: list[WorldProgress] = msgspec.field(default_factory=list)
    """The progress of these worlds, in their order."""
    links: list[GpuLink] = msgspec.field(default_factory=list)
    """How the GPUs reach each other's memory, as far as the driver tells it."""
    unwritable: Text = ""
    """What cannot be written to the run directory, as on a full disk, and since when; empty if all can."""
    unwritable_since: float = 0.0
    """The same time, in seconds since 1970; 0 if all can."""
    reloading: bool = False
    """Whether the pool is being reloaded."""
    kernels: Name = "local"
    """Clients that may use kernels of their own: `local`, `all` or `off`."""
    reload_failed: Text = ""
    """Why the last reload has failed; empty once one succeeds."""
    reload_failed_at: float = 0.0
    """When it has, in seconds since 1970; 0 if it has not."""

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
    """The first device of the GPU that has it, all of whose devices share it. Nil for the host's memory, which all
    devices of the host backend share."""
    name: Name
    version: Name
    state: Name
    """`filling`, `sealed`, or `freed`: no further process gets it, and it is still in use."""
    nbytes: U64
    arrays: U32
    """Number of its arrays."""
    users: list[ResidentUser]
    """Processes that have it mapped; while it is being filled, the one that fills it and those that wait."""
    gpu: U16 | None = None
    """Position of the GPU that has it; nil for the host's memory."""


class Residents(Message, frozen=True, tag="residents"):
    """All resident memory, or what was freed."""

    id: U32
    residents: list[ResidentInfo]
    """At most 256."""
    max_bytes: U64
    """Largest size of all resident memory in the pool; 0: no limit."""


class ProcessHeld(Message, frozen=True):
    """A child of the supervisor that is not reaped."""

    role: Name
    """`worker`, `standby`, `predecessor` (a standby has taken its place), `stuck` (killed, and not ended), `zygote`,
    `reserve` (made ahead), `relay`, `standby relay`, the name of a helper (`metrics server`, `gpu monitor`), or
    `process from before the pool` (not started by the supervisor)."""
    pid: U32
    start_ticks: U64
    """Field 22 of /proc/PID/stat: a later process of this pid has another."""
    device: U16 | None = None
    """Nil unless a worker, standby or predecessor."""
    generation: U32 = 0
    slab_bytes: U64 = 0
    """By its own account."""
    leases: U64 = 0
    running: U32 = 0
    """Requests that run; meanwhile `slab_bytes` and `leases` may be outdated."""
    believed: bool = True
    """Whether its board is credible; if not, the three fields above are unknown and 0, and so is the one below."""
    sessions: U32 = 0
    """The sessions for which it holds memory, or may."""


class SessionHeld(Message, frozen=True):
    """A session that lives, or whose memory is not given back yet."""

    number: U32
    client: Name
    """The name in its hello, shortened."""
    pid: U32 | None
    """The process of its client; nil if it has none, or is not waited for."""
    state: Name
    """`calls`, `observes`, `connects` (before its hello); `cut`: a remote one that waits for its client. Of one that
    has ended: `maps` if its client has said that it has memory mapped still, `parts` if that has said nothing, and
    `ended` if nothing is to be heard of it."""
    weight: Weight = 1.0


class Inventory(Message, frozen=True, tag="inventory"):
    """Processes, sessions and memory that `atomr-mp doctor` compares with the kernel's."""

    id: U32
    epoch: Bytes16
    backend: Name
    """`host` or `cuda`."""
    processes: list[ProcessHeld]
    """Processes that the supervisor has started and not reaped."""
    sessions: list[SessionHeld]
    """All sessions, with the one that asks."""
    memfds: list[U64]
    """Inodes of the memory that the supervisor keeps a descriptor of: clients' own slabs, and lent ones."""
    complete: bool
    """False if there are too many sessions or descriptors to list."""
    remote: RemoteStatus | None = None
    """Nil if no remote clients are admitted."""
