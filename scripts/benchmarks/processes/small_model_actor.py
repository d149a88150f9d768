"""A small model of 24 layers: on a GPU its host takes longer to launch the kernels than they run."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_mp_workers import Actor, Context, method

LAYERS: Final = 24
BATCH: Final = 8
WIDTH: Final = {"host": 128, "cuda": 1024}
"""So that a call takes about half a millisecond on either."""


class SmallModel(Actor):
    """Random weights, which every device has for itself."""

    def setup(self, context: Context) -> None:
        """Make the weights and the input, and run once."""
        module: Any = np
        if context.backend == "cuda":
            import cupy

            module = cupy
        width, rng = WIDTH[context.backend], np.random.default_rng(1)
        dtype = "float16" if context.backend == "cuda" else "float32"
        scale = (2 / width) ** 0.5
        self._module = module
        self._layers = [
            module.asarray((rng.standard_normal((width, width)) * scale).astype(dtype)) for _ in range(LAYERS)
        ]
        self._input = module.ones((BATCH, width), dtype)
        self.run()

    @method(idempotent=True)
    def run(self) -> Any:
        """Return the first numbers of the last layer."""
        x = self._input
        for layer in self._layers:
            x = self._module.maximum(x @ layer, 0)
        return x[0, :4].copy()
