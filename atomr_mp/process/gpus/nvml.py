"""This machine's GPUs, from NVML, the driver's library for managing them. An edge; it never initialises CUDA.

A call into it lasts as long as the driver is stuck. So a thread that can be abandoned makes all calls.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from atomr_mp import errors
from atomr_mp.process import points
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.supervision.placement import ComputeMode, Gpu

DEADLINE_S: Final = 30.0
"""Long, since a driver without persistence mode takes seconds to start up each GPU."""

_REASONS: Final = {  # by nvmlReturn_t of nvml.h
    4: "the driver does not answer this user: there is no permission for /dev/nvidiactl and /dev/nvidia0",
    9: "the NVIDIA driver is not loaded; see `nvidia-smi` and `dmesg`",
    12: "libnvidia-ml.so.1, a part of the NVIDIA driver, was not found; a container gets it by its GPU options",
    18: "the NVIDIA driver's library and kernel module differ in version, as after an update; reboot",
}

_NOT_TOLD: Final = {3, 4, 6, 12, 13}
"""Not supported, no permission, not found, no such library or function: a GPU or a driver that does not tell this."""


ACCESS_KINDS: Final = (0, 1)
"""Reads and writes: `nvmlGpuP2PCapsIndex_t` of NVML's header, whose `NVML_P2P_STATUS_OK` is 0."""

T = TypeVar("T")


@dataclass(frozen=True)
class Survey:
    """The answers of NVML."""

    driver: str
    """Its version, as "580.65.06"."""
    cuda: tuple[int, int]
    """The latest version of CUDA that it supports; 0.0 if its library for that, libcuda, is not there."""
    gpus: list[Gpu]
    """GPUs by index."""


def survey(deadline_s: float = DEADLINE_S) -> Survey:
    """Ask NVML for the GPUs.

    Raises:
        ConfigurationError: It cannot be asked, has none, or does not answer in time; the message says why.
    """
    return _in_time(_survey, deadline_s)


def reach(uuids: Collection[str], deadline_s: float = DEADLINE_S) -> bool:
    """Return whether all of these GPUs reach each other's memory; True for those that the driver does not tell.

    Raises:
        ConfigurationError: NVML cannot be asked, or does not answer in time.
    """
    return _in_time(lambda: _reach(uuids), deadline_s)


def _in_time(call: Callable[[], T], deadline_s: float) -> T:
    """Return the result of a call that runs in a thread, or raise its error.

    Raises:
        ConfigurationError: It has not ended in time.
    """
    result: Future[T] = Future()

    def ask() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - carried to whoever waits
            result.set_exception(error)

    threading.Thread(target=ask, name="atomr-mp-nvml", daemon=True).start()
    try:
        return result.result(deadline_s)
    except TimeoutError as error:
        raise errors.ConfigurationError(
            f"the NVIDIA driver has not answered within {deadline_s:g} s; does `nvidia-smi`? See `dmesg`"
        ) from error


def _reach(uuids: Collection[str]) -> bool:
    with _nvml() as pynvml:
        handles = [pynvml.nvmlDeviceGetHandleByUUID(each) for each in sorted(set(uuids))]
        found = [
            _told(pynvml, pynvml.nvmlDeviceGetP2PStatus, one, other, kind)
            for one, other in itertools.combinations(handles, 2)
            for kind in ACCESS_KINDS
        ]
    return all(each in {None, 0} for each in found)


def _survey() -> Survey:
    points.point("nvml")
    try:
        import pynvml
    except ImportError as error:
        raise errors.ConfigurationError(
            f"nvidia-ml-py, by which the driver is asked, is not installed; {how_to_install('pynvml')}"
        ) from error
    try:
        pynvml.nvmlInit()
        try:
            # NVML reads it out of libcuda, which it loads for that and does not initialise.
            version = _told(pynvml, pynvml.nvmlSystemGetCudaDriverVersion_v2) or 0
            found = Survey(
                pynvml.nvmlSystemGetDriverVersion(), (version // 1000, version % 1000 // 10), list(_gpus(pynvml))
            )
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise errors.ConfigurationError(_REASONS.get(error.value, f"NVML reports: {error}")) from error
    if not found.gpus:
        raise errors.ConfigurationError(f"the NVIDIA driver {found.driver} runs no GPU; see `nvidia-smi` and `dmesg`")
    return found


@dataclass(frozen=True)
class GpuUsage:
    """The present use of a GPU or a slice."""

    busy: float | None
    """Fraction of the last moments in which it worked, from 0 to 1; None if unknown."""
    used_bytes: int
    memory_bytes: int


def usage() -> dict[str, GpuUsage]:
    """Ask NVML how the GPUs and slices are used; return it by UUID. May block for ever: call it in a thread.

    Raises:
        ConfigurationError: It cannot be asked.
    """
    with _nvml() as pynvml:
        return {pynvml.nvmlDeviceGetUUID(each): _usage(pynvml, each) for each in _each(pynvml)}


def processes() -> dict[str, list[tuple[int, int]]]:
    """Return which processes use each GPU or slice, by UUID: pids, and the bytes that they take, 0 if unknown.

    May block for ever: call it in a thread.

    Raises:
        ConfigurationError: It cannot be asked.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    with _nvml() as pynvml:
        for each in _each(pynvml):
            using = _told(pynvml, pynvml.nvmlDeviceGetComputeRunningProcesses, each) or []
            taken = [(process.pid, process.usedGpuMemory or 0) for process in using]
            found[pynvml.nvmlDeviceGetUUID(each)] = sorted(taken)
    return found


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Give the library, initialised.

    Raises:
        ConfigurationError: It cannot be asked.
    """
    points.point("nvml")
    try:
        import pynvml
    except ImportError as error:
        raise errors.ConfigurationError(f"nvidia-ml-py is not installed; {how_to_install('pynvml')}") from error
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise errors.ConfigurationError(f"NVML reports: {error}") from error


def _each(nvml: Any) -> Iterator[Any]:
    """Yield the handles of all GPUs, or of their slices where they are divided."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = _told(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is not None:
            divided, _ = _told(nvml, nvml.nvmlDeviceGetMigMode, handle) or (0, 0)
            yield from _slices(nvml, handle) if divided else (handle,)


def _usage(nvml: Any, handle: Any) -> GpuUsage:
    memory = _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    try:
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except nvml.NVMLError:  # slices do not tell it, whatever the reason that they give
        busy = None
    return GpuUsage(busy, memory.used if memory else 0, memory.total if memory else 0)


def _gpus(nvml: Any) -> Iterator[Gpu]:
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            yield _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:  # one that is lost is no reason not to use the others
            yield Gpu(uuid="", name=f"GPU {index}", problem=f"NVML reports: {error}")


def _gpu(nvml: Any, handle: Any) -> Gpu:
    mode = ComputeMode(_told(nvml, nvml.nvmlDeviceGetComputeMode, handle) or 0)
    divided, _ = _told(nvml, nvml.nvmlDeviceGetMigMode, handle) or (0, 0)
    if not divided:
        return _device(nvml, handle, mode)
    slices = tuple(_device(nvml, each, mode) for each in _slices(nvml, handle))
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        slices=slices,
        problem="" if slices else "in MIG mode and without slices; make some by `nvidia-smi mig`",
    )


def _device(nvml: Any, handle: Any, mode: ComputeMode) -> Gpu:
    memory = _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    processes = _told(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_bytes=memory.total if memory else 0,
        used_bytes=memory.used if memory else 0,
        compute_mode=mode,
        pids=tuple(sorted(process.pid for process in processes)),
    )


def _slices(nvml: Any, handle: Any) -> Iterator[Any]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        each = _told(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if each is not None:
            yield each


def _told(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return a call's result; None if the GPU or the driver does not tell it."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value in _NOT_TOLD:
            return None
        raise
