"""An actor whose methods write arrays, and fail on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Batch, method


class Undoing(Actor):
    """Writes."""

    @method(writes=["target"])
    def fill(self, target: NDArray[np.generic], number: float) -> None:
        """Write a number into every element."""
        target[...] = number

    @method(writes=["target"])
    def fail(self, target: NDArray[np.generic]) -> None:
        """Write one element, then raise."""
        target.reshape(-1)[:1] = -1.0
        raise ArithmeticError("half done")

    @method(writes=["target"], thread=True)
    def fail_slowly(self, gate: str, target: NDArray[np.generic]) -> None:
        """Do the same on the actor's thread, after a wait at a gate."""
        arrive(gate)
        self.fail(target)

    @method(batch=Batch(max_wait_s=0), writes=["targets"])
    def fill_in_batch(self, targets: list[Any], numbers: list[float]) -> list[None]:
        """Write a number into every element of each."""
        for target, number in zip(targets, numbers, strict=True):
            target[...] = number
        return [None] * len(targets)

    @method(batch=Batch(max_wait_s=0), writes=["targets"])
    def fail_in_batch(self, targets: list[Any]) -> list[None]:
        """Do the same for a batch."""
        self.fail(targets[0])
        return [None]

    @method
    def total(self, array: NDArray[np.generic]) -> float:
        """Return the sum of all elements."""
        return float(np.sum(array))

    @method(thread=True)
    def total_on_thread(self, array: NDArray[np.generic]) -> float:
        """Do the same on the actor's thread."""
        return self.total(array)

    @method(thread=True)
    def hold_on_thread(self, gate: str) -> None:
        """Occupy the actor's thread until a gate opens."""
        arrive(gate)

    @method
    def hold(self, gate: str) -> None:
        """Wait at a gate, on the loop."""
        arrive(gate)


def arrive(gate: str) -> None:
    """Say that we are at a gate, and wait until it opens."""
    with Path(f"{gate}.here").open("ab", buffering=0) as here:
        here.write(b"1\n")
    with Path(f"{gate}.go").open("rb", buffering=0) as go:
        go.read(1)
