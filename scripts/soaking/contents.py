"""The callers' arguments: arrays of whole numbers, so that every result is exact. Pure, except for randomness."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

Array = np.ndarray[Any, Any]

DTYPES: Final = ("uint8", "int32", "int64", "float32", "float64")

OWN_SLAB_BYTES: Final = 40 * 2**20
"""About the size of large arrays: more than half of a usual slab."""


class Pattern(msgspec.Struct, frozen=True):
    """An array that can be made again wherever it has to be compared."""

    seed: int
    dtype: str
    shape: list[int]

    @property
    def array(self) -> Array:
        """The array."""
        numbers = np.arange(self.seed, self.seed + math.prod(self.shape), dtype=np.int64)
        return (numbers * 7 % 251).astype(self.dtype).reshape(self.shape)


def pattern(chance: random.Random) -> Pattern:
    """Return one of a random shape: small as a rule, sometimes so large that it has a slab of its own."""
    dtype = chance.choice(DTYPES)
    count = size(chance) // np.dtype(dtype).itemsize
    return Pattern(chance.randrange(10**6), dtype, shape(chance, count))


def size(chance: random.Random) -> int:
    """Return a number of bytes."""
    roll = chance.random()
    if roll < 0.80:
        return chance.randrange(16_000)
    if roll < 0.99:
        return int(2 ** chance.uniform(14, 22))
    return int(OWN_SLAB_BYTES * chance.uniform(0.8, 1.2))


def shape(chance: random.Random, count: int) -> list[int]:
    """Return lengths of up to three dimensions with about so many elements."""
    if chance.random() < 0.4:
        return [count]
    rows = max(1, min(count, chance.randint(1, 60)))
    if chance.random() < 0.5:
        return [rows, count // rows]
    return [chance.randint(1, 3), rows, count // rows // 3]


def index(chance: random.Random, of: Sequence[int]) -> tuple[Any, ...]:
    """Return a random index into an array of this shape that leaves something."""
    found: list[Any] = []
    for length in of:
        if chance.random() < 0.2:
            found.append(chance.randrange(length))
        else:
            start = chance.randrange(length)
            found.append(slice(start, chance.randint(start + 1, length), chance.choice([1, 1, 1, 2, 3])))
            if chance.random() < 0.2:
                found[-1] = slice(None, None, -1)
    return tuple(found)


def value(chance: random.Random) -> Any:
    """Return a random value that crosses the wire and is not a ref."""
    match chance.randrange(5):
        case 0 | 1:
            return chance.randrange(10**9)
        case 2:
            return chance.randbytes(chance.randrange(200))
        case 3:
            return np.frombuffer(chance.randbytes(8 * chance.randint(1, 200)), np.int64)
        case _:
            return np.frombuffer(chance.randbytes(8 * chance.randint(2000, 20000)), np.int64)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)
