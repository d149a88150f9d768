"""Laws from words, as CUDA kernels: `laws` has the same in NumPy."""

from __future__ import annotations

from typing import Any, Final

import cupy

from atomr_mp_workers.libraries.rng import philox

_WORDS: Final = """
__device__ float rng_unit(unsigned int w) {
    return (float)w * 2.3283064365386963e-10f + 1.1641532182693481e-10f;
}
__device__ double rng_unit(unsigned long long w) {
    return ((double)(w >> 11) + 1.0) * 1.1102230246251565e-16;
}
__device__ float rng_normal(unsigned int w) {
    bool upper = w >> 31;
    float z = normcdfinvf(((float)(upper ? ~w : w) + 0.5f) * 2.3283064365386963e-10f);
    return upper ? -z : z;
}
__device__ double rng_normal(unsigned long long w) {
    bool upper = w >> 63;
    double z = normcdfinv(((double)((upper ? ~w : w) >> 10) + 0.5) * 5.5511151231257827e-17);
    return upper ? -z : z;
}
"""

_REJECTION: Final = (
    _WORDS
    + philox.CUDA
    + """
__device__ void rng_pair(unsigned long long position, unsigned long long seed, unsigned int attempt, unsigned int mark,
                         unsigned long long* first, unsigned long long* second) {
    unsigned int c0 = (unsigned int)position, c1 = (unsigned int)(position >> 32), c2 = attempt, c3 = mark;
    rng_philox(c0, c1, c2, c3, seed);
    *first = c0 | (unsigned long long)c1 << 32;
    *second = c2 | (unsigned long long)c3 << 32;
}
__device__ double rng_log_gamma(double shape, unsigned long long position, unsigned long long seed, unsigned int mark) {
    double d = (shape >= 1 ? shape : shape + 1) - 1.0 / 3, c = 1 / sqrt(9 * d), found;
    unsigned long long first, second;
    for (unsigned int attempt = 1;; ++attempt) {
        rng_pair(position, seed, attempt, mark, &first, &second);
        double x = rng_normal(first), v = 1 + c * x;
        v = v * v * v;
        if (v > 0 && log(rng_unit(second)) < 0.5 * x * x + d * (1 - v + log(v))) {
            found = log(d * v);
            break;
        }
    }
    if (shape < 1) {
        rng_pair(position, seed, 0, mark, &first, &second);
        found += log(rng_unit(first)) / shape;
    }
    return found;
}
"""
)


def _law(name: str, expression: str) -> Any:
    """Return a kernel that makes numbers of a law from words; it may do so in place."""
    return cupy.ElementwiseKernel("W w, T a, T b", "T out", f"out = {expression}", f"rng_{name}", preamble=_WORDS)


UNIFORM: Final = _law("uniform", "a + b * rng_unit(w)")
NORMAL: Final = _law("normal_law", "a + b * rng_normal(w)")
LOGNORMAL: Final = _law("lognormal", "exp(a + b * rng_normal(w))")
EXPONENTIAL: Final = _law("exponential", "a - b * log(rng_unit(w))")
CAUCHY: Final = _law("cauchy", "a + b * tan((T)3.14159265358979323846 * (rng_unit(w) - (T)0.5))")

_POSITIONS: Final = "float64 a, float64 b, uint64 seed, uint64 offset"

GAMMA: Final = cupy.ElementwiseKernel(
    _POSITIONS, "T out", "out = (T)(b * exp(rng_log_gamma(a, offset + i, seed, 1)))", "rng_gamma", preamble=_REJECTION
)
BETA: Final = cupy.ElementwiseKernel(
    _POSITIONS,
    "T out",
    "out = (T)(1 / (1 + exp(rng_log_gamma(b, offset + i, seed, 3) - rng_log_gamma(a, offset + i, seed, 2))))",
    "rng_beta",
    preamble=_REJECTION,
)
