"""Measures a library's first call in a worker that has just been promoted, beside its second call.

    python -m scripts.benchmarks.standalone.first_calls --backend cuda > first_calls.json

One worker with a hot standby behind it has its BLAS used. It is killed again and again; each time the first products of
the promoted worker are timed in the client, one after the other, in milliseconds. The operands are put there before, so
that nothing else is new. `cold` is the same of a worker that has started without having been told what is used.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

import atomr_mp

ACTORS: Final = Path(__file__).parents[1] / "processes" / "loaded_actor.py"
DEADLINE_S: Final = 60.0
CALLS: Final = 5
"""Products that are timed after each promotion."""
SIZE: Final = 256
KNOWN_S: Final = 1.5
"""How long a worker may take to report its usage, and its standby to prepare for it."""


def products(pool: atomr_mp.Pool) -> list[float]:
    """Return how long the first products of the device's worker take, in milliseconds."""
    device = pool.device(0)
    a, b, c = (device.put(np.full((SIZE, SIZE), number, np.float32)) for number in (1, 2, 0))
    took = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        device.blas.gemm(a, b, c).result(DEADLINE_S)
        took.append((time.perf_counter() - begun) * 1e3)
    if not (c.numpy() == 2 * SIZE).all():
        raise AssertionError("a wrong product")
    return took


def settle(pool: atomr_mp.Pool, *, standby: bool, after: int = 0) -> None:
    """Wait until the device answers, under a generation after another, and its standby is ready if there is one."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        device = pool.status().devices[0]
        stands = not standby or (device.standby is not None and device.standby.state == "ready")
        if device.state == "ready" and device.generation > after and stands:
            return
        time.sleep(0.02)
    raise TimeoutError(f"the device is not as it should be: {pool.status()}")


def measure(backend: str, standby: str, losses: int, limit_s: float) -> dict[str, Any]:
    """Return the medians of the first calls, in order, and how much longer the first takes than the second."""
    actor = "OnGpu" if backend == "cuda" else "OnHost"
    settings: dict[str, Any] = {"max_restarts": 10_000, "max_suspicions": 0, "gpus": 1, "standby": standby}
    found: list[list[float]] = []
    until_s = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory(prefix="atomr-mp-first-", dir="/tmp") as folder:
        run_dir = Path(folder) / "run"
        with atomr_mp.start(
            actors=[f"{ACTORS}:{actor}"], backend="cuda" if backend == "cuda" else "host", run_dir=run_dir, **settings
        ) as pool:
            products(pool)
            while not found or (len(found) < losses and time.monotonic() < until_s):
                settle(pool, standby=standby == "hot")
                time.sleep(KNOWN_S)
                lost = pool.devices[0]
                os.kill(lost.pid, signal.SIGKILL)
                settle(pool, standby=False, after=lost.generation)
                found.append(products(pool))
                sys.stderr.write(f"{standby}: {' '.join(f'{ms:.3f}' for ms in found[-1])}\n")
    ratios = sorted(first / second for first, second, *_ in found)
    return {
        "ms": [round(statistics.median(each), 3) for each in zip(*found, strict=True)],
        "first_to_second": {"p50": round(statistics.median(ratios), 2), "max": round(ratios[-1], 2)},
        "losses": len(found),
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Measure a library's first calls after a promotion.")
    parser.add_argument("--backend", choices=("host", "cuda"), default="host")
    parser.add_argument("--losses", type=int, default=8)
    parser.add_argument("--limit-s", type=float, default=60.0, help="when no further worker is lost, of each kind")
    asked = parser.parse_args()
    result: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "backend": asked.backend, "cores": os.cpu_count()}
    if asked.backend == "cuda":
        name = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
        result["gpu"] = subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
    result["promoted"] = measure(asked.backend, "hot", asked.losses, asked.limit_s)
    result["cold"] = measure(asked.backend, "none", max(2, asked.losses // 4), asked.limit_s / 3)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
