"""CUDA kernels of the requests of neural networks."""

from __future__ import annotations

from typing import Final

import cupy

_PHILOX: Final = """
__device__ unsigned int dnn_word(unsigned long long position, unsigned long long seed) {
    unsigned long long block = position >> 2;
    unsigned int c0 = (unsigned int)block, c1 = (unsigned int)(block >> 32), c2 = 0, c3 = 0;
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
    unsigned int lower = position & 1 ? c1 : c0, upper = position & 1 ? c3 : c2;
    return position & 2 ? upper : lower;
}
"""

KEPT: Final = cupy.ElementwiseKernel(
    "uint64 seed, uint64 offset, uint64 least",
    "bool kept",
    "kept = dnn_word(offset + (unsigned long long)i, seed) >= least",
    "dnn_kept",
    preamble=_PHILOX,
)
"""Whether elements are kept by dropout: `rng.philox` has the words in NumPy."""

TOLD: Final = cupy.ElementwiseKernel(
    "bool right, uint64 place",
    "bool told",
    "told = right; *(volatile unsigned long long*)place = right",
    "dnn_told",
)
"""Writes a word at an address, where the host reads it later: nothing is copied to the host, which no graph may do."""
