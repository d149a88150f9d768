"""Laws from words, in NumPy: each turns a word of 32 or 64 random bits into a number.

Each is a monotonic function of one word, so that quasi-random points stay evenly spread. The CUDA backend's kernels do
the same in C.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from atomr_mp.protocol.libraries import rng
from atomr_mp_workers.libraries.rng import philox

Array = npt.NDArray[Any]

CHUNK: Final = 2**18
"""Numbers that are made at a time."""

GAMMA, FIRST, SECOND = 1, 2, 3
"""Marks of the Philox blocks of gamma numbers, and of the two of a beta number; words come from the blocks with mark
0."""


def uniform(word: Array) -> Array:
    """Return numbers in (0, 1]: float32 from 32 bits, float64 from 64."""
    if word.dtype == np.uint32:
        return word.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    return ((word >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53


def standard_normal(word: Array) -> Array:
    """Return normal numbers, as exact in the upper tail as in the lower one."""
    bits = 8 * word.dtype.itemsize
    upper = word >> word.dtype.type(bits - 1) != 0
    folded = np.where(upper, ~word, word)
    if bits == 32:
        below = ndtri((folded.astype(np.float64) + 0.5) * 2.0**-32).astype(np.float32)
    else:
        below = ndtri(((folded >> np.uint64(10)).astype(np.float64) + 0.5) * 2.0**-54)
    found: Array = np.where(upper, -below, below)
    return found


def from_words(request: Any, word: Array) -> Array:
    """Return the numbers of a law that takes one word for each number."""
    kind = np.float32 if word.dtype == np.uint32 else np.float64
    found: Array
    if isinstance(request, rng.Uniform):
        found = kind(request.low) + kind(request.high - request.low) * uniform(word)
    elif isinstance(request, rng.Normal):
        found = kind(request.loc) + kind(request.scale) * standard_normal(word)
    elif isinstance(request, rng.Lognormal):
        found = np.exp(kind(request.mean) + kind(request.sigma) * standard_normal(word))
    elif isinstance(request, rng.Exponential):
        found = 0 - kind(request.scale) * np.log(uniform(word))  # from 0, since there is no -0
    else:
        found = kind(request.loc) + kind(request.scale) * np.tan(kind(np.pi) * (uniform(word) - kind(0.5)))
    return found


# --- counts -----------------------------------------------------------------------------------------------------------


def poisson_table(lam: float) -> tuple[int, Array]:
    """Return the smallest count, and the cumulative probabilities of it and each later count.

    Counts that are left out are less likely than a u of 2^-53.
    """
    reach = 12 * lam**0.5 + 60
    low, high = max(0, int(lam - reach)), int(lam + reach)
    counts = np.arange(low + 1, high + 1)
    with np.errstate(divide="ignore"):
        steps = np.log(lam / counts)
    likely = np.concatenate([[0.0], np.cumsum(steps)])
    total = np.cumsum(np.exp(likely - likely.max()))
    return low, total / total[-1]


# --- rejection --------------------------------------------------------------------------------------------------------


def gamma(request: rng.Gamma, begin: int, count: int) -> Array:
    """Return numbers of the gamma law in double precision, after the first `begin`."""
    positions = _positions(request.source, begin, count)
    found: Array = request.scale * np.exp(_log_gamma(request.shape, request.source.seed, positions, GAMMA))
    return found


def beta(request: rng.Beta, begin: int, count: int) -> Array:
    """Return numbers of the beta law, in double precision: x / (x + y) of two gamma numbers."""
    positions = _positions(request.source, begin, count)
    x = _log_gamma(request.a, request.source.seed, positions, FIRST)
    y = _log_gamma(request.b, request.source.seed, positions, SECOND)
    with np.errstate(over="ignore"):
        found: Array = 1 / (1 + np.exp(y - x))
    return found


def _positions(source: rng.Source, begin: int, count: int) -> Array:
    return np.uint64(source.offset + begin) + np.arange(count, dtype=np.uint64)


def _log_gamma(shape: float, seed: int, positions: Array, mark: int) -> Array:
    """Return the logarithms of numbers of the gamma law of scale 1, after Marsaglia and Tsang (2000).

    A number depends on its position alone: its attempts are Philox blocks whose counter is the position, the attempt
    and the mark.
    """
    d = (shape if shape >= 1 else shape + 1) - 1 / 3
    c = 1 / (9 * d) ** 0.5
    found = np.empty(positions.size)
    left = np.arange(positions.size)
    attempt = 0
    while left.size:
        attempt += 1
        first, second = _pairs(positions[left], seed, attempt, mark)
        x, u = standard_normal(first), uniform(second)
        v = (1 + c * x) ** 3
        with np.errstate(invalid="ignore", divide="ignore"):
            accepted = (v > 0) & (np.log(u) < 0.5 * x * x + d * (1 - v + np.log(v)))
        found[left[accepted]] = np.log(d * v[accepted])
        left = left[~accepted]
    if shape < 1:
        first, _ = _pairs(positions, seed, 0, mark)
        with np.errstate(over="ignore"):
            found += np.log(uniform(first)) / shape
    return found


def _pairs(positions: Array, seed: int, attempt: int, mark: int) -> tuple[Array, Array]:
    """Return two words of 64 bits for each position."""
    low, high = philox.split(positions)
    one, two, three, four = philox.blocks((low, high, np.full_like(low, attempt), np.full_like(low, mark)), seed)
    return one | two << np.uint64(32), three | four << np.uint64(32)
