"""A model as the failover is measured with: large weights, kernels that have run once, and a way to go wrong."""

from __future__ import annotations

from typing import Any

from atomr_mp_workers import Actor, Context, method

ROWS = 4096
POISON = r"""
extern "C" __global__ void illegal() { *(volatile int*)0x10 = 1; }
extern "C" __global__ void spin(long long cycles) { long long until = clock64() + cycles; while (clock64() < until); }
"""


class Model(Actor):
    """A layer whose output is known: each weight is one."""

    def setup(self, _context: Context) -> None:
        """Fill the weights, and run everything once, so that an answer needs nothing that is not loaded."""
        import cupy

        self._cupy: Any = cupy
        self._weights = cupy.ones((ROWS, ROWS), cupy.float32)
        kernels = cupy.RawModule(code=POISON)
        self._kernels = {name: kernels.get_function(name) for name in ("illegal", "spin")}
        self._x = cupy.zeros(ROWS, cupy.float32)
        self._y = cupy.zeros(ROWS, cupy.float32)
        self._kernels["spin"]((1,), (1,), (1,))
        self.answer(1.0)
        self._graph = self._captured()
        self.replay(1.0)

    def _captured(self) -> Any:
        stream = self._cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            self._cupy.multiply(self._x, 2, out=self._y)
            return stream.end_capture()

    @method(idempotent=True)
    def answer(self, value: float) -> float:
        """Return ROWS times the value, by way of the weights."""
        self._x.fill(value)
        return float((self._weights @ self._x)[0])

    @method(idempotent=True)
    def replay(self, value: float) -> float:
        """Return twice the value, by the graph."""
        self._x.fill(value)
        self._graph.launch()
        return float(self._y[0])

    @method
    def poison(self) -> None:
        """Poison the context."""
        self._kernels["illegal"]((1,), (1,), ())

    @method
    def spin(self, cycles: int) -> Any:
        """Keep the device busy."""
        self._kernels["spin"]((1,), (1,), (cycles,))
        return self._x * 2
