"""The chain of products that measures programs; its variants take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

N: Final = 64
STEPS: Final = 50
BLOCK: Final = 40
"""Runs of one way in a row."""


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int, block: int = BLOCK) -> dict[str, list[float]]:
    """Return the times of each way in seconds, by blocks in turns; each is warmed up first."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        for _ in range(5):
            way()
    for _ in range(rounds):
        for name, way in ways.items():
            for _ in range(block):
                began = time.perf_counter()
                way()
                found[name].append(time.perf_counter() - began)
    return found


def summary(times: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return tenth percentile, median and ninetieth percentile, in microseconds."""
    found = {}
    for name, each in times.items():
        tenths = statistics.quantiles(each, n=10)
        found[name] = [round(value * 1e6, 1) for value in (tenths[0], statistics.median(each), tenths[-1])]
    return found


def ratio(times: Mapping[str, list[float]], one: str, other: str) -> float:
    """Return how many times as long one way takes as another."""
    return round(statistics.median(times[one]) / statistics.median(times[other]), 3)


def recorded_chain(device: Any, a: Any, x: Any, steps: int = STEPS, out: Any = None) -> Any:
    """Return a program of products, each the next one's factor; without `out` it returns the last one."""
    with device.program() as p:
        last = x
        for _ in range(steps - 1):
            last = p.blas.gemm(a, last)
        last = p.blas.gemm(a, last, out)
        if out is None:
            p.returns(last)
    return p
