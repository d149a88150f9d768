"""Arrays into a GPU's memory and out of it, beside what the machine itself takes for its part of that.

    PYTHONPATH=scripts:.:workers python -m benchmarks.gpu.copies > copies.json

Needs a GPU and the extra of its CUDA version, or the argument "host"; takes half a minute. Figures are medians, in GB/s
unless a name says otherwise. In each round every way has its turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

import atomr_mp

MIB: Final = 2**20
SIZES: Final = 12, 32, 64, 1024
"""Sizes of arrays, in MiB."""
ROUNDS: Final = 7
SMALL_CALLS: Final = 2000
THREADS: Final = 4
"""Threads that touch new memory, as many as copy."""


def timed(way: Callable[[], object]) -> float:
    """Return how long a call takes, in seconds, without the end of what it returns."""
    began = time.perf_counter()
    result = way()
    took = time.perf_counter() - began
    del result
    return took


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return how long each way takes, in seconds, round by round; each has had two turns before.

    Every second round has them backwards: new memory costs less where memory was just given back.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        for name, way in list(ways.items())[:: -1 if number % 2 else 1]:
            took = timed(way)
            if number >= 2:
                times[name].append(took)
    return times


def first_touch(nbytes: int) -> np.ndarray[Any, Any]:
    """Return a new array whose pages several threads have touched."""
    array: Any = np.empty(nbytes, np.uint8)
    step = -(-nbytes // THREADS)
    threads = [threading.Thread(target=array[at : at + step].fill, args=(0,)) for at in range(0, nbytes, step)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return array  # type: ignore[no-any-return]


def large(pool: atomr_mp.Pool, nbytes: int) -> dict[str, list[float]]:
    """Arrays of every kind of memory, and the parts of the way that the machine itself does."""
    device = pool.device()
    ordinary, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    shared, into = pool.host_array((nbytes,), "uint8"), pool.host_array((nbytes,), "uint8")
    shared[:] = into[:] = 1
    ref = device.put(ordinary)
    ways: dict[str, Callable[[], object]] = {
        "put": lambda: device.put(ordinary),
        "numpy_out": lambda: ref.numpy(out=target),
        "numpy": ref.numpy,
        "first_touch": lambda: first_touch(nbytes),
        "put_of_host_array": lambda: device.put(shared),
        "numpy_out_of_host_array": lambda: ref.numpy(out=into),
        "copy_by_one_thread": lambda: np.copyto(target, ordinary),
    }
    if device.uuid:
        ways |= by_bus(nbytes)
    return in_turns(ways)


def by_bus(nbytes: int) -> dict[str, Callable[[], object]]:
    """Return the copies of pinned memory of this process to its own memory on the GPU, and back."""
    import cupy

    there: Any = cupy.empty(nbytes, "uint8")
    alloc: Any = cupy.cuda.alloc_pinned_memory
    pinned = np.frombuffer(alloc(nbytes), "uint8", nbytes)
    pinned[:] = 1

    def to_device() -> None:
        there.set(pinned)
        cupy.cuda.Stream.null.synchronize()

    return {
        "pinned_to_device": to_device,
        "pinned_to_host": lambda: there.get(out=pinned),
    }


def first(pool: atomr_mp.Pool, nbytes: int) -> dict[str, list[float]]:
    """The first transfers of a client."""
    array, out = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    device = pool.device()
    return {
        "first_put": [timed(lambda: device.put(array))],
        "first_numpy_out": [timed(lambda: device.full((nbytes,), 1, "uint8").numpy(out=out))],
    }


def kept(pool: atomr_mp.Pool, nbytes: int, count: int = 4) -> dict[str, list[float]]:
    """Results that are all kept, so that each needs new memory; and new memory alone, likewise."""
    ref, found = pool.device().full((nbytes,), 1, "uint8"), list[Any]()
    ways: dict[str, Callable[[], Any]] = {"numpy_kept": ref.numpy, "first_touch_kept": lambda: first_touch(nbytes)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count):
        for name, way in ways.items():
            began = time.perf_counter()
            found.append(way())
            times[name].append(time.perf_counter() - began)
    return times


def beside_python(pool: atomr_mp.Pool, nbytes: int) -> dict[str, list[float]]:
    """Copies while another thread of the process computes in Python, so that each change of threads takes long."""
    device, ordinary, target = pool.device(), np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    ref, over = device.put(ordinary), threading.Event()

    def compute() -> None:
        while not over.is_set():
            pass

    computing = threading.Thread(target=compute)
    computing.start()
    try:
        return in_turns({"put": lambda: device.put(ordinary), "numpy_out": lambda: ref.numpy(out=target)}, 3)
    finally:
        over.set()
        computing.join()


def small(pool: atomr_mp.Pool) -> dict[str, float]:
    """Arrays of 1 MiB, and requests without any: medians in microseconds."""
    device, array = pool.device(), np.ones(MIB, np.uint8)
    out, ref = np.zeros_like(array), device.put(array)
    ways: dict[str, Callable[[], object]] = {
        "put_us": lambda: device.put(array),
        "numpy_us": ref.numpy,
        "numpy_out_us": lambda: ref.numpy(out=out),
        "statistics_us": device.statistics,
    }
    times = in_turns(ways, SMALL_CALLS)
    return {name: round(statistics.median(found) * 1e6, 1) for name, found in times.items()}


def rates(times: Mapping[str, list[float]], nbytes: int) -> dict[str, float]:
    """Return median rates."""
    return {name: round(nbytes / statistics.median(found) / 1e9, 2) for name, found in times.items()}


def main() -> None:
    """Measure, and print the figures as JSON."""
    backend: Literal["cuda", "host"] = "host" if sys.argv[1:] == ["host"] else "cuda"
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "cores": len(os.sched_getaffinity(0))}
    if backend == "cuda":
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        report["gpu"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder, "run")

        def measure(way: Callable[[atomr_mp.Pool, int], Mapping[str, list[float]]], mebibytes: int) -> dict[str, float]:
            with atomr_mp.connect(run_dir=run_dir) as own:  # whose memory nothing else has used
                own.wait_ready()
                return rates(way(own, mebibytes * MIB), mebibytes * MIB)

        with atomr_mp.start(gpus=1, backend=backend, run_dir=run_dir) as pool:
            report["1_mib"] = small(pool)
            for size in SIZES:
                report[f"{size}_mib"] = measure(first, size) | measure(large, size)
            report["1024_mib"] |= measure(kept, 1024)
            report["256_mib_beside_python"] = measure(beside_python, 256)
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
