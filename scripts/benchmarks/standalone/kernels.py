"""What kernels of one's own cost: a launch, fifty as a program, and code that is in the disk cache; in turns.

    python -m scripts.benchmarks.standalone.kernels --backend cuda > kernels.json

Times are tenth percentiles, medians and ninetieth percentiles in microseconds. `launch` waits for its reply, as
`empty_call` does. `program` runs fifty launches of a small kernel; `replay` is one call of a method that replays a
CUDA graph of the same launches and waits for it (on the host backend a loop in NumPy stands for both).
`compile_cached_ms` is the time of a `compile` in a new pool whose code another pool has left on disk; its `first` loads
the compiler's room.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

import atomr_mp

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import machine
from benchmarks.processes.kernel_actor import LAUNCHES, SOURCE, N
from benchmarks.standalone.chained import in_turns, ratio, summary

ACTORS: Final = Path(__file__).parents[1] / "processes" / "kernel_actor.py"


def started(backend: Any, folder: str) -> atomr_mp.Pool:
    """Start a pool."""
    return atomr_mp.start(actors=[f"{ACTORS}:Bare"], gpus=1, backend=backend, run_dir=Path(folder) / "run")


def launches(backend: str, rounds: int) -> dict[str, Any]:
    """Measure launches, and programs of launches."""
    with (
        tempfile.TemporaryDirectory(prefix="atomr-mp-kernels-", dir="/tmp") as folder,
        started(backend, folder) as pool,
    ):
        device, actor = pool.device(), pool.actor("Bare")
        kernel = device.kernels.compile(SOURCE).result()["next"]
        x = device.zeros(N, "float32")
        shape: dict[str, Any] = {"grid": N // 256, "block": 256, "inout": x}
        with device.program() as p:
            for _ in range(LAUNCHES):
                p.kernels.launch(kernel, x, np.int32(N), **shape)
        times = in_turns(
            {
                "empty_call": lambda: actor.nothing().result(),
                "launch": lambda: kernel(x, np.int32(N), **shape).result(),
                "replay": lambda: actor.replay().result(),
                "program": lambda: p.run().result(),
            },
            rounds,
        )
        more_us = statistics.median(times["launch"]) - statistics.median(times["empty_call"])
        found = {"us": summary(times), "program_to_replay": ratio(times, "program", "replay")}
        return {**found, "launch_beyond_an_empty_call_us": round(more_us * 1e6, 1)}


def cached(backend: str, count: int) -> dict[str, float]:
    """Measure compiles of sources that another pool has compiled."""
    sources = [f"// {os.getpid()} {each}\n{SOURCE}" for each in range(count)]
    took = []
    for turn in range(2):
        with (
            tempfile.TemporaryDirectory(prefix="atomr-mp-kernels-", dir="/tmp") as folder,
            started(backend, folder) as pool,
        ):
            for source in sources:
                began = time.perf_counter()
                pool.device().kernels.compile(source).result(60.0)
                if turn:
                    took.append((time.perf_counter() - began) * 1e3)
    return {"median": round(statistics.median(took[1:]), 2), "max": round(max(took[1:]), 2), "first": round(took[0], 2)}


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Measure what kernels of one's own cost.")
    parser.add_argument("--backend", default="host")
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    found = {
        "machine": machine.facts(),
        "backend": asked.backend,
        **launches(asked.backend, asked.rounds),
        "compile_cached_ms": cached(asked.backend, 12),
    }
    json.dump(found, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
