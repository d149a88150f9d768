"""A stand-in for nvidia-ml-py's module `pynvml`, with as many GPUs as a test wants; no driver is asked."""
# ruff: noqa: D102, N802 - NVIDIA's names, and their meaning

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    """What every call may raise."""

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
    slices: tuple[Card | None, ...] | None = None
    """By slot, with None for an empty one; None for a GPU without MIG."""
    lost: bool = False
    busy_percent: int | None = 0


class FakeNvml(ModuleType):
    """The module.

    Attributes:
        cards: The GPUs, by index.
        cuda_version: 1000 times the major and 10 times the minor version; None if there is no libcuda.
        refuses: What `nvmlInit` raises, if not 0.
        before_init: Called by `nvmlInit`.
        inits: How often it is initialised.
    """

    NVMLError = NVMLError

    def __init__(self, *cards: Card) -> None:
        super().__init__("pynvml")
        self.cards = cards
        self.cuda_version: int | None = 13000
        self.refuses = 0
        self.before_init: Callable[[], object] = lambda: None
        self.inits = 0

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

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str:
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> SimpleNamespace:
        total = _told(card.memory_bytes)
        return SimpleNamespace(total=total, used=card.used_bytes, free=total - card.used_bytes)

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(gpu=_told(card.busy_percent), memory=0)

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
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in _told(card.pids, NO_PERMISSION)]


def _told(value: T | None, otherwise: int = NOT_SUPPORTED) -> T:
    if value is None:
        raise NVMLError(otherwise)
    return value
