"""What a supervisor is told to run: everything decided, nothing left to detect. Crosses to its process as JSON."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from atomr_mp.protocol.control import ActorSpec, Execution
from atomr_mp.protocol.session import Window
from atomr_mp.supervision.intensity import Intensity
from atomr_mp.supervision.recycle import Limits


class DevicePlan(msgspec.Struct, frozen=True):
    """One device."""

    index: int
    name: str
    environment: dict[str, str]
    """Added to the supervisor's own for this device's workers."""
    execution: Execution
    uuid: str = ""
    """The GPU's; empty on the host backend."""
    notes: list[str] = []
    """What an operator should know of it."""


class Plan(msgspec.Struct, frozen=True):
    """A pool."""

    pool: str
    run_dir: str
    backend: str
    devices: list[DevicePlan]
    actors: list[ActorSpec]
    window: Window
    intensity: Intensity
    start_timeout_s: float
    drain_timeout_s: float
    log_max_bytes: int
    core_dumps: bool
    cgroups: bool
    temporary: bool = False
    """Remove the run directory after an orderly end: its name was made up, so nobody will look for it."""
    recycling: Limits = Limits()
    """When workers are replaced although they are well."""

    def to_descriptor(self) -> int:
        """Return a descriptor from which `from_descriptor` reads this plan; the caller closes it."""
        descriptor = os.memfd_create("atomr-mp-plan", os.MFD_CLOEXEC)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(self))
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Plan:
        """Read a plan and close its descriptor."""
        with open(descriptor, "rb") as file:
            return msgspec.json.decode(file.read(), type=cls)

    @property
    def run_path(self) -> Path:
        """The run directory."""
        return Path(self.run_dir)
