"""The bounds of a compiler's process. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WALL_FACTOR: Final = 10
"""How often the processor time a job may take by the clock: it runs only on an idle processor."""


@dataclass(frozen=True)
class CompileLimits:
    """What one job may take.

    Attributes:
        cpu_s: Processor time, whole seconds. The start of the process counts, a fifth of a second.
        memory_bytes: Address space; the libraries alone take half a GiB.
        idle: Whether the process runs only when nobody else wants the processor (SCHED_IDLE). Without it jobs take
            their share of a busy machine, and others' calls wait for it.
    """

    cpu_s: int = 20
    memory_bytes: int = 4 * 2**30
    idle: bool = True

    @property
    def wall_s(self) -> float:
        """Longest time by the clock, from the start of the process."""
        return float(self.cpu_s * WALL_FACTOR)
