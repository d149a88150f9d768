"""The time of an import: a process that does it, less one that does not."""

from __future__ import annotations

import statistics
import subprocess
import sys
from time import perf_counter

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes


def import_time(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the difference of the medians, taken in turns."""
    _time_s(contestant.statement)  # bytecode is compiled once, not at every start
    bare, importing = [], []
    for _ in range(sizes.imports):
        bare.append(_time_s("pass"))
        importing.append(_time_s(contestant.statement))
    return {"import": (statistics.median(importing) - statistics.median(bare)) * 1e3}


def _time_s(statement: str) -> float:
    begun = perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return perf_counter() - begun
