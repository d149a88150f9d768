"""Two workers, from launch to the first answer of both."""

from __future__ import annotations

from time import perf_counter

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes

WORKERS = 2


def launch(contestant: Contestant, _sizes: Sizes) -> dict[str, float]:
    """Measure once: a second launch would find everything warm."""
    contestant.prepare()
    begun = perf_counter()
    contestant.start(WORKERS)
    return {"launch": (perf_counter() - begun) * 1e3}
