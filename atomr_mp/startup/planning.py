"""Makes a supervisor's plan of a pool's settings: decides which backend, how many devices, and where.

What only GPUs, files or metrics need is imported where it is used: every start would wait for it.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.process.files.rundir import SOCKETS, default_run_dir
from atomr_mp.process.files.safedir import check_socket_paths
from atomr_mp.process.gpus.hardware import missing_for_cuda, mps_server, nvidia_hardware
from atomr_mp.protocol.codec import MAX_DEVICES
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.protocol.flow.flight import MAX_STREAMS
from atomr_mp.protocol.messages.control import Execution
from atomr_mp.startup.config import actor_specs
from atomr_mp.supervision.placement import Place, places
from atomr_mp.supervision.settings import OFF, PoolSettings, WorldSettings
from atomr_mp.supervisor.plan import DevicePlan, Plan, WorldPlan, check_homes, plan_worlds

STREAMS: Final = re.compile(r"per_actor|fresh|single|pooled:[1-9][0-9]?")
"""Values that `PoolSettings.streams` may have."""


def make_plan(settings: PoolSettings) -> Plan:
    """Decide what is left open.

    Raises:
        ConfigurationError: What is asked for does not exist here; the message says what was found.
    """
    check(settings)
    check_socket_paths(run_path(settings).absolute(), SOCKETS)
    if settings.metrics != OFF and importlib.util.find_spec("prometheus_client") is None:
        raise errors.ConfigurationError(
            "metrics are served by prometheus-client, which is not installed; " + how_to_install("prometheus_client")
        )
    if settings.max_streams > MAX_STREAMS:
        raise errors.ConfigurationError(
            f"max_streams = {settings.max_streams}: a worker's board has places for {MAX_STREAMS}, and no more"
        )
    found = "" if settings.backend == "host" else nvidia_hardware()
    if settings.backend == "cuda" and not found:
        raise errors.ConfigurationError("the cuda backend was asked for, but this machine has no NVIDIA hardware")
    devices = _cuda_devices(settings, found) if found else _host_devices(settings)
    actors = actor_specs(settings.actors)
    check_homes(actors, len(devices))
    backend = "cuda" if found else "host"
    worlds, actors = plan_worlds(settings.worlds, actors, len(devices), backend, lambda of: _reach(devices, of))
    _check_nccl(worlds, devices)
    return Plan(
        settings=settings,
        run_dir=str(run_path(settings)),
        backend=backend,
        devices=devices,
        actors=actors,
        worlds=worlds,
        keys_dir="" if settings.listen == OFF else _keys_dir(settings),
    )


def check(settings: PoolSettings) -> None:
    """Check what can be checked without looking at the machine.

    Raises:
        ConfigurationError: A setting that no machine can satisfy.
    """
    if not STREAMS.fullmatch(settings.streams):
        raise errors.ConfigurationError(
            f"streams = {settings.streams!r}: use per_actor, fresh, single, or pooled:N with N from 1 to 99"
        )
    default_run_dir(settings.pool)  # looks at the name only
    if settings.backoff_max_s < settings.backoff_initial_s:
        why = f"backoff_max_s must be at least {settings.backoff_initial_s:g} (backoff_initial_s)"
        raise errors.ConfigurationError(f"{why}; got {settings.backoff_max_s:g}")
    if settings.metrics != OFF:
        from atomr_mp.supervisor.care import exporter

        exporter.check(settings.metrics)
    if settings.listen != OFF:
        from atomr_mp.supervisor.care import relay

        relay.parse(settings.listen)
        if settings.insecure and not relay.is_loopback(settings.listen):
            raise errors.ConfigurationError(
                f"listen = {settings.listen!r} with insecure: without keys only a loopback address may be listened at"
            )
    elif settings.insecure:
        raise errors.ConfigurationError("insecure says how to `listen`, which is off")
    for name, world in settings.worlds.items():
        _check_spares(name, world, settings.standby)
    plan_worlds(settings.worlds, actor_specs(settings.actors), MAX_DEVICES, settings.backend)


def _check_spares(name: str, world: WorldSettings, standby: str) -> None:
    """Check that spares are asked for where there can be any.

    Raises:
        ConfigurationError: There can be none.
    """
    if not world.spares:
        return
    if world.engine == "mailboxes":
        raise errors.ConfigurationError(
            f'world {name!r} has spares = true, which is for engine = "nccl" or "auto"; leave the spares out'
        )
    if standby != "hot":
        raise errors.ConfigurationError(
            f'world {name!r} has spares = true, which is for standby = "hot", and the pool has standby = "{standby}"'
        )


def run_path(settings: PoolSettings) -> Path:
    """Return the run directory."""
    return Path(settings.run_dir).absolute() if settings.run_dir else default_run_dir(settings.pool)


def _keys_dir(settings: PoolSettings) -> str:
    """Return the directory of the keys by which remote clients are admitted; empty for no encryption.

    Raises:
        ConfigurationError: pyzmq is not there or too old, or there is no key.
    """
    from atomr_mp.remote import keys
    from atomr_mp.remote.curve import check_library

    check_library()
    if settings.insecure:
        return ""
    directory = Path(settings.keys_dir).absolute() if settings.keys_dir else keys.default_keys_dir(settings.pool)
    keys.check_outside(directory, run_path(settings))
    keys.read_server(directory)
    keys.read_admitted(directory)
    return str(directory)


def _cuda_devices(settings: PoolSettings, hardware: str) -> list[DevicePlan]:
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
    chosen = placement.choose(visible, settings.gpus)
    places = _places(settings, len(chosen))
    for gpu in chosen:
        placement.check_workers(gpu, settings.workers_per_gpu)
        placement.check_standby(gpu, settings.standby)
    mps = mps_server()
    return [
        DevicePlan(
            index,
            gpu.name,
            placement.environment(gpu, chosen),
            # The rest is for CUDA's contexts, its libraries, and what actors allocate by other means.
            _execution(settings, (gpu.memory_bytes or _host_memory_bytes()) * 4 // 5 // settings.workers_per_gpu),
            gpu.uuid,
            placement.notes(gpu, mps),
            *place,
            settings.workers_per_gpu,
            threads=settings.threads_per_worker,
        )
        for index, place in enumerate(places)
        for gpu in [chosen[place.gpu]]
    ]


def _check_nccl(worlds: Sequence[WorldPlan], devices: Sequence[DevicePlan]) -> None:
    """Check that worlds by NCCL have a GPU for each rank.

    Raises:
        ConfigurationError: One has not.
    """
    for world in worlds:
        gpus = [devices[each].uuid for each in world.devices]
        if world.engine == "nccl" and len(set(gpus)) < len(gpus):
            raise errors.ConfigurationError(
                f'world {world.name!r} has engine = "nccl", which takes one rank on a GPU, and some of its devices '
                'share one (workers_per_gpu); use engine = "mailboxes", or devices of different GPUs'
            )


def _reach(devices: Sequence[DevicePlan], chosen: Sequence[int]) -> bool:
    """Return whether the GPUs of these devices reach each other's memory."""
    from atomr_mp.process.gpus import nvml

    return nvml.reach({devices[each].uuid for each in chosen})


def _host_devices(settings: PoolSettings) -> list[DevicePlan]:
    if settings.gpus == "all":
        count = max(2, len(os.sched_getaffinity(0)) // 2)
    elif settings.gpus.isdecimal() and 1 <= int(settings.gpus) <= MAX_DEVICES:
        count = int(settings.gpus)
    else:
        raise errors.ConfigurationError(
            f"--gpus {settings.gpus}: the host backend takes a number of devices from 1 to {MAX_DEVICES}, or all"
        )
    places = _places(settings, count)
    execution = _execution(settings, _host_memory_bytes() // (2 * len(places)))
    threads = settings.threads_per_worker or max(1, len(os.sched_getaffinity(0)) // len(places))
    return [
        DevicePlan(index, f"host:{place.gpu}", {}, execution, "", [], *place, settings.workers_per_gpu, threads=threads)
        for index, place in enumerate(places)
    ]


def _places(settings: PoolSettings, gpus: int) -> list[Place]:
    """Return where each device is.

    Raises:
        ConfigurationError: There would be too many.
    """
    if gpus * settings.workers_per_gpu > MAX_DEVICES:
        each = "" if settings.workers_per_gpu == 1 else f" with workers_per_gpu = {settings.workers_per_gpu}"
        raise errors.ConfigurationError(
            f"--gpus {settings.gpus}{each} is {gpus * settings.workers_per_gpu}: a pool has at most {MAX_DEVICES} "
            "devices"
        )
    return places(gpus, settings.workers_per_gpu)


def _execution(settings: PoolSettings, memory_bytes: int) -> Execution:
    """Return how a worker uses its device, if it may have so much memory by default."""
    return Execution(
        settings.memory_bytes or memory_bytes,
        settings.streams,
        settings.completion,
        settings.inline_bytes,
        settings.max_queue,
        settings.hang_timeout_s,
        settings.stall_s,
        settings.log_errors,
    )


def _host_memory_bytes() -> int:
    """Return how much memory this machine has, or this container may use (cgroup version 2)."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no cgroup, or no limit
        return machine
