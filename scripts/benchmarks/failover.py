"""SIGKILL of an idle worker, until a client has the next answer: by what stands behind the worker."""

from __future__ import annotations

import statistics
from typing import Final

from benchmarks.contestant import Contestant
from benchmarks.recovery import idle_kill_s
from benchmarks.sizes import Sizes

STANDBYS: Final = ("none", "warm", "hot")


def failover(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the medians, if the contestant has standbys."""
    found = {}
    for standby in STANDBYS:
        way = contestant.failover(standby)
        if way is not None and way.empty is not None:
            idle_kill_s(way)  # the first is of a process that has seen less
            found[standby] = statistics.median(idle_kill_s(way) for _ in range(2 * sizes.kills)) * 1e3
    return found
