"""Memory that a process has for itself, and that its end would free (USS)."""

from __future__ import annotations

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes


def memory(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Measure after some calls: what is loaded at the first one counts too."""
    import psutil

    contestant.start(1)
    empty = contestant.connect().empty
    for _ in range(sizes.warm_up):
        empty()
    return {
        name: sum(psutil.Process(pid).memory_full_info().uss for pid in pids) / 2**20
        for name, pids in contestant.processes().items()
    }
