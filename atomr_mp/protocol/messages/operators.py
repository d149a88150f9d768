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


class AdmitRequest(Message, frozen=True, tag="admit"):
    """Admit a request again that is in quarantine; answered by `Answer`."""

    id: U32
    request: RequestKey


class ReadKeys(Message, frozen=True, tag="read_keys"):
    """Have the gateway read the admitted keys again; answered by `Answer` once it has, and has ended sessions by it."""

    id: U32


class Reloaded(Message, frozen=True, tag="reloaded"):
    """Answer to `ReloadRequest`: every device runs what is there now."""

    id: U32
    pending: list[Name]
    """Settings that have changed and need a restart of the pool."""


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


class PlanStatus(Message, frozen=True):
    """What has become of a library's plans so far, in this incarnation."""

    library: Name
    misses: U64
    """Requests whose plan had to be made."""
    hits: U64
    """Requests whose plan was there already, or was being made."""
    dropped: U64
    """Plans that had to make room for others."""
    kept: U64
    """Plans that are there."""
    engine: Text = ""
    """What serves the library, such as cuTENSOR, where there is a choice and one was made."""


class GraphStatus(Message, frozen=True):
    """What has become of the programs' CUDA graphs so far, in this incarnation."""

    captured: U64
    """Graphs that were recorded."""
    replayed: U64
    """Runs that were a launch of one."""
    dropped: U64
    """Graphs that had to make room for others of the same program."""
    busy: U64
    """Runs that were done step by step since the last launch's verdict had not been read."""
    not_capturable: U64
    """Programs with a step that cannot be recorded."""
    capture_failed: U64
    """Programs that the device has refused to record; the worker's log says why."""
    no_memory: U64
    """Programs for whose graphs there was no room."""


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


NOTHING_DONE: Final = Figures(0, 0, 0, 0, 0, 0, 0, 0, [], [])


class StandbyStatus(Message, frozen=True):
    """What stands behind a device's worker."""

    mode: Name
    """How the pool was started: "hot", "warm" or "none"."""
    state: Name
    """Of the process on standby: "ready", "starting", "failed" (it was tried too often), or "none"."""
    standby_pid: U32 | None
    """None if there is no process; `pid` raises then."""
    generation: U32
    """The generation that it will have, 0 if there is none."""
    restarts: U32
    """Standbys that have ended and were never needed."""
    next_fault_costs_ms: float | None
    """How long the device would take no calls, by what was measured since the pool's start; nil if nothing was."""
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
    """Cause of the last unplanned end, or why there is no incarnation; empty if neither has happened."""
    last_fault_at: float = 0.0
    """When, in seconds since the epoch."""
    standby: StandbyStatus | None = None
    """What stands behind its worker."""
    plans: list[PlanStatus] = msgspec.field(default_factory=list)
    """Of each library that has made some."""
    graphs: GraphStatus | None = None
    """Of programs; None if none has run on a device that records any."""


class EndedIncarnation(Message, frozen=True):
    """Where a worker has ended."""

    device: U16
    generation: U32


class QuarantinedRequest(Message, frozen=True):
    """A request that is refused, for it ends workers."""

    request: RequestKey
    since: float
    """When that was found, in seconds since the epoch."""
    ends: U32
    """How many workers have ended while it ran."""
    where: list[EndedIncarnation]
    """The last of these, oldest first."""


class RemoteSessionStatus(Message, frozen=True):
    """A remote client's session."""

    client: Name
    """What it calls itself."""
    key: Name
    """The name of its key."""
    connected: bool
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
    """The gateway's; 0 while it is being started again."""
    listening: bool
    restarts: U32
    """How often it has ended."""
    refused: U64
    """Handshakes, hellos and messages that were refused."""
    sessions: list[RemoteSessionStatus]


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
    unkept_results: U64 = 0
    """Slabs with large results that the supervisor could not keep open, for want of descriptors or of room, since the
    start: what lies in them ends with its worker."""
    remote: RemoteStatus | None = None
    """Nil if no remote clients are admitted."""

    @property
    def unanswered(self) -> int:
        """Requests that the workers hold: those that run and those that wait there."""
        return sum(max(worker.queue_depth, worker.running) for worker in self.workers)


class ResidentUser(Message, frozen=True):
    """A process that uses resident memory."""

    device: U16
    generation: U32
    pid: U32 | None
    """None if the process has ended."""


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
    believed: bool = True
    """Whether its board is; if not, its memory and what runs there are not known, and the three above are 0."""


class SessionHeld(Message, frozen=True):
    """A session that lives, or whose memory was not given back yet."""

    number: U32
    client: Name
    pid: U32 | None
    """The client's process; None if nobody waits for that."""
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
