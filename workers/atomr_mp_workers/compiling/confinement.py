"""Whether a process can be shut in on this machine. The walls themselves are in `process/`."""

from __future__ import annotations

from typing import NamedTuple

from atomr_mp_workers.compiling.process import landlock, seccomp


class Confinement(NamedTuple):
    """What this machine has."""

    landlock: int
    """Version of Landlock's interface; 0 if there is none."""
    calls_known: bool
    """Whether the filter of system calls knows this architecture."""

    @property
    def complete(self) -> bool:
        """Whether a process can give up all that it does not need."""
        return self.landlock > 0 and self.calls_known


def confinement() -> Confinement:
    """Ask the kernel."""
    return Confinement(landlock.version(), seccomp.is_known())
