"""Arrays: into a device and out of it, compared with a copy in one process; and from device to device, without a copy.

The cost of a ref is the difference of two times, each ten times as large. So the same call is made with a number and
with a ref, in alternating blocks, and each block is compared with the next one: other work of the machine is about the
same in both.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Final

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes

MIB: Final = 2**20
COPIES: Final = 7
HAND_ONS: Final = 21
BLOCK_CALLS: Final = 200
"""Calls of one kind in a row."""


def buffers(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return medians; every memory has been touched before it is timed."""
    import numpy as np

    contestant.start(2)
    found: dict[str, float] = {}
    arrays = contestant.arrays()
    if arrays is None:
        return found
    for size in (64, 512):
        source = np.ones(size * MIB, np.uint8)
        target = np.zeros_like(source)
        for name, way in (("put", arrays.put), ("take", arrays.take)):
            if way is not None:
                found[f"{name}_{size}"] = _median_ms(functools.partial(way, source, target), COPIES)
    if arrays.hand_on is not None:
        found |= _handed_on(arrays.hand_on)
    if arrays.with_ref is not None:
        found["ref"] = _added_us(*arrays.with_ref, sizes)
    return found


def _handed_on(hand_on: Callable[[int], object]) -> dict[str, float]:
    found = {"first_512": _median_ms(lambda: hand_on(512 * MIB), 1)}
    for size in (64, 512):
        found[f"hand_on_{size}"] = _median_ms(functools.partial(hand_on, size * MIB), HAND_ONS)
    return found


def _added_us(plain: Callable[[], object], with_ref: Callable[[], object], sizes: Sizes) -> float:
    _median_ms(plain, sizes.warm_up)
    blocks = max(1, sizes.calls // BLOCK_CALLS)
    added = [_median_ms(with_ref, BLOCK_CALLS) - _median_ms(plain, BLOCK_CALLS) for _ in range(blocks)]
    return statistics.median(added) * 1e3


def _median_ms(call: Callable[[], object], count: int) -> float:
    if count > 1:
        call()  # touches what it uses
    taken = []
    for _ in range(count):
        begun = perf_counter()
        call()
        taken.append(perf_counter() - begun)
    return statistics.median(taken) * 1e3
