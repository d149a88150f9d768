"""Philox 4x32-10, in NumPy and in CUDA: a generator whose words are a function of their position.

Source: Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ROUNDS: Final = 10
WORDS: Final = 4
"""Words of 32 bits in a block."""
_FACTORS: Final = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS: Final = 0x9E3779B9, 0xBB67AE85
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)

CUDA: Final = """
__device__ void rng_philox(unsigned int& c0, unsigned int& c1, unsigned int& c2, unsigned int& c3,
                           unsigned long long seed) {
    unsigned int k0 = (unsigned int)seed, k1 = (unsigned int)(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        unsigned int high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        unsigned int high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}
"""
"""A function for kernels that turns the counters of a block into its words."""

CHUNK_BLOCKS: Final = 2**16
"""Blocks made at a time, so that intermediate arrays stay in the cache."""


def blocks(counters: tuple[Array, Array, Array, Array], seed: int) -> tuple[Array, Array, Array, Array]:
    """Return the four words of each block, each in 64 bits.

    Args:
        counters: The four words of the counters, each in 64 bits.
        seed: The key.
    """
    first, second, third, fourth = counters
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(ROUNDS):
        one, two = _FACTORS[0] * first, _FACTORS[1] * third
        first, second, third, fourth = (
            (two >> _HALF) ^ second ^ np.uint64(keys[0]),
            two & _LOW,
            (one >> _HALF) ^ fourth ^ np.uint64(keys[1]),
            one & _LOW,
        )
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, _STEPS, strict=True)]
    return first, second, third, fourth


def split(numbers: Array) -> tuple[Array, Array]:
    """Return the lower and the upper half of 64-bit numbers, in the form of counters."""
    return numbers & _LOW, numbers >> _HALF


def words(seed: int, offset: int, count: int) -> Array:
    """Return the words of 32 bits from an offset on."""
    found = np.empty(count, np.uint32)
    done = 0
    while done < count:
        block, skipped = divmod(offset + done, WORDS)
        taken = min(count - done, CHUNK_BLOCKS * WORDS - skipped)
        low, high = split(np.uint64(block) + np.arange(-(-(skipped + taken) // WORDS), dtype=np.uint64))
        nothing = np.zeros_like(low)
        made = np.stack(blocks((low, high, nothing, nothing), seed), axis=-1).reshape(-1)
        found[done : done + taken] = made[skipped : skipped + taken]
        done += taken
    return found
