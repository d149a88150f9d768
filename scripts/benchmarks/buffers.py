"""Arrays: into a device and out of it, compared with a copy in one process; and from device to device, without any."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

from benchmarks.contestant import Arrays, Contestant
from benchmarks.sizes import Sizes

if TYPE_CHECKING:
    import numpy as np

MIB: Final = 2**20
COPIES: Final = 7
HAND_ONS: Final = 21


def buffers(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return medians; every memory has been touched before it is timed."""
    import numpy as np

    contestant.start(2)
    found: dict[str, float] = {}
    arrays = contestant.arrays()
    for size in (64, 512):
        source = np.ones(size * MIB, np.uint8)
        target = np.zeros_like(source)
        put, take = (_copy, _copy) if arrays is None else (arrays.put, arrays.take)
        found[f"put_{size}"] = _median_ms(lambda: put(source, target), COPIES)  # noqa: B023 - called here
        found[f"take_{size}"] = _median_ms(lambda: take(source, target), COPIES)  # noqa: B023 - called here
    if arrays is not None:
        found |= _handed_on(arrays, sizes)
    return found


def _handed_on(arrays: Arrays, sizes: Sizes) -> dict[str, float]:
    found = {"first_512": _median_ms(lambda: arrays.hand_on(512 * MIB), 1)}
    for size in (64, 512):
        found[f"hand_on_{size}"] = _median_ms(lambda: arrays.hand_on(size * MIB), HAND_ONS)  # noqa: B023 - called here
    plain, with_ref = _pairs(arrays.plain, arrays.with_ref, sizes.calls)
    return found | {"ref": (with_ref - plain) * 1e6}


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    target[...] = source


def _median_ms(call: Callable[[], object], count: int) -> float:
    if count > 1:
        call()  # touches what it uses
    taken = []
    for _ in range(count):
        begun = perf_counter()
        call()
        taken.append(perf_counter() - begun)
    return statistics.median(taken) * 1e3


def _pairs(one: Callable[[], object], other: Callable[[], object], count: int) -> tuple[float, float]:
    """Return both medians in seconds, measured alternately."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(count):
        for call, times in zip((one, other), taken, strict=True):
            begun = perf_counter()
            call()
            times.append(perf_counter() - begun)
    return statistics.median(taken[0]), statistics.median(taken[1])
