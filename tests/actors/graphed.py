"""An actor that computes with resident weights by a CUDA graph, which it captures in `setup`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from atomr_mp_workers import Actor, Context, method
from tests.actors.probe import note

ELEMENTS: Final = 2**20
KERNEL: Final = 'extern "C" __global__ void write(float* to) { to[threadIdx.x] = -1.0f; }'


class Graphed(Actor):
    """Runs on its own CUDA stream."""

    def setup(self, context: Context) -> None:
        """Fill the weights, or find them, and capture."""
        import cupy

        self._cupy: Any = cupy

        def fill(arrays: Mapping[str, Any]) -> None:
            note(f"{context.generation}", "fills")
            arrays["weights"][...] = cupy.arange(ELEMENTS, dtype="float32") % 7
            arrays["bias"][...] = 3

        model = context.resident(
            "model", {"weights": ((ELEMENTS,), "float32"), "bias": ((1,), "float32")}, version="1", fill=fill
        )
        self._weights, self._bias = model["weights"], model["bias"]
        self._kernel = cupy.RawKernel(KERNEL, "write")
        self._x, self._y = (cupy.zeros(ELEMENTS, "float32") for _ in range(2))
        self._compute()  # loads the kernels
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            self._compute()
            self._graph = stream.end_capture()

    def _compute(self) -> None:
        self._cupy.multiply(self._x, self._weights, out=self._y)
        self._cupy.add(self._y, self._bias, out=self._y)

    @method
    def replay(self, x: float) -> list[float]:
        """Return pid, and the sum of the graph's result for a number."""
        self._x[...] = x
        self._graph.launch(self._cupy.cuda.get_current_stream())
        return [os.getpid(), float(self._y.sum(dtype="float64"))]

    @method
    def write(self) -> None:
        """Write the weights by a kernel; return at once, although that is forbidden."""
        self._kernel((1,), (1,), (self._weights,))

    @method
    def as_tensor(self) -> list[Any]:
        """Return torch's view of the weights: whether at the same address, and their sum."""
        import torch

        tensor = torch.from_dlpack(self._weights)
        return [tensor.data_ptr() == self._weights.data.ptr, float(tensor.double().sum())]

    @method
    def result(self) -> Any:
        """Return a part of the weights itself."""
        return self._weights[:10]
