"""Actors for tests of clusters: they compute, say where, and end their worker at some inputs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, method


class Clustered(Actor):
    """Squares numbers; a worker that sees a negative one ends."""

    threads = 2

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

    @method(idempotent=True, thread=True)
    def meet(self, numbers: NDArray[np.int64], directories: list[str]) -> NDArray[np.bool_]:
        """Return whether another batch has come before this one was given up."""
        marks = Path(directories[0])
        (marks / str(numbers[0])).touch()
        until = time.monotonic() + 10.0
        while not (met := len(list(marks.iterdir())) > 1) and time.monotonic() < until:
            time.sleep(0.01)  # no event tells of another process's file
        return np.full(len(numbers), met)

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
    def noted(self, directory: str, key: str, seconds: float) -> str:
        """Note a run, and take a while."""
        note(directory, key)
        time.sleep(seconds)  # others wait meanwhile
        return key

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

    @method(thread=True)
    def each(self, numbers: NDArray[np.float64]) -> Iterator[float]:
        """Yield an array's numbers."""
        yield from numbers.tolist()


class Noted(Actor):
    """Notes each run of a call, so that a test can count them."""

    @method(idempotent=True)
    def again(self, directory: str, key: str) -> str:
        """Note a run of a call that may run twice."""
        note(directory, key)
        return key

    @method()
    def once(self, directory: str, key: str) -> str:
        """Note a run of a call that may not."""
        note(directory, key)
        return key


def note(directory: str, key: str) -> None:
    """Append a line to this process's file."""
    with (Path(directory) / str(os.getpid())).open("a", encoding="utf-8") as file:
        file.write(f"{key}\n")
