"""The settings of a pool, and how they become a supervisor's plan.

A `Config` comes from keyword arguments or the command line's flags, from the environment (`ATOMR_MP_NAME`) and from a
TOML file, in this order; it is validated as a whole. `plan` decides what it leaves open: which backend, how many
devices, where.

What only GPUs, files or metrics need is imported where it is used: every start would wait for it.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.process.files.rundir import default_run_dir
from atomr_mp.process.gpus.hardware import missing_for_cuda, mps_server, nvidia_hardware
from atomr_mp.protocol import amounts
from atomr_mp.protocol.codec import MAX_DEVICES, MAX_WEIGHT
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.protocol.flow.flight import MAX_STREAMS, Window
from atomr_mp.protocol.messages.control import ActorSpec, Execution
from atomr_mp.protocol.raised import LogErrors
from atomr_mp.protocol.words import choices, did_you_mean, not_among
from atomr_mp.startup.device_lists import check_place, devices_in
from atomr_mp.supervision.intensity import Intensity
from atomr_mp.supervision.placement import Place, places
from atomr_mp.supervision.recycle import RecycleLimits
from atomr_mp.supervisor.plan import METRICS_OFF, DevicePlan, GatewayPlan, Plan, PlanSource, check_homes

Backend = Literal["auto", "cuda", "host"]

Standby = Literal["hot", "warm", "none"]

Completion = Literal["adaptive", "host_function", "polled", "synchronous"]

STREAMS: Final = re.compile(r"per_actor|fresh|single|pooled:[1-9][0-9]?")
"""Values that `Config.streams` may have."""


LISTEN_OFF: Final = "off"

PREFIX: Final = "ATOMR_MP_"
"""Begins the environment variables of settings; the name follows in capital letters."""

_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a pool."""

    pool: str = "default"
    """Name of the pool: 1 to 64 of A-Z a-z 0-9 . _ - without a dot in front. It decides the default run directory.
    `atomr_mp.start` makes up a name."""
    run_dir: str | None = None
    """The run directory; none for the default."""
    backend: Backend = "auto"
    """"cuda", "host", or "auto": host if the machine has no NVIDIA hardware at all, else cuda. On a machine with a GPU
    "auto" never falls back to the CPU."""
    gpus: str = "all"
    """GPUs by index or UUID ("0,2", "1,", "GPU-1a2b"), a number of them ("2"), or "all"; 64 at most. On the host
    backend 1 to 64 processes, or "all": half the cores, two at least."""
    workers_per_gpu: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEVICES)] = 1
    """How many devices each GPU has, each with a worker, a standby and a generation of its own; 64 in all at most.
    Device `D` is number `D % N` of the GPU at place `D // N`. On the host backend the same."""
    actors: list[str] = []
    """"package.module:Class" or "file.py:Class", with "NAME=" in front for another name;
    "directory/package.module:Class" where the module is not on the import path. "@0+1" behind it names the devices
    that have it, "@0-3" a range; without, all have it. In a file, paths are relative to the file."""
    window_requests: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 256
    """Requests that one connection of a client may have unanswered per device; at most 65,536. One more waits in an
    event loop, and is `Overloaded` in a thread, unless it is a library's. Each event loop has a connection, and all
    threads of a program together."""
    window_bytes: Annotated[int, msgspec.Meta(ge=1)] = 256 * 2**20
    """Bytes of these requests' arguments. A single larger request is admitted when nothing else is unanswered."""
    max_streams: Annotated[int, msgspec.Meta(ge=0)] = 256
    """Streams that may be open in one worker, for all clients together and for each connection; at most 1,024."""
    stall_s: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    """Time after which a stream ends that has used up its credit and is not read. 0: never."""
    max_restarts: int = 3
    """Unplanned ends within `within_s` after which a device is started again; one more opens its circuit."""
    within_s: float = 60.0
    """The time within which `max_restarts` counts."""
    backoff_initial_s: float = 0.5
    """Delay of the second restart in a row; the first comes at once."""
    backoff_factor: float = 2.0
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
    Actors and methods may have their own limit, which begins at the request's start. 0: never."""
    kill_timeout_s: _Positive = 30.0
    """Time a killed worker may take to end; then its device is quarantined."""
    max_requests: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Requests after which a worker is replaced, unnoticed by callers. 0: no limit."""
    max_age_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Age at which a worker is replaced, up to a fifth earlier, so that not all go at once. 0: no limit."""
    max_memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Memory of the host, with everything mapped, at which a worker older than 30 s is replaced. 0: no limit."""
    max_device_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Memory of the device at which a worker older than 30 s is replaced: on a GPU the driver's figure for the process;
    on the host backend its slabs. 0: no limit."""
    log_max_bytes: Annotated[int, msgspec.Meta(ge=4096)] = 16 * 2**20
    """Size at which a worker's log is rotated, checked every five seconds; at least 4,096."""
    log_errors: LogErrors = "full"
    """What a worker's log shows of an exception that a method raises: "full", its traceback, once a minute for each
    place; "type", its type and place without its text, which may have users' data; "off", nothing."""
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most that the slabs of one device, which hold buffers, may take; more is `OutOfMemory`. 0: four fifths of the
    GPU's or slice's memory, divided by `workers_per_gpu`; on the host backend half of the memory of the machine or
    container, divided by the number of devices."""
    streams: str = "per_actor"
    """Which library works on which CUDA stream: "per_actor", one for each; "fresh", a new one for each use; "pooled:N",
    N in turn; "single", one for all."""
    completion: Completion = "adaptive"
    """How a worker learns that a stream has done its work: "adaptive" polls for a tenth of a millisecond, then sleeps
    until it is woken; "host_function" sleeps at once; "polled" polls every 50 µs; "synchronous" blocks."""
    inline_bytes: Annotated[int, msgspec.Meta(ge=0)] = 65536
    """Library requests that touch at most so many bytes run in the host backend's loop, without a stream's thread."""
    metrics: str = "off"
    """Where metrics are served: "127.0.0.1:PORT" or another loopback address, "unix:PATH" (relative to the run
    directory), or "off". Needs the extra `metrics`."""
    listen: str = "off"
    """Where clients on other machines are admitted: "tcp://ADDRESS:PORT" with an address of this machine,
    "tcp://*:PORT" for all of them, or "off". Large arrays use the next port."""
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
    """Most bytes of arguments and answers that the gateway keeps, for all clients; a call beyond is `Overloaded`."""
    max_queue: Annotated[int, msgspec.Meta(ge=1)] = 16384
    """Requests that may wait in one worker, for all clients together; one more is `Overloaded`. The decorator's `queue`
    limits a single method."""
    max_weight: Annotated[float, msgspec.Meta(ge=1, le=MAX_WEIGHT)] = 10.0
    """Largest weight that a client may ask for, from 1 to 100. With 1, all clients get the same share of a busy device.
    """
    standby: Standby = "none"
    """A process behind each worker: "hot", set up, takes over at once; "warm", with the imports done; "none"."""
    standby_starts: Annotated[int, msgspec.Meta(ge=1)] = 1
    """How many hot standbys may start at a time in the whole pool."""
    preload: list[str] = []
    """Modules that workers find imported with "warm" standbys, besides the runtime's own, NumPy, and CuPy on cuda.
    Their import must start no thread and not touch CUDA."""
    resident_max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most that resident memory may take in the whole pool; more is `OutOfMemory` in `setup`. 0: no limit."""
    max_replays: Annotated[int, msgspec.Meta(ge=0, lt=2**16)] = 2
    """How often a client sends a call again that ran when its worker ended, if the method is `idempotent`. 0: never,
    and nothing that only waited there either, whatever `resend` says. `atomr_mp.connect(max_replays=...)` has its own.
    """
    max_suspicions: Annotated[int, msgspec.Meta(ge=0)] = 2
    """How many workers may end from inside while the same request ran, before it is refused (`PoisonRequest`). 0: no
    request is refused or run alone."""
    threads_per_worker: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    """Threads that OpenMP, MKL and OpenBLAS have in a worker, by OMP_NUM_THREADS and the like; variables that are set
    already hold. 0: on the host backend the cores divided by the number of workers, one at least; on GPUs as many as
    the libraries like."""
    core_dumps: bool = False
    """Let a crashing worker dump core, which delays its replacement."""
    cgroups: bool = False
    """Put each worker into a cgroup of its own, where the supervisor may make one (cgroup version 2, delegated)."""

    @classmethod
    def load(cls, file: Path | None = None, **settings: Any) -> Config:
        """Return the settings of a TOML file, overridden by the environment, and by those given by keyword.

        Args:
            file: The file.
            **settings: None means not given.

        Raises:
            ConfigurationError: The file cannot be read, or a setting is unknown or out of range.
        """
        return gather(file, settings).config

    @property
    def run_path(self) -> Path:
        """The run directory."""
        return Path(self.run_dir).absolute() if self.run_dir else default_run_dir(self.pool)

    def check(self) -> None:
        """Check what can be checked without looking at the machine.

        Raises:
            ConfigurationError: A setting that no machine can satisfy.
        """
        if not STREAMS.fullmatch(self.streams):
            raise errors.ConfigurationError(
                f"streams = {self.streams!r}: use per_actor, fresh, single, or pooled:N with N from 1 to 99"
            )
        default_run_dir(self.pool)  # looks at the name only
        _ = self._intensity, self._recycling
        if self.metrics != METRICS_OFF:
            from atomr_mp.supervisor.care import exporter

            exporter.check(self.metrics)
        if self.listen != LISTEN_OFF:
            from atomr_mp.supervisor.care import gateway

            if self.insecure and not gateway.is_loopback(self.listen):
                raise errors.ConfigurationError(
                    f"listen = {self.listen!r} with insecure: without keys only a loopback address may be listened at"
                )
        elif self.insecure:
            raise errors.ConfigurationError("insecure says how to `listen`, which is off")
        actor_specs(self.actors)

    def plan(self) -> Plan:
        """Decide what is left open.

        Raises:
            ConfigurationError: What is asked for does not exist here; the message says what was found.
        """
        self.check()
        if self.metrics != METRICS_OFF and importlib.util.find_spec("prometheus_client") is None:
            raise errors.ConfigurationError(
                "metrics are served by prometheus-client, which is not installed; "
                + how_to_install("prometheus_client")
            )
        if self.max_streams > MAX_STREAMS:
            raise errors.ConfigurationError(
                f"max_streams = {self.max_streams}: a worker's board has places for {MAX_STREAMS}, and no more"
            )
        found = "" if self.backend == "host" else nvidia_hardware()
        if self.backend == "cuda" and not found:
            raise errors.ConfigurationError("the cuda backend was asked for, but this machine has no NVIDIA hardware")
        devices = self._cuda_devices(found) if found else self._host_devices()
        actors = actor_specs(self.actors)
        check_homes(actors, len(devices))
        return Plan(
            pool=self.pool,
            run_dir=str(self.run_path),
            backend="cuda" if found else "host",
            devices=devices,
            actors=actors,
            window=Window(self.window_requests, self.window_bytes, self.max_streams),
            intensity=self._intensity,
            start_timeout_s=self.start_timeout_s,
            drain_timeout_s=self.drain_timeout_s,
            kill_timeout_s=self.kill_timeout_s,
            log_max_bytes=self.log_max_bytes,
            core_dumps=self.core_dumps,
            cgroups=self.cgroups,
            recycling=self._recycling,
            metrics=self.metrics,
            standby=self.standby,
            standby_starts=self.standby_starts,
            preload=self.preload,
            resident_max_bytes=self.resident_max_bytes,
            max_replays=self.max_replays,
            max_suspicions=self.max_suspicions,
            max_weight=self.max_weight,
            gateway=None if self.listen == LISTEN_OFF else self._gateway(),
        )

    def _gateway(self) -> GatewayPlan:
        """Return how remote clients are admitted.

        Raises:
            ConfigurationError: pyzmq is not there or too old, or there is no key.
        """
        from atomr_mp.remote import keys
        from atomr_mp.remote.wire import check_library

        check_library()
        directory = Path(self.keys_dir).absolute() if self.keys_dir else keys.default_keys_dir(self.pool)
        if not self.insecure:
            keys.check_outside(directory, self.run_path)
            keys.read_server(directory)
            keys.read_admitted(directory)
        return GatewayPlan(
            self.listen,
            "" if self.insecure else str(directory),
            self.remote_grace_s,
            self.remote_sessions,
            self.remote_bytes,
        )

    @property
    def _intensity(self) -> Intensity:
        return Intensity(
            self.max_restarts,
            self.within_s,
            self.backoff_initial_s,
            self.backoff_factor,
            self.backoff_max_s,
            self.give_up,
        )

    @property
    def _recycling(self) -> RecycleLimits:
        return RecycleLimits(self.max_requests, self.max_age_s, self.max_memory_bytes, self.max_device_bytes)

    def _cuda_devices(self, hardware: str) -> list[DevicePlan]:
        from atomr_mp.process.gpus import nvml
        from atomr_mp.supervision import placement

        try:
            survey = nvml.survey()
            if missing := missing_for_cuda(survey):
                raise errors.ConfigurationError(missing)
        except errors.ConfigurationError as error:
            raise errors.ConfigurationError(
                f"NVIDIA hardware was found ({hardware}), but {error.message}. Or run on the CPU by `--backend host`"
            ) from error
        visible = placement.visible(survey.gpus, os.environ.get(placement.VISIBLE))
        chosen = placement.choose(visible, self.gpus)
        places = self._places(len(chosen))
        for gpu in chosen:
            placement.check_workers(gpu, self.workers_per_gpu)
            placement.check_standby(gpu, self.standby)
        mps = mps_server()
        return [
            DevicePlan(
                index,
                gpu.name,
                placement.environment(gpu, chosen),
                # The rest is for CUDA's contexts, its libraries, and what actors allocate by other means.
                self._execution((gpu.memory_bytes or _host_memory_bytes()) * 4 // 5 // self.workers_per_gpu),
                gpu.uuid,
                placement.notes(gpu, mps),
                *place,
                self.workers_per_gpu,
                threads=self.threads_per_worker,
            )
            for index, place in enumerate(places)
            for gpu in [chosen[place.gpu]]
        ]

    def _host_devices(self) -> list[DevicePlan]:
        if self.gpus == "all":
            count = max(2, len(os.sched_getaffinity(0)) // 2)
        elif self.gpus.isdecimal() and 1 <= int(self.gpus) <= MAX_DEVICES:
            count = int(self.gpus)
        else:
            raise errors.ConfigurationError(
                f"--gpus {self.gpus}: the host backend takes a number of devices from 1 to {MAX_DEVICES}, or all"
            )
        places = self._places(count)
        execution = self._execution(_host_memory_bytes() // (2 * len(places)))
        threads = self.threads_per_worker or max(1, len(os.sched_getaffinity(0)) // len(places))
        return [
            DevicePlan(index, f"host:{place.gpu}", {}, execution, "", [], *place, self.workers_per_gpu, threads=threads)
            for index, place in enumerate(places)
        ]

    def _places(self, gpus: int) -> list[Place]:
        """Return where each device is.

        Raises:
            ConfigurationError: There would be too many.
        """
        if gpus * self.workers_per_gpu > MAX_DEVICES:
            each = "" if self.workers_per_gpu == 1 else f" with workers_per_gpu = {self.workers_per_gpu}"
            raise errors.ConfigurationError(
                f"--gpus {self.gpus}{each} is {gpus * self.workers_per_gpu}: a pool has at most {MAX_DEVICES} devices"
            )
        return places(gpus, self.workers_per_gpu)

    def _execution(self, memory_bytes: int) -> Execution:
        """Return how a worker uses its device, if it may have so much memory by default."""
        return Execution(
            self.memory_bytes or memory_bytes,
            self.streams,
            self.completion,
            self.inline_bytes,
            self.max_queue,
            self.hang_timeout_s,
            self.stall_s,
            self.log_errors,
        )


class Gathered(NamedTuple):
    """Settings, and where they are from."""

    config: Config
    sources: dict[str, str]
    """For each setting, in words: "default", "option", "environment", "FILE"."""
    unknown: list[str]
    """Variables that begin as if they were settings and are none. No error: orchestrators make such names of
    services, as ATOMR_MP_SERVICE_HOST."""


def gather(file: Path | None, settings: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Gathered:
    """Put settings together; what is given comes before the environment, and that before the file.

    Args:
        file: A TOML file.
        settings: What is given; None means that it is not.
        environment: Where ATOMR_MP_NAME is looked for.

    Raises:
        ConfigurationError: The file cannot be read, or a setting is unknown or out of range.
    """
    in_file = {} if file is None else _of_file(file)
    in_environment, unknown = _of_environment(environment)
    given = {name: value for name, value in settings.items() if value is not None}
    if isinstance(given.get("actors"), str):
        given["actors"] = [given["actors"]]
    sources = dict.fromkeys(Config.__struct_fields__, "default")
    values: dict[str, Any] = {}
    for found, source in ((in_file, str(file)), (in_environment, "environment"), (given, "option")):
        _check_names(found, str(file) if found is in_file else "the settings", OF_START if found is given else ())
        values |= found
        sources |= dict.fromkeys(found, source)
    for field in msgspec.structs.fields(Config):
        if field.name in values:
            where = str(file) if sources[field.name] == str(file) else "the settings"
            _check_value(where, field, values[field.name])
    return Gathered(msgspec.convert(values, Config), sources, unknown)


def _check_value(where: str, field: msgspec.structs.FieldInfo, value: Any) -> None:
    """Check one setting.

    Raises:
        ConfigurationError: It is of another type, or out of range; the message names it, and says what it may be.
    """
    name, words = field.name, choices(field.type)
    try:
        found = msgspec.convert(value, field.type)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        if words:
            raise errors.ConfigurationError(f"{where}: {not_among(name, value, words)}") from error
        raise errors.ConfigurationError(f"{where}: {name} is {value!r}: {error}") from error
    if type(found) is float and name.endswith("_s"):
        amounts.duration(f"{where}: {name}", found, zero=True, error=errors.ConfigurationError)
    elif type(found) is int:
        amounts.whole(f"{where}: {name}", found, 0, error=errors.ConfigurationError)


OF_START: Final = ("config", "weight", "max_waiting")
"""Arguments of `start` that are no settings."""


def _check_names(found: Mapping[str, Any], where: str, others: Iterable[str] = ()) -> None:
    """Check that there are such settings.

    Args:
        found: The settings.
        where: Where they were given.
        others: What else may be given there.

    Raises:
        ConfigurationError: One is unknown.
    """
    for name in found:
        if name not in Config.__struct_fields__:
            raise errors.ConfigurationError(
                f"{where}: there is no setting {name!r}{did_you_mean(name, [*Config.__struct_fields__, *others])}"
            )


def _of_file(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise errors.ConfigurationError(f"the configuration {file} cannot be read: {error}") from error
    # Relative paths in a file are relative to the file.
    actors = values.get("actors")
    if isinstance(actors, str | list):
        several = [actors] if isinstance(actors, str) else actors
        values["actors"] = [_anchored(str(actor), file.parent) for actor in several]
    return values


def _of_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    fields = {f"{PREFIX}{field.name.upper()}": field for field in msgspec.structs.fields(Config)}
    values = {}
    for variable in sorted(fields.keys() & environment.keys()):
        values[fields[variable].name] = from_text(variable, fields[variable].name, environment[variable])
    return values, sorted(name for name in environment if name.startswith(PREFIX) and name not in fields)


def from_text(where: str, name: str, text: str) -> Any:
    """Return a setting that was written as text: numbers and truth values as in TOML, lists with commas.

    Args:
        where: What it was written as, for the error.
        name: The setting.
        text: Its value.

    Raises:
        ConfigurationError: There is no such setting, or it cannot have this value.
    """
    kinds = {field.name: field.type for field in msgspec.structs.fields(Config)}
    if name not in kinds:
        raise errors.ConfigurationError(f"{where}: there is no setting {name!r}{did_you_mean(name, kinds)}")
    value: object = [each.strip() for each in text.split(",") if each.strip()] if kinds[name] == list[str] else text
    try:
        return msgspec.convert(value, kinds[name], strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        words = choices(kinds[name])
        what = not_among(where, text, words) if words else f"{where} is {text!r}: {error}"
        raise errors.ConfigurationError(what) from error


def with_source(plan: Plan, file: Path, settings: dict[str, Any]) -> Plan:
    """Return a plan that says what it was made from, so that it can be made again: a file, and what came before it."""
    given = {name: value for name, value in settings.items() if value is not None}
    return msgspec.structs.replace(plan, source=PlanSource(str(file.absolute()), msgspec.json.encode(given).decode()))


def actor_specs(actors: list[str]) -> list[ActorSpec]:
    """Return actors as workers get them: named, files with absolute paths.

    Raises:
        ConfigurationError: Not of the form "[NAME=]module:Class[@DEVICES]" or "[NAME=]file.py:Class[@DEVICES]", a name
            comes twice, or a file or directory does not exist.
    """
    specs: dict[str, ActorSpec] = {}
    for actor in actors:
        named, target = _split(actor)
        location, colon, rest = target.rpartition(":")
        cls, at, behind = rest.partition("@")
        check_place(actor, location)
        if not (colon and location and not location.endswith(":") and cls.isidentifier()):
            raise errors.ConfigurationError(
                f"{actor!r} does not name an actor; write package.module:Class or path/to/file.py:Class"
            )
        name = named or cls
        devices = devices_in(actor, behind) if at else ()
        if not name.isidentifier():
            raise errors.ConfigurationError(f"{name!r} is no name for an actor; use letters, digits and _")
        if name in specs:
            raise errors.ConfigurationError(f"two actors are called {name!r}; name one of them: OTHER={target}")
        specs[name] = ActorSpec(name, f"{_absolute(location)}:{cls}", devices)
    return list(specs.values())


def _split(actor: str) -> tuple[str, str]:
    """Return the name that an actor is given, if any, and what it is. A path may contain "=" too."""
    name, equals, target = actor.partition("=")
    return (name, target) if equals and "/" not in name else ("", actor)


def _absolute(location: str) -> str:
    """Return where an actor is, with its file or directory as an absolute path.

    Raises:
        ConfigurationError: The file or directory does not exist.
    """
    path = Path(location).absolute()
    if location.endswith(".py"):
        if not path.is_file():
            raise errors.ConfigurationError(f"the actor's file {path} does not exist")
        return str(path)
    if "/" in location:
        if not path.parent.is_dir():
            raise errors.ConfigurationError(f"the directory of the actor's module, {path.parent}, does not exist")
        return str(path)
    return location


def _host_memory_bytes() -> int:
    """Return how much memory this machine has, or this container may use (cgroup version 2)."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no cgroup, or no limit
        return machine


def _anchored(actor: str, directory: Path) -> str:
    name, target = _split(actor)
    location, colon, cls = target.rpartition(":")
    if location.endswith(".py") or "/" in location:
        target = f"{directory / location}{colon}{cls}"
    return f"{name}={target}" if name else target
