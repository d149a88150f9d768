"""What engines of cuDNN are tried with: drawn numbers, and how far from exact results theirs may be."""

from __future__ import annotations

import functools
import logging
import math
from typing import Any, Final

import cupy
import numpy as np

from atomr_mp.protocol import dtypes
from atomr_mp_workers.libraries.scaling import widened

_LOG: Final = logging.getLogger("atomr_mp.worker")

DRAWN: Final = 65537
"""Numbers that are drawn, a prime: arrays repeat them, but no row of an array is like another."""

EPSILONS: Final = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
"""From 1 to the next number."""

TF32: Final = 2.0**-10
"""From 1 to the next number, as tensor cores read float32."""

ROUNDINGS: Final = 8
"""Roundings for each term of a sum, with a reserve: an engine that is wrong is far off."""

SMALLEST: Final = {"float16": 2.0**-24}
"""The least number above 0, where it counts."""


def draw(target: Any, dtype: str, seed: int) -> None:
    """Fill an array with numbers from -1 to 1 that an element type has."""
    computed = np.float64 if dtype == "float64" else np.float32
    drawn = cupy.asarray(np.random.default_rng(seed).uniform(-1, 1, DRAWN).astype(computed))
    values = cupy.tile(drawn, -(-target.size // DRAWN))[: target.size].reshape(target.shape)
    target[...] = values.astype(dtypes.to_numpy(dtype)).astype(target.dtype)


def double(values: Any) -> Any:
    """Return a copy of an array in float64; half precision goes by float32, since CuPy knows no other way for all."""
    return widened(values).astype(np.float64)


def is_close(found: Any, exact: Any, dtype: str, count: int, *, tf32: bool) -> bool:
    """Return whether results are sums of so many products of drawn numbers, but for roundings. Waits for the device.

    Args:
        found: Results, in float64; NaNs are wrong.
        exact: What they should be.
        dtype: The element type that they were rounded to.
        count: Products in a sum.
        tf32: Whether factors of float32 may be rounded.
    """
    lost = TF32 if tf32 and dtype == "float32" else 0.0
    computed = min(EPSILONS[dtype], EPSILONS["float32"])
    relative = ROUNDINGS * (EPSILONS[dtype] + lost)
    root = math.sqrt(count)  # the size of such a sum, and of what tensor cores cut off at each step
    absolute = ROUNDINGS * (computed * (count + 2) * (1 + root / 64) + lost * root) + SMALLEST.get(dtype, 0.0)
    return bool((abs(found - exact) <= absolute + relative * abs(exact)).all())


def engine_of(name: str) -> str:
    """Return the name of an engine without its settings."""
    return name.partition("_k")[0]


@functools.lru_cache(1024)
def warn(text: str) -> None:
    """Log a warning, once."""
    _LOG.warning(text)
