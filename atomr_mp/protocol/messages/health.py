"""Messages about GPUs' health, from the process that asks the driver: one packet, one message. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from atomr_mp.protocol.codec import U16, U32, U64, Codec, Message

MAX_PROCESSES: Final = 128
"""Report at most this many processes, largest first."""


class XidSeen(Message, frozen=True, tag="xid"):
    """The driver has reported an error of a GPU by its Xid number."""

    gpu: U16
    """Position of the GPU among the pool's."""
    xid: U64


class GpuState(Message, frozen=True, tag="state"):
    """The state of a GPU; sent every few seconds, also if nothing has changed."""

    gpu: U16
    """Position of the GPU among the pool's."""
    lost: bool = False
    """The driver cannot reach it."""
    recovery: U32 | None = None
    """The action that the driver asks for, `nvmlDeviceGpuRecoveryAction_t`; nil if it does not say."""
    uncorrected: U64 | None = None
    """Errors of its memory that could not be corrected, since the driver was loaded; nil if it does not count them."""


class GpuProcess(Message, frozen=True):
    """A process that has a context on a GPU or slice."""

    pid: U32
    taken_bytes: U64
    """Of the GPU's memory: its context, libraries and whatever it has allocated."""


class GpuMemory(Message, frozen=True, tag="memory"):
    """Memory of a GPU by process; sent every few seconds. Unreported processes are left out."""

    gpu: U16
    """Position of the GPU among the pool's."""
    processes: Annotated[list[GpuProcess], msgspec.Meta(max_length=MAX_PROCESSES)]


class GpuLink(Message, frozen=True, tag="link"):
    """How two GPUs reach each other's memory; sent when the driver is first asked. Slices and one GPU have none."""

    gpu: U16
    """Position of the GPU among the pool's; less than the other's."""
    other: U16
    access: bool
    """Whether each can read and write the other's memory."""
    nvlink: bool
    """Whether it does so over NVLink, in place of PCIe."""


FromHealth = XidSeen | GpuState | GpuMemory | GpuLink

FROM_HEALTH: Final[Codec[FromHealth]] = Codec(FromHealth, channel="health")
