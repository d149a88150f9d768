"""An actor that launches a kernel by itself as often as a program does, and a stand-in for the kernel without a GPU."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_mp_workers import Actor, Context, host_kernel, method

SOURCE: Final = """
extern "C" __global__ void next(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1;
}
"""
N: Final = 1024
LAUNCHES: Final = 50


@host_kernel("next")
def next_(x: Any, n: Any, *, grid: Any, block: Any) -> None:
    """Add 1 to the first n elements."""
    del grid, block
    x[:n] += 1


class Bare(Actor):
    """Launches without a runtime in between: on a GPU it replays a graph, and waits for it."""

    def setup(self, context: Context) -> None:
        """Capture the graph."""
        self._graph: Any = None
        if context.backend == "host":
            self._x: Any = np.zeros(N, np.float32)
            return
        import cupy

        self._x = cupy.zeros(N, cupy.float32)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        kernel = cupy.RawKernel(SOURCE, "next")
        with self._stream:
            kernel((N // 256,), (256,), (self._x, np.int32(N)))
            self._stream.synchronize()
            self._stream.begin_capture()
            for _ in range(LAUNCHES):
                kernel((N // 256,), (256,), (self._x, np.int32(N)))
            self._graph = self._stream.end_capture()

    @method
    def nothing(self) -> None:
        """Return."""

    @method
    def replay(self) -> None:
        """Do all launches, and wait for them."""
        if self._graph is None:
            for _ in range(LAUNCHES):
                self._x += 1
            return
        self._graph.launch(self._stream)
        self._stream.synchronize()
