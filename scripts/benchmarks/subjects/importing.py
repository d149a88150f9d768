"""The time of an import: that of a process with it, less that of one without."""

from __future__ import annotations

import statistics
import subprocess
import sys
from time import perf_counter

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes


def import_time(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the differences of the medians, taken in turns."""
    statements = {"bare": "pass", "import": contestant.package, "import_used": contestant.used}
    _time_s(contestant.used)  # bytecode is compiled once, not at every start
    times_s: dict[str, list[float]] = {name: [] for name in statements}
    for _ in range(sizes.imports):
        for name, statement in statements.items():
            times_s[name].append(_time_s(statement))
    medians_s = {name: statistics.median(times) for name, times in times_s.items()}
    bare_s = medians_s.pop("bare")
    return {name: (median_s - bare_s) * 1e3 for name, median_s in medians_s.items()}


def _time_s(statement: str) -> float:
    begun = perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return perf_counter() - begun
