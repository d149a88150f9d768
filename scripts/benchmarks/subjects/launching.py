"""Two workers, from launch to the first answer of both; and the memory of all processes then."""

from __future__ import annotations

from time import perf_counter

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes

WORKERS = 2


def launch(contestant: Contestant, _sizes: Sizes) -> dict[str, float]:
    """Measure once: a second launch would find everything warm."""
    contestant.prepare()
    begun = perf_counter()
    contestant.launch(WORKERS)
    launch_ms = (perf_counter() - begun) * 1e3
    import psutil

    application = psutil.Process()
    everybody = [application, *application.children(recursive=True)]
    return {"launch": launch_ms, "size": sum(each.memory_full_info().uss for each in everybody) / 2**20}
