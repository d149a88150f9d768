"""A stand-in for nvidia-ml-py's module `pynvml`, with as many GPUs as a test wants; no driver is asked."""
# ruff: noqa: D102, N802 - NVIDIA's names, and their meaning

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Final, TypeVar

from atomr_mp.supervision.placement import ComputeMode

T = TypeVar("T")

GIB: Final = 2**30

NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
DRIVER_NOT_LOADED: Final = 9
LIBRARY_NOT_FOUND: Final = 12
GPU_IS_LOST: Final = 15
LIB_RM_VERSION_MISMATCH: Final = 18
UNKNOWN: Final = 999


class NVMLError(Exception):
    """The exception of every call."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@dataclass
class Card:
    """A GPU or a MIG device; None stands for what it does not tell."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int | None = 80 * GIB
    used_bytes: int = GIB // 2
    mode: int = ComputeMode.DEFAULT
    pids: tuple[int, ...] | None = ()
    taken: dict[int, int] = field(default_factory=dict)
    """Bytes by process; a process that is not here has an unknown use."""
    slices: tuple[Card | None, ...] | None = None
    """By slot, with None for an empty one; None for a GPU without MIG."""
    lost: bool = False
    busy_percent: int | None = 0
    recovery: int | None = 0
    uncorrected: int | None = 0
    reaches: frozenset[int] | None = frozenset({0, 1, 2})
    """What it can do with the memory of others: reads, writes, over NVLink."""
    gpu: Card | None = None
    """Of a MIG device: the GPU that it is a slice of."""
    instance: int = 0
    """Of a MIG device: its number among the GPU's instances."""


TIMEOUT: Final = 10
RESET_REQUIRED: Final = 16


class FakeNvml(ModuleType):
    """The module.

    Attributes:
        cards: The GPUs, by index.
        cuda_version: 1000 times the major and 10 times the minor version; None if there is no libcuda.
        refuses: What `nvmlInit` raises, if not 0.
        before_init: Called by `nvmlInit`.
        inits: How often it is initialised.
        events: What is reported next, each a card, the event's type, its data, and the GPU's instance.
        registered: Types of events that each card was asked for.
    """

    NVMLError = NVMLError
    NVML_ERROR_TIMEOUT = TIMEOUT
    NVML_ERROR_GPU_IS_LOST = GPU_IS_LOST
    NVML_ERROR_RESET_REQUIRED = RESET_REQUIRED
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVML_P2P_STATUS_OK = 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815
    nvmlEventTypeDoubleBitEccError = 2  # noqa: N815
    nvmlEventTypeGpuRecoveryAction = 0x8000  # noqa: N815

    def __init__(self, *cards: Card) -> None:
        super().__init__("pynvml")
        self.cards = cards
        self.cuda_version: int | None = 13000
        self.refuses = 0
        self.before_init: Callable[[], object] = lambda: None
        self.inits = 0
        self.events: deque[tuple[Card, int, int, int]] = deque()
        self.registered: dict[str, int] = {}

    def nvmlInit(self) -> None:
        self.before_init()
        if self.refuses:
            raise NVMLError(self.refuses)
        self.inits += 1

    def nvmlShutdown(self) -> None:
        self.inits -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return _told(self.cuda_version, LIBRARY_NOT_FOUND)

    def nvmlDeviceGetCount(self) -> int:
        assert self.inits
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        if self.cards[index].lost:
            raise NVMLError(GPU_IS_LOST)
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        slices = [each for card in self.cards for each in card.slices or () if each is not None]
        for card in (*self.cards, *slices):
            if card.uuid == uuid and not card.lost:
                return card
        raise NVMLError(NOT_FOUND)

    def nvmlDeviceGetGpuInstanceId(self, card: Card) -> int:
        return card.instance

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, card: Card) -> Card:
        return _told(card.gpu)

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlEventSetFree(self, _events: object) -> None:
        assert self.inits

    def nvmlDeviceGetSupportedEventTypes(self, _card: Card) -> int:
        return self.nvmlEventTypeXidCriticalError | self.nvmlEventTypeGpuRecoveryAction

    def nvmlDeviceRegisterEvents(self, card: Card, types: int, _events: object) -> None:
        if card.lost:
            raise NVMLError(GPU_IS_LOST)
        self.registered[card.uuid] = types

    def nvmlEventSetWait_v2(self, _events: object, _timeout_ms: int) -> SimpleNamespace:
        if not self.events:
            raise NVMLError(TIMEOUT)
        card, kind, data, instance = self.events.popleft()
        return SimpleNamespace(device=card, eventType=kind, eventData=data, gpuInstanceId=instance)

    def nvmlDeviceGetFieldValues(self, card: Card, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [self.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        if card.lost:
            raise NVMLError(GPU_IS_LOST)
        told = NOT_SUPPORTED if card.recovery is None else 0
        return [SimpleNamespace(nvmlReturn=told, value=SimpleNamespace(uiVal=card.recovery))]

    def nvmlDeviceGetTotalEccErrors(self, card: Card, _kind: int, _counter: int) -> int:
        return _told(card.uncorrected)

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str:
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> SimpleNamespace:
        total = _told(card.memory_bytes)
        return SimpleNamespace(total=total, used=card.used_bytes, free=total - card.used_bytes)

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(gpu=_told(card.busy_percent), memory=0)

    def nvmlDeviceGetP2PStatus(self, one: Card, other: Card, kind: int) -> int:
        for card in (one, other):
            if card.lost:
                raise NVMLError(GPU_IS_LOST)
        return 0 if kind in _told(one.reaches) and kind in _told(other.reaches) else 5

    def nvmlDeviceGetComputeMode(self, card: Card) -> int:
        return card.mode

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        _told(card.slices)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        return len(card.slices or ())

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:
        return _told(_told(card.slices)[index], NOT_FOUND)

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=card.taken.get(pid)) for pid in _told(card.pids, NO_PERMISSION)]


def _told(value: T | None, otherwise: int = NOT_SUPPORTED) -> T:
    if value is None:
        raise NVMLError(otherwise)
    return value
