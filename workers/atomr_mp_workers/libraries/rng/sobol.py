"""Sobol's points, in NumPy: a point is a function of its number.

Source: Antonov, Saleev: An economic method of computing LPτ-sequences (1979), with the direction numbers of Joe, Kuo:
Constructing Sobol sequences with better two-dimensional projections (2008). SciPy has these in a file. Its sampler is
not used, since with it comes all of `scipy.stats`, and since it makes the points that it passes over.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from atomr_mp import errors

Array = npt.NDArray[Any]

BITS: Final = 32
"""Bits of a coordinate, and of the number of a point."""

NUMBERS: Final = "stats/_sobol_direction_numbers.npz"
"""The file in SciPy's folder: `poly` has a polynomial for each coordinate, and `vinit` its first direction numbers."""


def points(dimensions: int, first: int, count: int) -> Array:
    """Return the words of points, a row for each point.

    Args:
        dimensions: How many coordinates they have.
        first: The number of the first point.
        count: How many, at least one; the last number is below 2^32.
    """
    made = np.empty((count, dimensions), np.uint32)
    bits, last = (count - 1).bit_length(), first + count
    steps, table = _directions(dimensions), _table(dimensions, bits)
    for block in range(first >> bits, (last - 1 >> bits) + 1):  # one, or two
        start = block << bits
        begin, end = max(first, start), min(last, start + (1 << bits))
        above, code = np.zeros((dimensions, 1), np.uint32), start ^ start >> 1
        while code:
            bit = code.bit_length() - 1
            above[:, 0] ^= steps[bit]
            code ^= 1 << bit
        np.bitwise_xor(table[:, begin - start : end - start], above, out=made.T[:, begin - first : end - first])
    return made


@functools.lru_cache(maxsize=2)
def _table(dimensions: int, bits: int) -> Array:
    """Return the words of the first 2^bits points, a row for each coordinate."""
    steps, made = _directions(dimensions), np.zeros((dimensions, 1 << bits), np.uint32)
    for bit in range(bits):  # the second half in Gray's code is the first one backwards, with a bit more
        half = 1 << bit
        np.bitwise_xor(made[:, half - 1 :: -1], steps[bit][:, None], out=made[:, half : 2 * half])
    return made


@functools.lru_cache(maxsize=8)
def _directions(dimensions: int) -> Array:
    """Return the direction numbers, a row for each bit of Gray's code."""
    poly, initial = (each[:dimensions] for each in load())
    degree = np.frexp(poly)[1] - 1  # one less than the bits of the polynomial
    rows, made = np.arange(dimensions), np.zeros((BITS, dimensions), np.uint32)
    for bit in range(BITS):
        before = made[np.maximum(bit - degree, 0), rows]
        following = before ^ before >> degree.astype(np.uint32)
        for step in range(1, min(int(degree.max()), bit + 1)):
            named = (poly >> np.maximum(degree - step, 0) & 1 == 1) & (step < degree)
            following ^= np.where(named, made[bit - step], np.uint32(0))
        given = initial[:, min(bit, initial.shape[1] - 1)] << np.uint32(BITS - 1 - bit)
        made[bit] = np.where(bit < degree, given, following)
    made[:, 0] = np.uint32(1) << np.arange(BITS - 1, -1, -1, dtype=np.uint32)
    return made


@functools.cache
def load() -> tuple[Array, Array]:
    """Return the polynomial of each coordinate, and its first direction numbers.

    Raises:
        Unsupported: This SciPy has them elsewhere.
    """
    scipy = importlib.util.find_spec("scipy")
    path = Path(scipy.origin).parent / NUMBERS if scipy is not None and scipy.origin else Path(NUMBERS)
    try:
        with np.load(path) as found:
            return found["poly"].astype(np.int64), found["vinit"].astype(np.uint32)
    except (OSError, KeyError, ValueError) as error:
        raise errors.Unsupported(
            f"the installed SciPy has no direction numbers for sobol32 where SciPy 1.17 has them ({error}): install "
            "that, or use philox4_32_10"
        ) from error
