"""What programs and single requests of libraries cost, beside the same work done directly, in turns within one run.

    python -m scripts.benchmarks.standalone.programs                        on the host
    python -m scripts.benchmarks.standalone.programs --backend cuda         on a GPU, in about three minutes

Times are medians in microseconds, with the tenth and the ninetieth percentile beside them unless a name says
otherwise. Goals stand next to the figures; none is enforced.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

import atomr_mp

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import machine
from benchmarks.standalone.chained import STEPS, N, in_turns, ratio, recorded_chain, summary

ACTOR: Final = f"{Path(__file__).parents[1] / 'processes' / 'program_actor.py'}:Chain"
ROUNDS: Final = 9


def main() -> int:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description="Measure programs and requests beside direct calls.")
    parser.add_argument("--backend", choices=("host", "cuda"), default="host")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns; default: {ROUNDS}")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine.facts(), "backend": options.backend, "rounds": options.rounds}
    with (
        tempfile.TemporaryDirectory() as folder,
        atomr_mp.start(actors=[ACTOR], gpus=1, backend=options.backend, run_dir=Path(folder, "run")) as pool,
    ):
        parts: list[Callable[[atomr_mp.Pool, int], Mapping[str, Any]]] = [chain, latencies_beside_a_preparation]
        if options.backend == "cuda":
            from benchmarks.gpu import programs as programs_cuda

            found["gpu"] = _gpu()
            parts = [programs_cuda.chain, programs_cuda.requests, programs_cuda.transforms, *parts[1:]]
        for part in parts:
            try:
                found |= part(pool, options.rounds)
            except Exception as error:  # noqa: BLE001 - the other parts are worth having
                found[part.__name__] = f"{type(error).__name__}: {error}"
    json.dump(found, sys.stdout, indent=1)
    print()
    return 0


def chain(pool: atomr_mp.Pool, rounds: int) -> dict[str, Any]:
    """Fifty dependent products of small matrices: as requests, a program, and one call of a method that does them."""
    device, actor = pool.device(), pool.actor("Chain")
    a, x = device.put(np.eye(N, dtype="float32")), device.full((N, N), 0.5)
    targets = [device.zeros((N, N)) for _ in range(STEPS)]
    out = device.zeros((N, N))
    into, to_new = recorded_chain(device, a, x, out=out), recorded_chain(device, a, x)

    def requests() -> None:
        last = x
        for target in targets:
            reply = device.blas.gemm(a, last, target)
            last = target
        reply.result()

    here = [np.full((N, N), 0.5, "float32") for _ in range(STEPS + 1)]
    matrix = np.eye(N, dtype="float32")

    def directly() -> None:
        for source, target in itertools.pairwise(here):
            np.matmul(matrix, source, out=target)

    times = in_turns(
        {
            "program": lambda: into.run().result(),
            "one_message_to_a_method": lambda: actor.directly(a, x, out, STEPS).result(),
            "one_message_to_a_method_with_libraries": lambda: actor.by_libraries(a, x, out, STEPS).result(),
            "program_to_new_memory": lambda: to_new.run().result(),
            "one_message_to_a_method_to_new_memory": lambda: actor.directly_to_new(a, x, STEPS).result(),
            "requests_in_flight": requests,
            "directly": directly,
            "empty_call": lambda: actor.nothing().result(),
        },
        rounds,
    )
    return {
        "chain_of_50_gemm_64_us": summary(times),
        "program_beside_one_message_to_a_method": ratio(times, "program", "one_message_to_a_method"),
        "the_same_to_new_memory": ratio(times, "program_to_new_memory", "one_message_to_a_method_to_new_memory"),
        "goal": 1.6,
    }


def latencies_beside_a_preparation(pool: atomr_mp.Pool, rounds: int) -> dict[str, Any]:
    """Empty calls while a program of a thousand steps is prepared, which takes Python; beside such while nothing is."""
    device, actor = pool.device(), pool.actor("Chain")
    a, x = device.put(np.eye(4, dtype="float32")), device.full((4, 4), 0.5)
    times: dict[str, list[float]] = {"alone": [], "beside": []}
    prepared = []
    for number in range(rounds):
        p = recorded_chain(device, a, x, 1000 - number)  # another one in each round
        for name, found in times.items():
            done = threading.Event()

            def prepare(p: Any = p, done: threading.Event = done) -> None:
                began = time.perf_counter()
                p.run().result()
                prepared.append(time.perf_counter() - began)
                done.set()

            if name == "beside":
                threading.Thread(target=prepare).start()
            until = time.perf_counter() + 0.2
            while not done.is_set() if name == "beside" else time.perf_counter() < until:
                began = time.perf_counter()
                actor.nothing().result()
                found.append(time.perf_counter() - began)
    worst = {name: round(max(each) * 1e3, 2) for name, each in times.items()}
    return {
        "empty_call_beside_a_preparation_us": summary(times),
        "slowest_ms": worst,
        "preparation_ms": round(statistics.median(prepared) * 1e3, 1),
    }


def _gpu() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
