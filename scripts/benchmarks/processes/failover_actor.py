"""Models for measuring failovers: weights that outlive the process, and an actor that poisons the context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from atomr_mp_workers import Actor, Context, method

ROWS: Final = 4096
LAYERS: Final = 128
"""Layers of 64 MiB each."""

FAULTY: Final = r"""
extern "C" __global__ void illegal() { *(volatile int*)0x10 = 1; }
"""


class Faulty(Actor):
    """Can be made to poison its context."""

    def setup(self, _context: Context) -> None:
        """Load the kernel."""
        import cupy

        self._cupy: Any = cupy
        self._illegal = cupy.RawModule(code=FAULTY).get_function("illegal")

    @method
    def poison(self, number: int) -> None:  # noqa: ARG002 - tells one request from another
        """Poison the context."""
        self._illegal((1,), (1,), ())


class Model(Faulty):
    """A layer whose output is known: each weight is one."""

    def setup(self, context: Context) -> None:
        """Find or fill the weights, and run everything once, so that an answer needs nothing that is not loaded."""
        super().setup(context)
        layout = {"layers": ((LAYERS, ROWS, ROWS), "float32")}
        self._weights = context.resident("weights", layout, version="1", fill=self._fill)["layers"][-1]
        self._x = self._cupy.zeros(ROWS, self._cupy.float32)
        self._y = self._cupy.zeros(ROWS, self._cupy.float32)
        self.answer(1.0)
        self._graph = self._captured()
        self.replay(1.0)

    def _fill(self, arrays: Mapping[str, Any]) -> None:
        arrays["layers"][...] = 1

    def _captured(self) -> Any:
        """Return a graph over the weights."""
        stream = self._cupy.cuda.Stream(non_blocking=True)
        with stream:
            self._cupy.multiply(self._weights[0], self._x, out=self._y)  # loads the kernel
            stream.synchronize()
            stream.begin_capture()
            self._cupy.multiply(self._weights[0], self._x, out=self._y)
            return stream.end_capture()

    @method(idempotent=True)
    def answer(self, value: float) -> float:
        """Return `ROWS` times the value, by way of the weights."""
        self._x.fill(value)
        return float((self._weights @ self._x)[0])

    @method(idempotent=True)
    def replay(self, value: float) -> float:
        """Return the value, by the graph."""
        self._x.fill(value)
        self._graph.launch()
        return float(self._y[0])


class Network(Faulty):
    """A convolutional network of torch's, with random weights, the same in each process."""

    def setup(self, context: Context) -> None:
        """Find or fill the parameters, and run it once."""
        import torch

        super().setup(context)
        torch.manual_seed(7)
        layers: list[Any] = []
        for wide in range(6):
            layers += [torch.nn.Conv2d(3 if wide == 0 else 256, 256, 3, padding=1), torch.nn.ReLU()]
        self._network: Any = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
        context.resident_module(self._network, "network", version="1")
        self._torch: Any = torch
        self.answer(1.0)

    @method(idempotent=True)
    def answer(self, value: float) -> float:
        """Return the sum of what it makes of an image of one colour."""
        with self._torch.inference_mode():
            image = self._torch.full((1, 3, 64, 64), value, device="cuda")
            return float(self._network(image).double().sum())
