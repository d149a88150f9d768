"""The pool that a supervisor runs, with everything decided. It crosses to the supervisor's process as JSON."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.messages.control import MAX_WORLD_ACTORS, ActorSpec, Execution
from atomr_mp.protocol.words import counted, did_you_mean, place_of, these_devices
from atomr_mp.supervision.settings import MADE_PREFIX, PoolSettings, WorldSettings

OMP_THREADS: Final = "OMP_NUM_THREADS"

OTHER_THREADS: Final = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that come before OpenMP's in their libraries."""

FIXED: Final = (
    *("pool", "window_requests", "window_bytes", "max_streams", "log_max_bytes", "cgroups", "metrics", "standby"),
    *("standby_starts", "max_replays", "max_suspicions", "max_weight", "worlds", "kernels"),
    *("listen", "keys_dir", "insecure", "remote_grace_s", "remote_sessions", "remote_bytes"),
)
"""Settings that the supervisor or the clients hold: a running pool keeps them."""


class DevicePlan(msgspec.Struct, frozen=True):
    """The plan of one device."""

    index: int
    name: str
    environment: dict[str, str]
    """Environment variables for this device's workers, beside the supervisor's own."""
    execution: Execution
    uuid: str = ""
    """UUID of the GPU; empty on the host backend."""
    notes: list[str] = []
    """Notes for the operator."""
    gpu: int = 0
    """Position of its GPU among the pool's; on the host backend of what stands for one."""
    worker: int = 0
    """Number of its worker among those of its GPU."""
    workers_per_gpu: int = 1
    """How many devices its GPU has."""
    threads: int = 0
    """Threads that numeric libraries have in a worker; 0 for as many as they like."""

    def whole_environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of this device's workers.

        Args:
            given: The supervisor's; what it says of threads holds.
        """
        return {**given, **thread_limits(self.threads, given), **self.environment}

    @property
    def place(self) -> str:
        """Its GPU and worker in words, if its GPU has several; else nothing."""
        return place_of(self.gpu, self.worker, self.workers_per_gpu)

    @property
    def facts(self) -> dict[str, int]:
        """What events tell of the device: its index, and its GPU and worker if its GPU has several."""
        several = {"gpu": self.gpu, "worker": self.worker} if self.workers_per_gpu > 1 else {}
        return {"device": self.index, **several}

    @property
    def title(self) -> str:
        """The device as logs name it: "device 3", or "device 3 (GPU 1, worker 1)" if its GPU has several."""
        return f"device {self.index} ({self.place})" if self.place else f"device {self.index}"


class WorldPlan(msgspec.Struct, frozen=True):
    """The plan of one world."""

    number: int
    """Names it in messages and calls."""
    name: str
    devices: list[int]
    """Its devices, by rank."""
    actors: list[str]
    begin_timeout_s: float
    """Time within which each member has to begin a call."""
    session: int = 0
    """Number of the session that has made it, and alone uses it; 0 if it is of the pool's plan."""
    mailboxes: bool = False
    """Whether members have mailboxes, memory that they hand over before they can join an epoch."""
    engine: Literal["mailboxes", "nccl"] = "mailboxes"
    """What collectives on GPUs go through."""
    spares: bool = False
    """Whether standbys form communicators of NCCL ahead."""


class PlanSource(msgspec.Struct, frozen=True):
    """The sources of a plan, for making it again."""

    file: str
    """The configuration file, absolute."""
    settings: str
    """Settings given beside the file, which override it: a JSON object."""


class Plan(msgspec.Struct, frozen=True):
    """The settings of a pool, and what they leave open, decided."""

    settings: PoolSettings
    run_dir: str
    backend: str
    """"cuda" or "host"."""
    devices: list[DevicePlan]
    actors: list[ActorSpec]
    keys_dir: str = ""
    """The directory of remote clients' keys; empty for no encryption, on loopback, and if they are not admitted."""
    temporary: bool = False
    """Whether to remove the run directory after an orderly end, since its made-up name is known to no client."""
    source: PlanSource | None = None
    """The configuration file; None if none was given."""
    worlds: list[WorldPlan] = []
    """By number. Their actors have their devices."""
    code: str = ""
    """Names the reload that has made this plan; empty for the first one. Each reload loads code of its own."""

    def actors_on(self, device: int) -> list[ActorSpec]:
        """Return the actors that a device has."""
        return [actor for actor in self.actors if not actor.devices or device in actor.devices]

    def encoded(self) -> bytes:
        """Return the bytes that `from_descriptor` reads."""
        return msgspec.json.encode(self)

    def to_descriptor(self) -> int:
        """Return a descriptor from which `from_descriptor` reads this plan; the caller closes it."""
        descriptor = os.memfd_create("atomr-mp-plan", os.MFD_CLOEXEC)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(self.encoded())
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Plan:
        """Read a plan and close its descriptor; waits for the writer.

        Raises:
            EOFError: The writer has ended without writing it.
        """
        with open(descriptor, "rb") as file:
            found = file.read()
        if not found:
            raise EOFError("no plan")
        return msgspec.json.decode(found, type=known(cls))

    @property
    def run_path(self) -> Path:
        """The run directory."""
        return Path(self.run_dir)


def merged(old: Plan, new: Plan) -> tuple[Plan, list[str]]:
    """Return the plan that a running pool can adopt, and the settings in `new` that need a restart of the pool.

    Settings that workers get at their start can change; settings that the supervisor or the clients hold cannot.

    Raises:
        ConfigurationError: An actor in `new` is for a device that the running pool does not have; or the running pool
            has a world with an actor that is not in `new`.
    """
    pending = [name for name in ("run_dir", "backend") if getattr(old, name) != getattr(new, name)]
    pending += [name for name in FIXED if getattr(old.settings, name) != getattr(new.settings, name)]
    devices, actors = new.devices, _at_home(new.actors, old.worlds)
    if [_which(device) for device in old.devices] != [_which(device) for device in new.devices]:
        pending += [
            *(["gpus"] if [*dict.fromkeys(map(_gpu, old.devices))] != [*dict.fromkeys(map(_gpu, new.devices))] else []),
            *(["workers_per_gpu"] if old.devices[0].workers_per_gpu != new.devices[0].workers_per_gpu else []),
        ]
        devices = old.devices
        check_homes(actors, len(devices))
    elif [device.threads for device in old.devices] != [device.threads for device in new.devices]:
        pending.append("threads_per_worker")
        of_old = [device.threads for device in old.devices]
        devices = [msgspec.structs.replace(each, threads=of_old[at]) for at, each in enumerate(devices)]
    kept = {name: getattr(old.settings, name) for name in FIXED}
    settings = msgspec.structs.replace(new.settings, **kept)
    return msgspec.structs.replace(old, settings=settings, devices=devices, actors=actors), pending


def thread_limits(threads: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that give OpenMP, MKL and OpenBLAS so many threads.

    Args:
        threads: How many; 0 for no limit.
        given: The environment. A limit of OpenMP's there is one of the others too, so none is added.
    """
    if not threads or OMP_THREADS in given:
        return {}
    return {name: str(threads) for name in (OMP_THREADS, *OTHER_THREADS) if name not in given}


def check_homes(actors: Sequence[ActorSpec], devices: int) -> None:
    """Check that actors are for devices that there are.

    Raises:
        ConfigurationError: One is for another.
    """
    for actor in actors:
        missing = [device for device in actor.devices if device >= devices]
        if missing:
            raise errors.ConfigurationError(
                f"actor {actor.name} is for {these_devices(actor.devices)}, and there is no device {missing[0]}: this "
                f"pool has {counted(devices, 'device')}, from 0 to {devices - 1}"
            )


MOST_WORLDS: Final = 64
"""Worlds of one pool."""

MOST_ON_GPU: Final = 4
"""Worlds of one device on the cuda backend. Kernels that wait for other ranks must all be resident: a process gives
each world a fourth of the blocks that its GPU has room for."""

_WORLD_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
"""As the names of pools."""


def plan_worlds(
    worlds: Mapping[str, WorldSettings],
    actors: Sequence[ActorSpec],
    devices: int,
    backend: str,
    reach: Callable[[Sequence[int]], bool] = lambda _devices: True,
) -> tuple[list[WorldPlan], list[ActorSpec]]:
    """Return the worlds of a pool, and its actors, those of worlds with the devices of their world.

    Args:
        worlds: The worlds, by name.
        actors: The pool's actors.
        devices: How many devices the pool has.
        backend: The pool's backend.
        reach: Returns whether the GPUs of all of these devices reach each other's memory.

    Raises:
        ConfigurationError: There are no such devices or actors, or one is named twice, or a GPU is in too many worlds,
            or an engine is not for the backend; the message names the world.
    """
    if len(worlds) > MOST_WORLDS:
        raise errors.ConfigurationError(f"{len(worlds)} worlds are given; a pool has at most {MOST_WORLDS}")
    specs = {actor.name: actor for actor in actors}
    homes: dict[str, str] = {}
    planned: list[WorldPlan] = []
    for number, (name, world) in enumerate(worlds.items()):
        _check_world(name, world, specs, devices)
        for actor in world.actors:
            if actor in homes:
                raise errors.ConfigurationError(
                    f"actor {actor} is in the worlds {homes[actor]!r} and {name!r}; an actor is in one world at most"
                )
            homes[actor] = name
        members = list(world.devices), list(world.actors)
        nccl = world.engine == "nccl" or (world.engine == "auto" and backend == "cuda" and not reach(world.devices))
        planned.append(
            WorldPlan(
                number,
                name,
                *members,
                world.begin_timeout_s,
                mailboxes=backend == "cuda",
                engine="nccl" if nccl else "mailboxes",
                spares=nccl and world.spares,
            )
        )
        if nccl and backend == "host":
            raise errors.ConfigurationError(
                f'world {name!r} has engine = "nccl", which is for GPUs, and the backend is host; leave the engine out'
            )
    if backend == "cuda":
        _check_gpus(planned)
    return planned, _at_home(actors, planned)


def _check_gpus(planned: Sequence[WorldPlan]) -> None:
    """Check that no device is in more worlds than its GPU takes.

    Raises:
        ConfigurationError: One is.
    """
    counts: Counter[int] = Counter()
    for world in planned:
        counts.update(world.devices)
        for device in world.devices:
            if counts[device] > MOST_ON_GPU:
                raise errors.ConfigurationError(
                    f"world {world.name!r} is over device {device}, which is in {MOST_ON_GPU} other worlds, as many as "
                    "may be on the cuda backend"
                )


def _check_world(name: str, world: WorldSettings, specs: Mapping[str, ActorSpec], devices: int) -> None:
    """Check a world by itself.

    Raises:
        ConfigurationError: It cannot be.
    """
    if not _WORLD_NAME.fullmatch(name) or name.startswith(MADE_PREFIX):
        raise errors.ConfigurationError(
            f"{name!r} is no name for a world; use 1 to 64 of A-Z a-z 0-9 . _ - and no dot in front, and none that "
            f"begins with {MADE_PREFIX!r}, as worlds that clients make"
        )
    what = f"world {name!r}"
    for noun, named in (("device", world.devices), ("actor", world.actors)):
        if not named:
            raise errors.ConfigurationError(f"{what} has no {noun}s; it needs one at least")
        twice = next((each for at, each in enumerate(named) if each in named[:at]), None)
        if twice is not None:
            raise errors.ConfigurationError(f"{what} names {noun} {twice} twice")
    if len(world.actors) > MAX_WORLD_ACTORS:
        raise errors.ConfigurationError(f"{what} has {len(world.actors)} actors; {MAX_WORLD_ACTORS} are the most")
    missing = [device for device in world.devices if device >= devices]
    if missing:
        raise errors.ConfigurationError(
            f"{what} is over {these_devices(world.devices)}, and there is no device {missing[0]}: this pool has "
            f"{counted(devices, 'device')}, from 0 to {devices - 1}"
        )
    for actor in world.actors:
        if actor not in specs:
            there = f"its actors are {', '.join(specs)}" if specs else "it has no actors"
            raise errors.ConfigurationError(
                f"{what} is of actor {actor!r}, which this pool does not have{did_you_mean(actor, specs)} ({there})"
            )
        own = specs[actor].devices
        if own and set(own) != set(world.devices):
            raise errors.ConfigurationError(
                f"actor {actor} is for {these_devices(own)}, and its world {name!r} is over "
                f"{these_devices(world.devices)}; leave out the devices of the actor"
            )


def _at_home(actors: Sequence[ActorSpec], worlds: Sequence[WorldPlan]) -> list[ActorSpec]:
    """Return actors, those of worlds with the devices of their world alone.

    Raises:
        ConfigurationError: One of a world is missing.
    """
    homes = {actor: world for world in worlds for actor in world.actors}
    missing = homes.keys() - {actor.name for actor in actors}
    for actor, world in homes.items():
        if actor in missing:
            raise errors.ConfigurationError(
                f"actor {actor} is missing, and a running pool keeps its worlds: it is of world {world.name!r}"
            )
    return [
        msgspec.structs.replace(each, devices=tuple(sorted(homes[each.name].devices)), in_world=True)
        if each.name in homes
        else each
        for each in actors
    ]


def _which(device: DevicePlan) -> tuple[object, ...]:
    return (*_gpu(device), device.worker)


def _gpu(device: DevicePlan) -> tuple[object, ...]:
    return device.gpu, device.name, device.uuid, tuple(sorted(device.environment.items()))
