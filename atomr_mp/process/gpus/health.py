"""GPUs' health from NVML: their errors as they happen, and how they are. An edge.

Every call may block for ever, so it is used in a process of its own, which nobody waits for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from atomr_mp.process import points
from atomr_mp.protocol.messages.health import MAX_PROCESSES, GpuLink, GpuMemory, GpuProcess, GpuState, XidSeen

NOT_TOLD: Final = {3, 4, 6, 13}
"""Not supported, no permission, not found, no such function: a GPU or a driver that does not tell this."""

ANY_INSTANCE: Final = 0xFFFFFFFF
"""The event concerns the whole GPU."""

LINK_KINDS: Final = (0, 1, 2)
"""Reads, writes, NVLink: `nvmlGpuP2PCapsIndex_t` of NVML's header. In pynvml some of the names are tuples."""


class _Watched(NamedTuple):
    gpu: int
    handle: Any
    """Handle of the GPU, even if this is a slice of it."""
    uuid: str
    """The GPU's."""
    instance: int | None
    """Which of the GPU's instances a slice is in; None if it is no slice."""
    own: Any
    """Handle of the GPU or slice itself."""


class Monitor:
    """Holds NVML open, and with it the GPUs: none of them can be reset meanwhile. Use it with `with`.

    Args:
        uuids: The GPUs and slices to be watched, by their positions in the pool.
    """

    def __init__(self, uuids: Mapping[int, str]) -> None:
        self._uuids = uuids
        self._watched: list[_Watched] = []
        self._lost: list[int] = []
        self._nvml: Any = None
        self._events: Any = None

    def __enter__(self) -> Self:
        import pynvml

        nvml = self._nvml = pynvml
        nvml.nvmlInit()
        self._events = nvml.nvmlEventSetCreate()
        for gpu, uuid in self._uuids.items():
            try:
                self._watched.append(self._found(gpu, uuid))
            except nvml.NVMLError:
                self._lost.append(gpu)
        for handle in {each.uuid: each.handle for each in self._watched}.values():
            self._register(handle)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._nvml.nvmlEventSetFree(self._events)
        self._nvml.nvmlShutdown()

    def wait(self, timeout_s: float) -> list[XidSeen]:
        """Wait for an event; return whom it concerns, if it is an error with a number.

        Raises:
            NVMLError: The driver goes, or was reset.
        """
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, round(timeout_s * 1000))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return []
            raise
        if event.eventType != nvml.nvmlEventTypeXidCriticalError:
            return []
        uuid = nvml.nvmlDeviceGetUUID(event.device)
        return [
            XidSeen(each.gpu, event.eventData)
            for each in self._watched
            if each.uuid == uuid and (each.instance is None or event.gpuInstanceId in {each.instance, ANY_INSTANCE})
        ]

    def states(self) -> Iterator[GpuState]:
        """Return how each is now."""
        points.point("nvml")
        for gpu in self._lost:
            yield GpuState(gpu, lost=True)
        for each in self._watched:
            try:
                yield GpuState(each.gpu, False, self._recovery(each.handle), self._uncorrected(each.handle))
            except self._nvml.NVMLError as error:
                if error.value not in {self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED}:
                    raise
                yield GpuState(each.gpu, lost=True)

    def memory(self) -> Iterator[GpuMemory]:
        """Return the memory that processes take of each reachable GPU; empty where the driver does not tell it."""
        for each in self._watched:
            processes = [
                GpuProcess(process.pid, process.usedGpuMemory)
                for process in self._running(each.own)
                if process.usedGpuMemory is not None
            ]
            processes.sort(key=lambda process: -process.taken_bytes)
            yield GpuMemory(each.gpu, processes[:MAX_PROCESSES])

    def links(self) -> Iterator[GpuLink]:
        """Return how the GPUs reach each other's memory, by pair; of none that the driver does not tell."""
        whole = [each for each in self._watched if each.instance is None]
        for one, other in itertools.combinations(sorted(whole, key=lambda each: each.gpu), 2):
            nvml = self._nvml
            try:
                reads, writes, nvlink = (self._is_able(one.handle, other.handle, kind) for kind in LINK_KINDS)
            except nvml.NVMLError as error:
                if error.value in {*NOT_TOLD, nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED}:
                    continue
                raise
            yield GpuLink(one.gpu, other.gpu, reads and writes, nvlink)

    def _is_able(self, one: Any, other: Any, kind: int) -> bool:
        """Return whether a GPU can do something with the memory of another."""
        return bool(self._nvml.nvmlDeviceGetP2PStatus(one, other, kind) == self._nvml.NVML_P2P_STATUS_OK)

    def _running(self, handle: Any) -> list[Any]:
        nvml = self._nvml
        try:
            return list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except nvml.NVMLError as error:
            if error.value in {*NOT_TOLD, nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED}:
                return []
            raise

    def _found(self, gpu: int, uuid: str) -> _Watched:
        nvml = self._nvml
        own = handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        instance = None
        if uuid.startswith("MIG-"):
            instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
            handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return _Watched(gpu, handle, nvml.nvmlDeviceGetUUID(handle), instance, own)

    def _register(self, handle: Any) -> None:
        nvml = self._nvml
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        for name in ("GpuRecoveryAction", "GpuUnavailableError", "FatalPoisonError"):  # of newer releases
            wanted |= getattr(nvml, f"nvmlEventType{name}", 0)
        try:
            nvml.nvmlDeviceRegisterEvents(handle, wanted & nvml.nvmlDeviceGetSupportedEventTypes(handle), self._events)
        except nvml.NVMLError as error:
            # One that is lost by now is found out when the states are looked at; the others are to be watched.
            if error.value not in {*NOT_TOLD, nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED}:
                raise

    def _recovery(self, handle: Any) -> int | None:
        nvml = self._nvml
        field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        if field is None:
            return None
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
        return int(value.value.uiVal) if value.nvmlReturn == 0 else None

    def _uncorrected(self, handle: Any) -> int | None:
        nvml = self._nvml
        try:
            return int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        except nvml.NVMLError as error:
            if error.value in NOT_TOLD:
                return None
            raise
