"""Kernels that fail, or never end, on CuPy's current stream; for tests of recovery."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Final

import cupy

KERNELS: Final = {700: "illegal_address", 710: "failed_assertion", 716: "misaligned_address", 719: "trap"}
"""Kernels by the status that they leave the context in."""

SOURCE: Final = r"""
extern "C" __global__ void illegal_address() { *(volatile int*)0x10 = 1; }
extern "C" __global__ void failed_assertion() { assert(threadIdx.x > 1000); }
extern "C" __global__ void misaligned_address(char* memory) { *(volatile int*)(memory + 1) = 1; }
extern "C" __global__ void trap() { asm("trap;"); }

__device__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

extern "C" __global__ void spin(long long for_ns) {
  unsigned long long begun = now_ns();
  while (for_ns < 0 || now_ns() - begun < for_ns);
}
"""


def poison(status: int) -> None:
    """Launch a kernel that destroys the context, and wait until it is lost: the driver may report that late."""
    arguments = (cupy.zeros(16, "uint8"),) if status == 716 else ()
    _module().get_function(KERNELS[status])((1,), (1,), arguments)
    with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
        cupy.cuda.get_current_stream().synchronize()


def spin(seconds: float | None) -> None:
    """Launch a kernel that runs for some seconds, or for ever; return at once."""
    for_ns = -1 if seconds is None else int(seconds * 1e9)
    _module().get_function("spin")((1,), (1,), (cupy.int64(for_ns),))


@functools.cache
def _module() -> Any:
    return cupy.RawModule(code=SOURCE, options=("-UNDEBUG",))
