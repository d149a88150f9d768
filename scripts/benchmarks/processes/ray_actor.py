"""The actor of the measurements of clusters on Ray: it doubles numbers, and crashes at some batches."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Context, method

CRASH_EVERY = 20
WORK_S = 0.1
"""What a batch takes."""


class Measured(Actor):
    """Doubles numbers."""

    def setup(self, _context: Context) -> None:
        """Take as long as a small model."""
        if "BENCH_RAY_SETUP_S" in os.environ:
            time.sleep(float(os.environ["BENCH_RAY_SETUP_S"]))  # the set-up that a crash costs

    @method(idempotent=True)
    def twice(self, number: int) -> int:
        """Return twice a number."""
        return 2 * number

    @method(idempotent=True)
    def batch(self, numbers: NDArray[np.int64], marks: list[str]) -> NDArray[np.int64]:
        """Return twice the numbers; crash at every twentieth, the first time."""
        number, mark = int(numbers[0]), Path(marks[0]) / str(int(numbers[0]))
        if number % CRASH_EVERY == CRASH_EVERY - 1 and not mark.exists():
            mark.touch()
            os._exit(1)
        time.sleep(WORK_S)  # its work
        return numbers * 2
