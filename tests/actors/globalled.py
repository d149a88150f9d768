"""An actor whose module has NumPy arrays in place of globals, and functions for the kernels that use them."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from atomr_mp_workers import Actor, Context, host_kernel, method

SOURCE: Final = """
__device__ float table[6] = {1, 2, 3, 4, 5, 6};
__constant__ double factor;
namespace n { __device__ int unlike; }
__device__ int nobody_s;
extern "C" __global__ void add_table(float* x, int ms) {
    x[threadIdx.x] += table[threadIdx.x] * factor + n::unlike;
    if (ms < 0) nobody_s = 1;
}
extern "C" __global__ void count(float* x, int ms) {
    long long until = clock64() + ms * 1000000ll;
    while (clock64() < until) {}
    if (threadIdx.x == 0) table[0] += x[0];
}
"""
"""Kernels, for the functions below and for a GPU."""

NAMES: Final = ("&n::unlike",)

table = np.arange(1, 7, dtype=np.float32)
factor = np.zeros((), np.float64)
globals()["n::unlike"] = np.zeros((), np.int32)


@host_kernel("add_table")
def add_table(x: Any, ms: Any, *, grid: Any, block: Any) -> None:
    """Add what the globals say."""
    del grid, ms
    x[: block[0]] += table[: block[0]] * factor + globals()["n::unlike"]


@host_kernel("count")
def count(x: Any, ms: Any, *, grid: Any, block: Any) -> None:
    """Add to a global, after a while."""
    del grid, block
    time.sleep(ms / 1000)  # as long as the kernel is to take
    table[0] += x[0]


class Globalled(Actor):
    """Has the functions, and reads a global itself."""

    def setup(self, context: Context) -> None:
        """Keep what the method needs."""
        self._libraries, self._backend = context.libraries, context.backend

    @method
    def own(self, source: str) -> list[float]:
        """Write a global of a module of its own, and read it."""
        module = self._libraries.kernels.compile(source, names=NAMES)
        xp = np if self._backend == "host" else __import__("cupy")
        module.write("table", xp.full(6, 7, "float32"))
        return [float(each) for each in module.read("table", "float32", (2, 3)).array.ravel()]
