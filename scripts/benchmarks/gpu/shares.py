"""Times of the ways in which one piece of work is done, and shares of one of them, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def measured(ways: Mapping[str, Callable[[], object]], of: str, parts: int, rounds: int) -> dict[str, Any]:
    """Return milliseconds of one part of each way's work, and the time of one way as a share of each other's.

    Args:
        ways: Each does all parts, and waits for them.
        of: The way that the others are compared with.
        parts: Number of parts of the work.
        rounds: How often each way has its turn.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        for _ in range(3):  # plans, and graphs of programs, are made
            way()
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - began) / parts * 1e3)
    shares = {
        name: [base / each for base, each in zip(times[of], found, strict=True)]
        for name, found in times.items()
        if name != of
    }
    return {
        "ms": {name: round(statistics.median(found), 5) for name, found in times.items()},
        f"share_of_{of}": {
            name: {
                "median": round(statistics.median(found), 4),
                "least": round(min(found), 4),
                "most": round(max(found), 4),
            }
            for name, found in shares.items()
        },
    }
