"""The pool that a supervisor runs, with everything decided. It crosses to the supervisor's process as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.messages.control import ActorSpec, Execution
from atomr_mp.protocol.words import counted, place_of, these_devices
from atomr_mp.supervision.settings import PoolSettings

OMP_THREADS: Final = "OMP_NUM_THREADS"

OTHER_THREADS: Final = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that come before OpenMP's in their libraries."""

FIXED: Final = (
    *("pool", "window_requests", "window_bytes", "max_streams", "log_max_bytes", "cgroups", "metrics", "standby"),
    *("standby_starts", "max_replays", "max_suspicions", "max_weight"),
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
        ConfigurationError: An actor in `new` is for a device that the running pool does not have.
    """
    pending = [name for name in ("run_dir", "backend") if getattr(old, name) != getattr(new, name)]
    pending += [name for name in FIXED if getattr(old.settings, name) != getattr(new.settings, name)]
    devices = new.devices
    if [_which(device) for device in old.devices] != [_which(device) for device in new.devices]:
        pending += [
            *(["gpus"] if [*dict.fromkeys(map(_gpu, old.devices))] != [*dict.fromkeys(map(_gpu, new.devices))] else []),
            *(["workers_per_gpu"] if old.devices[0].workers_per_gpu != new.devices[0].workers_per_gpu else []),
        ]
        devices = old.devices
        check_homes(new.actors, len(devices))
    elif [device.threads for device in old.devices] != [device.threads for device in new.devices]:
        pending.append("threads_per_worker")
        of_old = [device.threads for device in old.devices]
        devices = [msgspec.structs.replace(each, threads=of_old[at]) for at, each in enumerate(devices)]
    kept = {name: getattr(old.settings, name) for name in FIXED}
    settings = msgspec.structs.replace(new.settings, **kept)
    return msgspec.structs.replace(old, settings=settings, devices=devices, actors=new.actors), pending


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


def _which(device: DevicePlan) -> tuple[object, ...]:
    return (*_gpu(device), device.worker)


def _gpu(device: DevicePlan) -> tuple[object, ...]:
    return device.gpu, device.name, device.uuid, tuple(sorted(device.environment.items()))
