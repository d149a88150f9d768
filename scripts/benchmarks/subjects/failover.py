"""A worker's loss, until a client has the next answer: of an idle worker by the kind of standby, and under load."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes
from benchmarks.subjects.recovery import idle_kill_s

STANDBYS: Final = ("none", "warm", "hot")

WITH_TORCH: Final = ("warm", "hot")
"""Without a standby, the figure would be the time of torch's import."""


def failover(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the medians, if the contestant has standbys; and the times that busy clients have no answer.

    These are of an actor that leaves much to first calls: it imports a module, or on a GPU (`--backend cuda`) it
    compiles a kernel.
    """
    found = _medians(contestant, sizes, STANDBYS, torch=False)
    contestant.stop()
    for kind, figures in contestant.unwarmed(sizes.backend, sizes.kills).items():
        found |= {f"{kind}_{name}": value for name, value in figures.items()}
    return found


def failover_with_torch(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the medians of workers that have imported torch, if the contestant has standbys."""
    return _medians(contestant, sizes, WITH_TORCH, torch=True)


def _medians(contestant: Contestant, sizes: Sizes, standbys: Sequence[str], *, torch: bool) -> dict[str, float]:
    found = {}
    for standby in standbys:
        way = contestant.failover(standby, torch=torch)
        if way is not None and way.empty is not None:
            idle_kill_s(way)  # the first kill is of a process that has run less code
            found[standby] = statistics.median(idle_kill_s(way) for _ in range(2 * sizes.kills)) * 1e3
    return found
