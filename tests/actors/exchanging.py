"""An actor whose methods write and read refs, beside collectives on these; each on the loop or on a thread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, method
from tests.actors.probe import arrive


class Exchanging(Actor):
    """Writes to refs."""

    @method(writes=["x"])
    def add(self, x: NDArray[np.float64], number: float) -> None:
        """Add a number to all elements, on the loop."""
        x += number

    @method(writes=["x"], thread=True)
    def multiply(self, x: NDArray[np.float64], number: float) -> None:
        """Multiply all elements, on a thread."""
        x *= number

    @method(thread=True)
    def first(self, x: NDArray[np.float64]) -> float:
        """Return the first element, from a thread."""
        return float(x[0])

    @method
    def read(self, x: NDArray[np.float64]) -> float:
        """Return the first element, from the loop."""
        return float(x[0])

    @method(writes=["x"], thread=True)
    def hold(self, x: NDArray[np.float64], gate: str, number: float) -> None:
        """Wait at the gate, and add a number then."""
        arrive(gate)
        x += number

    @method
    def stand(self, gate: str) -> None:
        """Hold the loop until the gate opens."""
        arrive(gate)

    @method(writes=["x"])
    def fail(self, x: NDArray[np.float64]) -> None:
        """Fail amid a write."""
        x[0] = -1.0
        raise ValueError("it fails")
