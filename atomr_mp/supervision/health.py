"""The reaction to the driver's reports of a GPU: two tables. Pure.

The rows of `XIDS` are the immediate actions of NVIDIA's catalog ("Analyzing Xid Errors with the Xid Catalog",
docs.nvidia.com/deploy/xid-errors, for A100, H100, B100 and GB200), those of `RECOVERY` the flags of "Error Recovery and
Response Flags" (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt) and of nvml.h. An Xid does not say whose process it is
about, and others may use the GPU too; so none of them is a reason by itself to replace a worker. One whose context is
lost finds that out before its next answer and says so: the Xid is noted beside it, and nothing is done twice.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple

from atomr_mp.protocol.messages.health import GpuState, XidSeen


class Measure(StrEnum):
    """The measure for a device."""

    NOTE = auto()
    """Nothing: it is shown to the operator."""
    RESTART = auto()
    """The process it concerns has to be replaced, which it asks for by itself."""
    DRAIN = auto()
    """Its worker is replaced after it has finished its requests."""
    RETIRE = auto()
    """Its worker finishes its requests, and nothing is started before the GPU was reset."""
    QUARANTINE = auto()
    """Its worker is killed, and nothing is started before the GPU was reset."""
    RECOVER = auto()
    """It may be used again; the next start is the proof."""


class Judgement(NamedTuple):
    """A measure, and the reason for a person."""

    measure: Measure
    text: str


class Row(NamedTuple):
    """An Xid's."""

    measure: Measure
    name: str
    linked: bool = False
    """The driver sets a recovery action for it (Xid 154), if it knows such: that decides then."""


_RESTART: Final = Measure.RESTART
_RESET: Final = Measure.QUARANTINE

XIDS: Final[dict[int, Row]] = {
    8: Row(_RESTART, "the GPU stopped processing"),
    11: Row(_RESTART, "invalid or corrupted push buffer"),
    13: Row(_RESTART, "graphics engine exception, as by an illegal instruction or access of a kernel"),
    31: Row(_RESTART, "GPU memory page fault, as by an illegal access of a kernel"),
    32: Row(_RESTART, "invalid or corrupted push buffer"),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85), Row(_RESTART, "copy engine error")),
    43: Row(Measure.NOTE, "a channel was reset after an error of its process"),
    44: Row(Measure.NOTE, "fault during a context switch"),
    45: Row(Measure.NOTE, "a process's channels were removed, as after its death or another error"),
    46: Row(_RESET, "the GPU stopped processing"),
    48: Row(_RESET, "uncorrectable memory error", linked=True),
    62: Row(_RESET, "internal microcontroller halt", linked=True),
    63: Row(Measure.NOTE, "a row of memory is to be remapped at the next reset"),
    64: Row(_RESET, "a row of memory could not be remapped", linked=True),
    69: Row(_RESTART, "graphics engine class error"),
    74: Row(Measure.NOTE, "NVLink error"),
    79: Row(_RESET, "the GPU has fallen off the bus", linked=True),
    80: Row(_RESTART, "corrupted data sent to the GPU"),
    92: Row(Measure.NOTE, "many corrected memory errors"),
    94: Row(_RESTART, "contained memory error"),
    95: Row(_RESET, "uncontained memory error", linked=True),
    109: Row(_RESET, "context switch timeout", linked=True),
    110: Row(_RESET, "security fault", linked=True),
    119: Row(_RESET, "the GPU's system processor does not answer"),
    120: Row(_RESET, "error of the GPU's system processor", linked=True),
    136: Row(_RESET, "link training failed", linked=True),
    137: Row(Measure.NOTE, "NVLink fault, as by an illegal access to another GPU"),
    140: Row(_RESET, "uncorrectable memory error that escaped"),
    143: Row(_RESET, "the GPU could not be initialised", linked=True),
    154: Row(Measure.NOTE, "the recovery action has changed"),
    155: Row(_RESET, "NVLink error", linked=True),
    156: Row(_RESET, "a unit of the GPU is to be retired", linked=True),
}

RECOVERY: Final[dict[int, Judgement]] = {
    1: Judgement(Measure.QUARANTINE, "the GPU needs a reset: `nvidia-smi -r`, once nothing uses it"),
    2: Judgement(Measure.QUARANTINE, "the machine needs a reboot"),
    3: Judgement(Measure.DRAIN, "traffic between GPUs has to cease: its processes are to be replaced"),
    4: Judgement(Measure.RETIRE, "the GPU runs at reduced capacity: it needs a reset when its work is done"),
    5: Judgement(Measure.NOTE, "the IMEX domain has to be recovered"),
    6: Judgement(Measure.QUARANTINE, "the GPU's PCIe bus needs a reset"),
    7: Judgement(Measure.QUARANTINE, "the machine needs a reboot"),
}
"""By `nvmlDeviceGpuRecoveryAction_t`, but for 0: nothing is needed."""

WELL_LOOKS: Final = 3
"""Looks in a row that must find a GPU well before it is used again."""


def is_well(state: GpuState) -> bool:
    """Return whether the driver says nothing against a GPU's use."""
    return not state.lost and not state.recovery


class GpuHealth:
    """A device's GPU, as its reports tell."""

    def __init__(self) -> None:
        self._state: GpuState | None = None
        self._out = False
        """It is not to be used before it has recovered."""
        self._well = 0
        """Looks in a row that found it well."""

    def take(self, report: XidSeen | GpuState) -> Judgement | None:
        """Take in a report; return the action, if there is one."""
        judgement = self._of_xid(report) if isinstance(report, XidSeen) else self._of_state(report)
        if judgement is not None and judgement.measure in {Measure.QUARANTINE, Measure.RETIRE}:
            self._out, self._well = True, 0
        return judgement

    def _of_xid(self, report: XidSeen) -> Judgement:
        row = XIDS.get(report.xid, Row(Measure.NOTE, "see NVIDIA's catalog of Xid errors"))
        text = f"the driver reports Xid {report.xid}: {row.name}"
        told = self._state is not None and self._state.recovery is not None
        if row.measure is Measure.QUARANTINE and row.linked and told:
            return Judgement(Measure.NOTE, f"{text}; what to do, it says apart")
        return Judgement(row.measure, text)

    def _of_state(self, state: GpuState) -> Judgement | None:
        before, self._state = self._state, state
        self._well = self._well + 1 if is_well(state) else 0
        if state.lost and not (before and before.lost):
            return Judgement(Measure.QUARANTINE, "the driver cannot reach the GPU; see `dmesg`, a reboot may be needed")
        if state.recovery and state.recovery != (before and before.recovery):
            unknown = Judgement(Measure.NOTE, "an action that is not known here")
            measure, text = RECOVERY.get(state.recovery, unknown)
            return Judgement(measure, f"the driver asks for recovery action {state.recovery}: {text}")
        if self._out and self._well >= WELL_LOOKS:
            self._out = False
            return Judgement(Measure.RECOVER, "the driver says that the GPU is well; a start is to prove it")
        if before is not None and (state.uncorrected or 0) > (before.uncorrected or 0):
            return Judgement(Measure.NOTE, f"{state.uncorrected} uncorrectable errors of the GPU's memory so far")
        return None
