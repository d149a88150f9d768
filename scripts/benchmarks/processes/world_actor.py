"""Actors of a world, and one beside it, for measurements."""

from __future__ import annotations

import time

import numpy as np

from atomr_mp_workers import Actor, Context, method


class Gang(Actor):
    """Runs in a world."""

    def setup(self, context: Context) -> None:
        """Keep the world."""
        assert context.world is not None
        self._world = context.world

    @method(idempotent=True)
    def empty(self) -> None:
        """Do nothing."""

    @method(idempotent=True, example=tuple)
    def meet(self) -> None:
        """Meet the other ranks once."""
        self._world.barrier()

    @method
    def late(self, seconds: float) -> None:
        """Have the last rank come late."""
        if self._world.rank == self._world.size - 1:
            time.sleep(seconds)
        self._world.barrier()

    @method
    def fail(self) -> None:
        """Raise on the last rank, for which the others wait."""
        if self._world.rank == self._world.size - 1:
            raise ValueError("as the measurement wants it")
        self._world.barrier()

    @method(idempotent=True)
    def reduced(self, elements: int, times: int) -> list[float]:
        """Return how long each of so many sums over ranks takes, in seconds."""
        x, out, took = np.ones(elements, np.float32), np.empty(elements, np.float32), []
        for _ in range(times):
            began = time.perf_counter()
            self._world.all_reduce(x, out=out)
            took.append(time.perf_counter() - began)
        if out[0] != self._world.size:
            raise AssertionError("a wrong sum")
        return took


class Beside(Actor):
    """Runs beside it on the same devices."""

    @method(idempotent=True)
    def empty(self) -> None:
        """Do nothing, on the loop."""

    @method(idempotent=True, thread=True)
    def threaded(self) -> None:
        """Do nothing, on a thread."""

    @method
    def poison(self) -> None:
        """Have the context of this process's GPU be lost."""
        import cupy

        bad = cupy.RawKernel('extern "C" __global__ void bad(int* p) { *(volatile int*)p = 1; }', "bad")
        bad((1,), (1,), (cupy.uint64(16),))
        cupy.cuda.runtime.deviceSynchronize()
