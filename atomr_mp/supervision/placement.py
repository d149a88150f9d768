"""The GPUs that a pool gets, and how its workers see them. Pure.

GPUs are named as for CUDA_VISIBLE_DEVICES ("CUDA Environment Variables" in NVIDIA's CUDA C++ Programming Guide), but
always numbered as by NVML and `nvidia-smi`, in the order of the PCI bus. And where CUDA silently ends its list at a
name that it does not know, this refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.supervision.standby import StandbyMode

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class ComputeMode(IntEnum):
    """Modes that say who may use a GPU; the values are those of nvml.h."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


_EXCLUSIVE: Final = frozenset({ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.EXCLUSIVE_THREAD})


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, or a slice of one (a MIG device)."""

    uuid: str
    """As the driver writes it: "GPU-…" or "MIG-…"; empty if it did not tell."""
    name: str
    memory_bytes: int = 0
    """Its own memory; 0 if it has none, but shares the machine's."""
    used_bytes: int = 0
    """Memory in use, by anybody."""
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    pids: tuple[int, ...] = ()
    """Processes that compute on it."""
    slices: tuple[Gpu, ...] = ()
    """If it is divided, what CUDA takes for devices in its place."""
    problem: str = ""
    """Why it cannot be used, for a person."""

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """Devices for a pool: its slices, or the GPU itself if it is not divided."""
        return self.slices or (self,)

    @property
    def is_slice(self) -> bool:
        """Whether it is a slice."""
        return self.uuid.startswith("MIG-")


class Place(NamedTuple):
    """The place of a device."""

    gpu: int
    """Position of its GPU among the pool's."""
    worker: int
    """Its number among the devices of this GPU."""


def places(gpus: int, workers_per_gpu: int) -> list[Place]:
    """Return the place of each device by its index: a GPU's devices are neighbours."""
    return [Place(gpu, worker) for gpu in range(gpus) for worker in range(workers_per_gpu)]


def visible(gpus: Sequence[Gpu], variable: str | None) -> list[Gpu]:
    """Return the GPUs that a value of CUDA_VISIBLE_DEVICES leaves, in its order; all of them if it is None.

    Raises:
        ConfigurationError: It hides them all, or names what is not there, or one twice.
    """
    if variable is None:
        return list(gpus)
    found = _named(gpus, variable, f"{VISIBLE}={variable}")
    if not found:
        raise errors.ConfigurationError(f"{VISIBLE} is set and empty, which hides every GPU; unset it")
    return found


def choose(gpus: Sequence[Gpu], wanted: str) -> list[Gpu]:
    """Return the devices that a pool gets: GPUs that are not divided, and slices.

    Args:
        gpus: Those to choose from.
        wanted: "all"; or how many; or names: indices into `gpus`, UUIDs or their beginnings, separated by commas. A
            GPU that is divided stands for all of its slices. A comma behind a single index tells it from a number.

    Raises:
        ConfigurationError: Something wanted is not there, or cannot be used; the message names the GPUs that were
            found.
    """
    devices = [device for gpu in gpus for device in gpu.devices]
    source = f"--gpus {wanted}"
    if wanted.isdecimal():
        if not 1 <= int(wanted) <= len(devices):
            raise errors.ConfigurationError(
                f"{source}: a single number says how many, and there can be 1 to {len(devices)}; a GPU by its index is "
                f"`{wanted},`; found: {listing(gpus)}"
            )
        devices = devices[: int(wanted)]
    elif wanted != "all":
        devices = [device for gpu in _named(gpus, wanted, source) for device in gpu.devices]
    if not devices:
        raise errors.ConfigurationError(f"{source}: this names no GPU; found: {listing(gpus)}")
    for device in devices:
        _check_usable(device)
    return devices


def environment(own: Gpu, pool: Sequence[Gpu]) -> dict[str, str]:
    """Return the environment in which a worker's CUDA sees its own device first, then the pool's others.

    Its own is ordinal 0. It needs the others to open their memory. A process sees one slice or any number of GPUs that
    are not divided.
    """
    others = [gpu.uuid for gpu in pool if gpu != own and not (gpu.is_slice or own.is_slice)]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE: ",".join([own.uuid, *others])}


def check_standby(gpu: Gpu, standby: str) -> None:
    """Refuse a second process on a GPU that admits one.

    Raises:
        ConfigurationError: It admits one process only, and a hot standby is wanted.
    """
    if standby == StandbyMode.HOT and gpu.compute_mode in _EXCLUSIVE:
        raise errors.ConfigurationError(
            f"--standby hot: {gpu.name} {gpu.uuid} admits one process only (its compute mode), and a hot standby is a "
            f"second; use warm, or change the mode by `nvidia-smi -i {gpu.uuid} -c DEFAULT`"
        )


def check_workers(gpu: Gpu, workers: int) -> None:
    """Refuse several workers on a GPU that admits one process.

    Raises:
        ConfigurationError: It admits one process only, and several workers are wanted.
    """
    if workers > 1 and gpu.compute_mode in _EXCLUSIVE:
        raise errors.ConfigurationError(
            f"workers_per_gpu = {workers}: {gpu.name} {gpu.uuid} admits one process only (its compute mode is "
            f"{gpu.compute_mode.name.capitalize()}), and each worker is one; use 1, or change the mode by "
            f"`nvidia-smi -i {gpu.uuid} -c DEFAULT`"
        )


def notes(gpu: Gpu, mps: str = "") -> list[str]:
    """Return an operator's notes on a chosen device, a sentence each.

    Args:
        gpu: The device.
        mps: Where an MPS server is reached; empty if there is none.
    """
    told = []
    if mps:
        told.append(
            f"ISOLATION IS LOST: CUDA's Multi-Process Service is on ({mps}), in which a fault of one process is one of "
            "all that share the GPU, the standby among them; stop it by `echo quit | nvidia-cuda-mps-control`, and "
            "unset CUDA_MPS_PIPE_DIRECTORY"
        )
    if gpu.compute_mode in _EXCLUSIVE:
        told.append(
            "its compute mode admits one process only: neither clients nor workers of other devices can open its memory"
        )
    if gpu.pids:
        taken = f"; {_gib(gpu.used_bytes)} of {_gib(gpu.memory_bytes)} GiB were taken" if gpu.memory_bytes else ""
        told.append(f"when the pool was started, others used it (pid {', '.join(map(str, gpu.pids))}){taken}")
    return told


def listing(gpus: Sequence[Gpu]) -> str:
    """Return GPUs with their indices, on one line."""
    return "; ".join(f"{index}: {describe(gpu)}" for index, gpu in enumerate(gpus))


def describe(gpu: Gpu) -> str:
    """Return a line that identifies a GPU and says whether it can be used."""
    text = f"{gpu.name} {gpu.uuid}".rstrip()
    if gpu.memory_bytes:
        text += f" ({_gib(gpu.memory_bytes)} GiB)"
    if gpu.slices:
        text += f", divided into {', '.join(f'{each.name} {each.uuid}' for each in gpu.slices)}"
    return f"{text}, {gpu.problem}" if gpu.problem else text


def _named(gpus: Sequence[Gpu], names: str, source: str) -> list[Gpu]:
    """Return the GPUs that a list of indices and UUIDs names.

    Raises:
        ConfigurationError: A name is none, or of several; or a device would come twice.
    """
    found = [_one(gpus, name, source) for each in names.split(",") if (name := each.strip())]
    devices = [device for gpu in found for device in gpu.devices]
    for device in devices:
        if devices.count(device) > 1:
            raise errors.ConfigurationError(f"{source}: {describe(device)} comes twice")
    return found


def _one(gpus: Sequence[Gpu], name: str, source: str) -> Gpu:
    if name.isdecimal():
        matching = list(gpus[int(name) : int(name) + 1])
    elif name.startswith(("GPU-", "MIG-")):
        matching = [each for gpu in gpus for each in (gpu, *gpu.slices) if each.uuid.startswith(name)]
    else:
        matching = []
    if len(matching) != 1:
        raise errors.ConfigurationError(
            f"{source}: {name} {'names several GPUs' if matching else 'names no GPU'}; found: {listing(gpus)}"
        )
    return matching[0]


def _check_usable(gpu: Gpu) -> None:
    problem = gpu.problem
    if gpu.compute_mode is ComputeMode.PROHIBITED:
        problem = f"its compute mode is Prohibited; change that by `nvidia-smi -i {gpu.uuid} -c DEFAULT`"
    if problem:
        raise errors.ConfigurationError(f"{gpu.name} {gpu.uuid} cannot be used: {problem}, or name others by --gpus")


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f}"
