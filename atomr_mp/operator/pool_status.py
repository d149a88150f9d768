"""A pool's status in the words that `Pool.status` and `status --json` share. Pure.

docs/status-schema.json is the JSON Schema of `PoolStatus`, written by `scripts/reference-tables`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final, Literal

import msgspec

from atomr_mp.protocol.messages import operators
from atomr_mp.protocol.messages.devices import DeviceState, WorldInfo, WorldState
from atomr_mp.protocol.messages.suspects import RequestKey
from atomr_mp.protocol.words import rate

HEALTHY: Final = "healthy"
DEGRADED: Final = "degraded"
DOWN: Final = "down"
UNREACHABLE: Final = "unreachable"

PoolState = Literal["healthy", "degraded", "down", "unreachable"]


class BatchFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Batches of a method in this incarnation."""

    method: str
    batches: int
    items: int
    mean_items: float | None
    mean_wait_s: float | None
    longest_wait_s: float
    sizes: dict[str, int]
    """The number of batches by the most items that they had: 1, 2, 4, 8 and so on."""


class PlanFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plans of a library in this incarnation."""

    library: str
    hits: int
    misses: int
    kept: int
    dropped: int
    engine: str | None


class WorkFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Achieved rates of a library's method in this incarnation, by what its requests declare.

    Of requests that have succeeded and whose execution time is known: on GPUs, of those during traces.
    """

    method: str
    requests: int
    mean_s: float
    """Mean execution time: the GPU's, or of the method on the host backend."""
    gflops: float | None
    """In GFLOP/s; null if no operations are declared."""
    gbytes_per_s: float | None
    """In GB/s; null if no bytes are declared."""


class GraphFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CUDA graphs of programs in this incarnation."""

    captured: int
    replayed: int
    dropped: int
    busy: int
    not_capturable: int
    capture_failed: int
    no_memory: int


class DeviceStandby(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device's standby."""

    mode: str
    state: str
    pid: int | None
    generation: int | None
    restarts: int
    next_fault_costs_ms: float | None
    note: str


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device."""

    index: int
    name: str
    gpu: int
    """Position of its GPU among the pool's."""
    worker: int
    """Number of its worker among those of its GPU."""
    workers_per_gpu: int
    uuid: str
    state: DeviceState
    circuit: str
    retry_after_s: float | None
    """Seconds until the next start, if its circuit is open."""
    reason: str
    """Why it is not ready, or why its worker's process stands still."""
    stands_still: bool
    """Whether its worker's process lives and does not run, such as after SIGSTOP; `state` does not show that."""
    generation: int
    pid: int | None
    """The worker's."""
    restarts: int
    queue_depth: int
    """Requests that were received and have not ended."""
    running: int
    running_for_s: float
    started: int
    completed: int
    refused: int
    internal_errors: int
    uptime_s: float | None
    memory_bytes: int
    notes: list[str]
    batches: list[BatchFigures]
    plans: list[PlanFigures]
    graphs: GraphFigures | None
    work: list[WorkFigures]
    """The 32 methods with the longest execution in all, the longest first."""
    slab_bytes: int
    leases: int
    last_fault: str
    last_fault_at: float | None
    """Seconds since 1970."""
    standby: DeviceStandby | None


class EndPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The incarnation that a request has ended."""

    device: int
    generation: int


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request in quarantine."""

    method: str
    fingerprint: str
    since: float
    """Seconds since 1970."""
    ends: int
    where: list[EndPlace]

    @property
    def request(self) -> RequestKey:
        """The key of the request, as orders name it."""
        return RequestKey(self.method, bytes.fromhex(self.fingerprint))


class RemoteClientStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session of a client on another machine."""

    client: str
    key: str
    connected: bool
    kept_bytes: int


class RelayStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The relay."""

    address: str
    pid: int
    listening: bool
    restarts: int
    refused: int
    sessions: list[RemoteClientStatus]
    standby_pid: int


class WorldMemberStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank of a world."""

    rank: int
    device: int
    begun: int
    """The latest call that it has begun, as its number in the order of the epoch's calls."""
    ended: int
    doing: str
    """In words: "is idle", "runs call 3", "waits in all_reduce"."""


class WorldStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A world."""

    name: str
    devices: list[int]
    """By rank."""
    actors: list[str]
    state: WorldState
    """`ready`: calls are admitted."""
    epoch: int
    """How often it has formed."""
    reason: str
    """Why it is not ready."""
    published: int = 0
    """How many calls the order of this epoch has."""
    members: list[WorldMemberStatus] = msgspec.field(default_factory=list)
    """By rank, while an epoch goes on."""
    waits: str = ""
    """A sentence on the ranks that wait for others; empty if none waits for long."""


class GpuLinkStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How two GPUs reach each other's memory."""

    gpus: list[int]
    """Their positions in the pool."""
    access: bool
    """Whether each can read and write the other's memory, as worlds on GPUs need it."""
    nvlink: bool
    """Whether over NVLink, in place of PCIe."""


class PoolStatus(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A snapshot of a pool: its states, queues and processes.

    Of a pool that cannot be asked, all but the first fields are null, 0 or empty.
    """

    pool: str
    state: PoolState
    """`healthy`: all devices and worlds are ready. `degraded`: some are, or logs and events cannot be written. `down`:
    no device is, the pool stops, or none runs there. A device that stands still does not count as ready.
    `unreachable`: its supervisor runs, and does not answer."""
    reason: str = ""
    """Why, if it stops, cannot be asked, or all devices are ready."""
    backend: str | None = None
    version: str | None = None
    run_dir: str | None = None
    """Null for a pool on another machine."""
    supervisor_pid: int | None = None
    """Null if none runs."""
    uptime_s: float | None = None
    supervisor_memory_bytes: int = 0
    sessions: int = 0
    """Clients that may call."""
    refused: int = 0
    """Sessions refused since the start."""
    unwritable: str = ""
    """What cannot be written to the run directory, as on a full disk, and since when. Output and events are lost."""
    unwritable_since: float | None = None
    """Seconds since 1970."""
    reloading: bool = False
    """Whether the pool is being reloaded, one device at a time."""
    reload_failed: str = ""
    """Why the last reload has failed; empty once one succeeds."""
    reload_failed_at: float | None = None
    """Seconds since 1970."""
    unkept_results: int = 0
    resident_bytes: int = 0
    quarantined: list[RefusedRequest] = msgspec.field(default_factory=list)
    remote: RelayStatus | None = None
    """Null if no remote clients are admitted."""
    devices: list[DeviceStatus] = msgspec.field(default_factory=list)
    worlds: list[WorldStatus] = msgspec.field(default_factory=list)
    gpu_links: list[GpuLinkStatus] = msgspec.field(default_factory=list)
    """As far as the driver tells it."""
    kernels: str | None = None
    """Clients that may compile and launch kernels of their own: `local`, `all` or `off`."""


LOST: Final = "workers' output and events are lost; calls go on"


def status_of(answer: operators.Status, run_dir: Path | None, now: float) -> PoolStatus:
    """Return a pool's status.

    Args:
        answer: The supervisor's answer.
        run_dir: The pool's run directory, None if it is on another machine.
        now: Seconds since 1970.
    """
    devices = [_device(worker, now) for worker in answer.workers]
    ready = sum(device.state is DeviceState.READY and not device.stands_still for device in devices)
    state, reason = _state(answer, ready)
    return PoolStatus(
        pool=answer.pool,
        state=state,
        reason=reason,
        backend=answer.backend,
        version=answer.version,
        run_dir=None if run_dir is None else str(run_dir),
        supervisor_pid=answer.supervisor_pid,
        uptime_s=round(now - answer.supervisor_started_at, 3),
        supervisor_memory_bytes=answer.supervisor_memory_bytes,
        sessions=answer.sessions,
        refused=answer.refused,
        unwritable=answer.unwritable,
        unwritable_since=answer.unwritable_since or None,
        reloading=answer.reloading,
        reload_failed=answer.reload_failed,
        reload_failed_at=answer.reload_failed_at or None,
        unkept_results=answer.unkept_results,
        resident_bytes=answer.resident_bytes,
        quarantined=[_quarantined(each) for each in answer.quarantined],
        remote=None if answer.remote is None else _relay(answer.remote),
        devices=devices,
        worlds=[
            _world(world, progress)
            for world, progress in itertools.zip_longest(answer.worlds, answer.progress[: len(answer.worlds)])
        ],
        gpu_links=[
            GpuLinkStatus(gpus=[each.gpu, each.other], access=each.access, nvlink=each.nvlink) for each in answer.links
        ],
        kernels=answer.kernels,
    )


def _state(answer: operators.Status, ready: int) -> tuple[PoolState, str]:
    """Return a pool's state, and the reason where no device's state tells it.

    Args:
        answer: The supervisor's answer.
        ready: How many devices are ready.
    """
    if answer.stopping:
        return DOWN, "the pool stops"
    if ready < len(answer.workers) or not ready:
        return DEGRADED if ready else DOWN, ""
    # Those that sessions have made come and go with these.
    waiting = [each for each in answer.worlds if each.state is not WorldState.READY and not each.made]
    if waiting:
        return DEGRADED, f"world {waiting[0].name} is {waiting[0].state}"
    return (DEGRADED, f"{answer.unwritable}: {LOST}") if answer.unwritable else (HEALTHY, "")


def _world(world: WorldInfo, progress: operators.WorldProgress | None) -> WorldStatus:
    progress = progress or operators.WorldProgress()  # of a supervisor that does not tell it
    return WorldStatus(
        name=world.name,
        devices=world.devices,
        actors=world.actors,
        state=world.state,
        epoch=world.epoch,
        reason=world.reason,
        published=progress.published,
        members=[
            WorldMemberStatus(rank=rank, device=device, begun=each.begun, ended=each.ended, doing=each.doing)
            for rank, (device, each) in enumerate(zip(world.devices, progress.members, strict=False))
        ],
        waits=progress.waits,
    )


def _device(worker: operators.WorkerStatus, now: float) -> DeviceStatus:
    info = worker.device
    return DeviceStatus(
        index=info.index,
        name=info.name,
        gpu=info.gpu,
        worker=info.worker,
        workers_per_gpu=info.workers_per_gpu,
        uuid=info.uuid,
        state=info.state,
        circuit=info.circuit.value,
        retry_after_s=round(info.retry_after_s(now), 3) or None,
        reason=worker.reason,
        stands_still=bool(worker.standstill),
        generation=info.generation,
        pid=info.worker_pid,
        restarts=info.restarts,
        queue_depth=worker.queue_depth,
        running=worker.running,
        running_for_s=round(worker.running_for_s, 3),
        started=worker.started,
        completed=worker.completed,
        refused=worker.refused,
        internal_errors=worker.figures.internal_errors,
        uptime_s=round(now - worker.started_at, 3) if worker.started_at else None,
        memory_bytes=worker.memory_bytes,
        notes=worker.notes,
        batches=[_batches(each) for each in worker.batches],
        plans=[_plans(each) for each in worker.plans],
        graphs=None if worker.graphs is None else GraphFigures(**msgspec.structs.asdict(worker.graphs)),
        work=[_work(each) for each in worker.work],
        slab_bytes=worker.slab_bytes,
        leases=worker.leases,
        last_fault=worker.last_fault,
        last_fault_at=worker.last_fault_at or None,
        standby=None if worker.standby is None else _standby(worker.standby),
    )


def _relay(remote: operators.RemoteStatus) -> RelayStatus:
    named = msgspec.structs.asdict(remote)
    named["sessions"] = [RemoteClientStatus(**msgspec.structs.asdict(each)) for each in remote.sessions]
    return RelayStatus(**named)


def _quarantined(found: operators.QuarantinedRequest) -> RefusedRequest:
    return RefusedRequest(
        method=found.request.method,
        fingerprint=found.request.fingerprint.hex(),
        since=found.since,
        ends=found.ends,
        where=[EndPlace(device=end.device, generation=end.generation) for end in found.where],
    )


def _batches(of: operators.BatchStatus) -> BatchFigures:
    return BatchFigures(
        method=of.method,
        batches=of.batches,
        items=of.items,
        mean_items=round(of.items / of.batches, 3) if of.batches else None,
        mean_wait_s=round(of.wait_s / of.items, 6) if of.items else None,
        longest_wait_s=round(of.longest_wait_s, 6),
        sizes={str(2**power): count for power, count in enumerate(of.sizes)},
    )


def _plans(of: operators.PlanStatus) -> PlanFigures:
    return PlanFigures(
        library=of.library, hits=of.hits, misses=of.misses, kept=of.kept, dropped=of.dropped, engine=of.engine or None
    )


def _work(of: operators.WorkStatus) -> WorkFigures:
    seconds = of.execution_ns / 1e9
    return WorkFigures(
        method=of.method,
        requests=of.requests,
        mean_s=round(seconds / max(of.requests, 1), 9),
        gflops=rate(of.flops, seconds) if of.flops and seconds else None,
        gbytes_per_s=rate(of.moved_bytes, seconds) if of.moved_bytes and seconds else None,
    )


def _standby(of: operators.StandbyStatus) -> DeviceStandby:
    return DeviceStandby(
        mode=of.mode,
        state=of.state,
        pid=of.standby_pid,
        generation=of.generation or None,
        restarts=of.restarts,
        next_fault_costs_ms=of.next_fault_costs_ms,
        note=of.note,
    )
