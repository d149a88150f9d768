"""Names by which a pool's processes and memory are known from outside. Pure.

Processes by what they inherit; memory by its name, which `/proc/PID/maps` and `/proc/PID/fd` show behind "memfd:".
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

RUN_DIR: Final = "_ATOMR_MP_RUN_DIR"
"""Environment variable of all that a supervisor starts, and of what that starts: the run directory."""

WORKER: Final = "_ATOMR_MP_WORKER"
"""Environment variable of what workers start: "DEVICE-GENERATION"."""

SLAB: Final = "atomr-mp-slab"
"""Begins the name of a worker's slab."""

CLIENT_SLAB: Final = "atomr-mp-client"
"""Begins the name of a client's own."""


RESIDENT: Final = "atomr-mp-resident"
"""Begins the name of memory that outlives the workers."""


class Owner(NamedTuple):
    """The process that owns the memory."""

    epoch: str
    """The pool's life, see `epoch_label`."""
    worker: tuple[int, int] | None
    """Device and generation; None for a client's, and for what outlives the workers."""
    resident: bool = False
    """It outlives the workers."""


def epoch_label(epoch: bytes) -> str:
    """Return the form of a pool's epoch in names."""
    return epoch[:8].hex()


def slab_name(epoch: bytes, device: int, generation: int) -> str:
    """Return the name of a worker's slabs."""
    return f"{SLAB}-{epoch_label(epoch)}-d{device}-g{generation}"


def client_slab_name(epoch: bytes) -> str:
    """Return the name of a client's slabs."""
    return f"{CLIENT_SLAB}-{epoch_label(epoch)}"


def resident_name(epoch: bytes) -> str:
    """Return the name of memory that outlives the workers."""
    return f"{RESIDENT}-{epoch_label(epoch)}"


def owner(name: str) -> Owner | None:
    """Return whose memory a name says that it is; None if the owner is unknown."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    worker = None if found["device"] is None else (int(found["device"]), int(found["generation"]))
    return Owner(found["of"] or found["pool"], worker, found["kind"] == RESIDENT)


_NAME: Final = re.compile(
    rf"(?:{SLAB}-(?P<of>[0-9a-f]{{16}})-d(?P<device>\d+)-g(?P<generation>\d+)"
    rf"|(?P<kind>{CLIENT_SLAB}|{RESIDENT})-(?P<pool>[0-9a-f]{{16}}))"
)
