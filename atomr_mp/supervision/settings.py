"""The settings of a pool, each within its range. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from atomr_mp.protocol.codec import MAX_DEVICES, MAX_WEIGHT
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages.rights import KernelsFor
from atomr_mp.protocol.raised import LogErrors

Backend = Literal["auto", "cuda", "host"]

Standby = Literal["hot", "warm", "none"]

WorldEngine = Literal["mailboxes", "nccl", "auto"]

Completion = Literal["adaptive", "host_function", "polled", "synchronous"]

OFF: Final = "off"
"""The `metrics` of a pool that serves none, and the `listen` of one that admits no remote clients."""

_Positive = Annotated[float, msgspec.Meta(gt=0)]


MADE_PREFIX: Final = "made-"
"""The names of worlds that clients make begin with it; no world of the settings' does."""


class WorldSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A world: actors over several devices, whose methods are called on all of them as one."""

    devices: Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=MAX_DEVICES)]], msgspec.Meta(min_length=1)]
    """Its devices; the first one has rank 0. None twice."""
    actors: Annotated[list[str], msgspec.Meta(min_length=1)]
    """Names of the pool's actors that run on these devices alone, as one. Each may be in one world."""
    begin_timeout_s: _Positive = 10.0
    """Time within which each member has to begin a call; a member that is later is replaced."""
    engine: WorldEngine = "mailboxes"
    """What collectives on GPUs go through: "mailboxes", kernels of ours; "nccl"; "auto", mailboxes where all of the
    world's GPUs reach each other's memory, else NCCL."""
    spares: bool = False
    """With NCCL and hot standbys: whether these form their communicators ahead, at about 0.5 GiB each on every GPU."""


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a pool, as they are given; what they leave open is decided in `supervisor.plan.Plan`."""

    pool: str = "default"
    """Name of the pool: 1 to 64 of A-Z a-z 0-9 . _ - without a dot in front. `atomr_mp.start` makes one up."""
    run_dir: str | None = None
    """The run directory; none for the default."""
    backend: Backend = "auto"
    """"cuda", "host", or "auto": host if the machine has no NVIDIA hardware at all, else cuda, without a fall-back."""
    gpus: str = "all"
    """GPUs by index or UUID ("0,2", "1,", "GPU-1a2b"), a number of them ("2"), or "all"; 64 at most. On the host
    backend 1 to 64 processes, or "all": half the cores, two at least."""
    workers_per_gpu: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEVICES)] = 1
    """How many devices each GPU has; 64 in all at most. On the host backend the same of processes."""
    actors: list[str] = []
    """"package.module:Class" or "file.py:Class", with "NAME=" in front for another name;
    "directory/package.module:Class" where the module is not on the import path. "@0+1" behind it names the devices
    that have it, "@0-3" a range; without, all have it. In a file, paths are relative to the file."""
    worlds: dict[str, WorldSettings] = {}
    """Worlds by name: `{"tp": {"devices": [0, 1], "actors": ["Mlp"]}}`; also `engine`, `spares`, `begin_timeout_s`."""
    window_requests: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 256
    """Requests that one connection of a client may have unanswered per device; at most 65,536. Each event loop has a
    connection, and all threads of a program together."""
    window_bytes: Annotated[int, msgspec.Meta(ge=1)] = 256 * 2**20
    """Bytes of these requests' arguments. A single larger request is admitted when nothing else is unanswered."""
    max_streams: Annotated[int, msgspec.Meta(ge=0)] = 256
    """Streams that may be open in one worker, for all clients together and for each connection; at most 1,024."""
    stall_s: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    """Time after which a stream ends that has used up its credit and is not read. 0: never."""
    max_restarts: Annotated[int, msgspec.Meta(ge=0)] = 3
    """Unplanned ends within `within_s` after which a device is started again; one more opens its circuit."""
    within_s: _Positive = 60.0
    """The time within which `max_restarts` counts."""
    backoff_initial_s: float = 0.5
    """Delay of the second restart in a row; the first comes at once."""
    backoff_factor: Annotated[float, msgspec.Meta(ge=1, le=1e308)] = 2.0
    """Factor by which each further delay is longer."""
    backoff_max_s: float = 30.0
    """The longest delay."""
    give_up: bool = False
    """Stop a device instead of opening its circuit, until `atomr-mp restart DEVICE`."""
    start_timeout_s: _Positive = 300.0
    """Time a worker may take until its actors are set up; then it is killed and started again."""
    drain_timeout_s: _Positive = 30.0
    """Time a worker may take to finish its requests when it is replaced or stopped; then it is killed."""
    hang_timeout_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0
    """Time a request may run beyond its deadline, while nothing else ends where it runs, before its worker is replaced.
    Actors and methods may have their own limit. 0: never."""
    kill_timeout_s: _Positive = 30.0
    """Time a killed worker may take to end; then its device is quarantined."""
    max_requests: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Requests after which a worker is replaced, unnoticed by callers. 0: no limit."""
    max_age_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Age at which a worker is replaced, up to a fifth earlier, so that not all go at once. 0: no limit."""
    max_memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Memory of the host, with everything mapped, at which a worker older than 30 s is replaced. 0: no limit."""
    max_device_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Memory of the device at which a worker older than 30 s is replaced. 0: no limit."""
    log_max_bytes: Annotated[int, msgspec.Meta(ge=4096)] = 16 * 2**20
    """Size at which a worker's log is rotated, checked every five seconds; at least 4,096."""
    log_errors: LogErrors = "full"
    """What a worker's log shows of an exception that a method raises: "full", its traceback, once a minute for each
    place; "type", its type and place without its text, which may have users' data; "off", nothing."""
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most that the slabs of one device, which hold buffers, may take; more is `OutOfMemory`. 0: four fifths of the
    GPU's or slice's memory, on the host backend half of the machine's or container's, divided by the devices there."""
    streams: str = "per_actor"
    """Which library works on which CUDA stream: "per_actor", one for each; "fresh", a new one for each use; "pooled:N",
    N in turn; "single", one for all."""
    completion: Completion = "adaptive"
    """How a worker learns that a stream has done its work: "adaptive" polls for 0.1 ms, then sleeps; "host_function"
    sleeps at once; "polled" polls every 50 µs; "synchronous" blocks."""
    inline_bytes: Annotated[int, msgspec.Meta(ge=0)] = 65536
    """Library requests that touch at most so many bytes, outputs included, and do little with them, run in the host
    backend's loop; others, and those of unknown cost, on a stream's thread."""
    metrics: str = OFF
    """Where metrics are served: "127.0.0.1:PORT" or another loopback address, "unix:PATH" (relative to the run
    directory), or "off". Needs the extra `metrics`."""
    listen: str = OFF
    """Where clients on other machines are admitted: "tcp://ADDRESS:PORT" with an address of this machine,
    "tcp://*:PORT" for all of them, or "off"."""
    keys_dir: str | None = None
    """Directory of the server's key and of the admitted keys, outside the run directory; none for
    `~/.config/atomr-mp/keys/POOL`."""
    insecure: bool = False
    """Listen without encryption and without keys; on a loopback address only."""
    remote_grace_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0
    """Time for which a remote client's session is kept after its connection was cut; 0 to 3,600."""
    remote_sessions: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 256
    """Most sessions of remote clients at a time."""
    remote_bytes: Annotated[int, msgspec.Meta(ge=1)] = 2**30
    """Most bytes of arrays in unanswered calls of remote clients, of all together; a call beyond is `Overloaded`."""
    max_queue: Annotated[int, msgspec.Meta(ge=1)] = 16384
    """Requests that may wait in one worker, for all clients together; one more is `Overloaded`."""
    max_weight: Annotated[float, msgspec.Meta(ge=1, le=MAX_WEIGHT)] = 10.0
    """Largest weight that a client may ask for, from 1 to 100. With 1, all clients get the same share of a busy device.
    """
    standby: Standby = "none"
    """A process behind each worker: "hot", set up, takes over at once; "warm", with the imports done; "none"."""
    standby_starts: Annotated[int, msgspec.Meta(ge=1)] = 1
    """How many hot standbys may start at a time in the whole pool."""
    preload: list[str] = []
    """Modules that workers find imported with "warm" standbys. Their import must start no thread and not touch CUDA."""
    resident_max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most that resident memory may take in the whole pool; more is `OutOfMemory` in `setup`. 0: no limit."""
    max_replays: Annotated[int, msgspec.Meta(ge=0, lt=2**16)] = 2
    """How often a client sends a call again that ran when its worker ended, if the method is `idempotent`. 0: never,
    and nothing that only waited there either. `atomr_mp.connect(max_replays=...)` has its own."""
    max_suspicions: Annotated[int, msgspec.Meta(ge=0)] = 2
    """How many workers may end from inside while the same request ran, before it is refused (`PoisonRequest`). 0: no
    request is refused or run alone."""
    kernels: KernelsFor = "local"
    """Clients that may compile, load and launch kernels of their own, which can touch all memory of a worker: "local",
    those of the pool's own machine, and keys admitted with `--kernels`; "all", remote ones too; "off", none."""
    threads_per_worker: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    """Threads that OpenMP, MKL and OpenBLAS have in a worker, by OMP_NUM_THREADS and the like; variables that are set
    already hold. 0: on the host backend the cores divided by the number of workers; on GPUs as many as they like."""
    core_dumps: bool = False
    """Let a crashing worker dump core, which delays its replacement."""
    cgroups: bool = False
    """Put each worker into a cgroup of its own, where the supervisor may make one (cgroup version 2, delegated)."""

    @property
    def window(self) -> Window:
        """The window of one connection."""
        return Window(self.window_requests, self.window_bytes, self.max_streams)
