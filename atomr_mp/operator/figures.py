"""Figures made of a pool's counters. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(counts: Sequence[int], part: float) -> float | None:
    """Return about which latency, in ns, a part of all requests had at most; None if there are none.

    Args:
        counts: As `Figures.latencies`: the N-th counts those below 2^N ns.
        part: From 0 to 1.
    """
    total = sum(counts)
    if total <= 0:
        return None
    left: float = part * total
    for power, count in enumerate(counts):
        if count and left <= count:
            return float(2 ** (power - 1 + left / count))  # they are taken to be spread evenly, by their logarithm
        left -= count
    return None
