"""Actors for tests of clusters: they compute, say where, and end their worker at some inputs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, method


class Clustered(Actor):
    """Squares numbers; a worker that sees a negative one ends."""

    @method(idempotent=True)
    def square(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the squares."""
        if (numbers < 0).any():
            os._exit(3)
        return numbers**2

    @method(idempotent=True)
    def twice(self, number: int) -> int:
        """Return twice a number."""
        return 2 * number

    @method(idempotent=True)
    def total(self, numbers: NDArray[np.float64]) -> float:
        """Return the sum."""
        return float(numbers.sum())

    @method(idempotent=True)
    def pid(self) -> int:
        """Return the worker's pid."""
        return os.getpid()

    @method(idempotent=True)
    def slow_pid(self, seconds: float) -> int:
        """Return the worker's pid after a while."""
        time.sleep(seconds)  # the work that a node's death interrupts
        return os.getpid()

    @method()
    def once(self, seconds: float) -> int:
        """Do the same, and not twice."""
        return self.slow_pid(seconds)

    @method()
    def end(self) -> None:
        """End this worker."""
        os.kill(os.getpid(), signal.SIGKILL)

    @method()
    def fail(self) -> None:
        """Raise an error."""
        raise ValueError("as asked")

    @method(thread=True)
    def count(self, upto: int) -> Iterator[int]:
        """Yield numbers."""
        yield from range(upto)
