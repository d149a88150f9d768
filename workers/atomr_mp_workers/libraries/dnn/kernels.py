"""CUDA kernels of the requests of neural networks."""

from __future__ import annotations

from typing import Final

import cupy

from atomr_mp_workers.libraries.rng import philox

_WORD: Final = (
    philox.CUDA
    + """
__device__ unsigned int dnn_word(unsigned long long position, unsigned long long seed) {
    unsigned long long block = position >> 2;
    unsigned int c0 = (unsigned int)block, c1 = (unsigned int)(block >> 32), c2 = 0, c3 = 0;
    rng_philox(c0, c1, c2, c3, seed);
    unsigned int lower = position & 1 ? c1 : c0, upper = position & 1 ? c3 : c2;
    return position & 2 ? upper : lower;
}
"""
)

KEPT: Final = cupy.ElementwiseKernel(
    "uint64 seed, uint64 offset, uint64 least",
    "bool kept",
    "kept = dnn_word(offset + (unsigned long long)i, seed) >= least",
    "dnn_kept",
    preamble=_WORD,
)
"""Whether elements are kept by dropout: `rng.philox` has the words in NumPy."""

TOLD: Final = cupy.ElementwiseKernel(
    "bool right, uint64 place",
    "bool told",
    "told = right; *(volatile unsigned long long*)place = right",
    "dnn_told",
)
"""Writes a word at an address, where the host reads it later: nothing is copied to the host, which no graph may do."""

_FUNCTIONS: Final = """
template <typename T> __device__ T dnn_sigmoid(T x) {
    T power = exp(x < T(0) ? x : -x);
    return (x < T(0) ? power : T(1)) / (T(1) + power);
}
template <typename T> __device__ T dnn_normal(T x) { return T(0.5) * erfc(x * T(-0.70710678118654752)); }
template <typename T> __device__ T dnn_bent(T x) {
    return dnn_sigmoid(T(1.5957691216057307) * (x + T(0.044715) * x * x * x));
}
template <typename T> __device__ T dnn_by_gelu_tanh(T x) {
    x = x < T(-100) ? T(-100) : x > T(100) ? T(100) : x;
    T inner = T(1.5957691216057307) * (T(1) + T(0.134145) * x * x);
    return dnn_bent(x) * (T(1) + x * dnn_bent(-x) * inner);
}
template <typename T> __device__ T dnn_by_silu(T x) { return dnn_sigmoid(x) * (T(1) + x * dnn_sigmoid(-x)); }
template <typename T> __device__ T dnn_by_tanh(T x) {
    return T(4) * dnn_sigmoid(T(2) * x) * dnn_sigmoid(T(-2) * x);
}
"""

EXPRESSIONS: Final = {
    "relu": ("x < T(0) ? T(0) : x", "x > T(0) ? T(1) : x != x ? x : T(0)"),
    "sigmoid": ("dnn_sigmoid(x)", "dnn_sigmoid(x) * dnn_sigmoid(-x)"),
    "tanh": ("tanh(x)", "dnn_by_tanh(x)"),
    "gelu": ("x * dnn_normal(x)", "dnn_normal(x) + x * exp(T(-0.5) * x * x) * T(0.39894228040143268)"),
    "gelu_tanh": ("x * dnn_bent(x)", "dnn_by_gelu_tanh(x)"),
    "silu": ("x * dnn_sigmoid(x)", "dnn_by_silu(x)"),
    "elu": ("x > T(0) ? x : expm1(x)", "x > T(0) ? T(1) : exp(x)"),
    "softplus": ("(x > T(0) ? x : T(0)) + log1p(exp(x > T(0) ? -x : x))", "dnn_sigmoid(x)"),
}
"""Activations and their derivatives in CUDA, as `activations` has them in NumPy; a NaN gives a NaN."""

ACTIVATED: Final = {
    kind: cupy.ElementwiseKernel("T x", "T y", f"y = {value}", f"dnn_{kind}", preamble=_FUNCTIONS)
    for kind, (value, _) in EXPRESSIONS.items()
}
"""Activations of float32 and float64."""

DERIVED: Final = {
    kind: cupy.ElementwiseKernel("T x, T dy", "T dx", f"dx = dy * ({slope})", f"dnn_by_{kind}", preamble=_FUNCTIONS)
    for kind, (_, slope) in EXPRESSIONS.items()
}
"""The products of gradients and derivatives."""

MAXIMA: Final = cupy.ElementwiseKernel(
    "raw T x, T least, int64 depth, int64 height, int64 width, int64 places_d, int64 places_h, int64 places_w,"
    "int64 size_d, int64 size_h, int64 size_w, int64 stride_d, int64 stride_h, int64 stride_w,"
    "int64 dilation_d, int64 dilation_h, int64 dilation_w, int64 before_d, int64 before_h, int64 before_w",
    "T y",
    """
    long long rest = i;
    long long begin_w = rest % places_w * stride_w - before_w;
    rest /= places_w;
    long long begin_h = rest % places_h * stride_h - before_h;
    rest /= places_h;
    long long begin_d = rest % places_d * stride_d - before_d;
    rest /= places_d;
    T most = least;
    for (long long d = 0; d < size_d; ++d) {
        long long at_d = begin_d + d * dilation_d;
        if (at_d < 0 || at_d >= depth) continue;
        for (long long h = 0; h < size_h; ++h) {
            long long at_h = begin_h + h * dilation_h;
            if (at_h < 0 || at_h >= height) continue;
            for (long long w = 0; w < size_w; ++w) {
                long long at_w = begin_w + w * dilation_w;
                if (at_w < 0 || at_w >= width) continue;
                T value = x[((rest * depth + at_d) * height + at_h) * width + at_w];
                if (value > most || value != value) most = value;
            }
        }
    }
    y = most;
    """,
    "dnn_maxima",
)
"""The largest elements of windows over images, and NaN where a window has one."""
