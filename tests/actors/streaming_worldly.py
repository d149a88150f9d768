"""An actor of a world whose methods stream, for tests: it meets its peers in its steps, fails, leaves them and ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from typing import Any

import numpy as np

from atomr_mp_workers import Actor, Context, method


class Streaming(Actor):
    """What a test asks of a rank; the same stream reaches all of them."""

    def setup(self, context: Context) -> None:
        """Begin with an empty log."""
        assert context.world is not None
        self.world = context.world
        self.log: list[Any] = []

    @method
    def count(self, name: str, upto: int, meets: bool = True) -> Generator[Any, None, Any]:  # noqa: FBT001, FBT002 - as sent
        """Yield numbers, with a sum over ranks in each step and one in the end; note all steps."""
        try:
            for number in range(upto):
                self.log.append([name, number])
                yield self._sum(number) if meets else number
        finally:
            self.log.append([name, "closed"])
            if meets:
                self.log.append([name, self._sum(1)])
        return f"{name} of rank {self.world.rank}"

    @method(resumable=True)
    def numbers(self, upto: int, start: int) -> Generator[float, None, Any]:
        """Yield sums over ranks, from the first that was not yielded."""
        for number in range(start, upto):
            yield self._sum(number)
        return "all"

    @method(resumable=True)
    def running(self, numbers: list[int], sent: list[int]) -> Generator[int, None, Any]:
        """Yield running totals, behind the last one that was yielded."""
        total = sent[-1] if sent else 0
        for number in numbers[len(sent) :]:
            total += int(self._sum(number)) // sum(range(1, self.world.size + 1))
            yield total

    @method(resumable=True, hang_timeout_s=1.0)
    def dying(self, upto: int, rank: int, at: int, times: str, how: str, start: int) -> Generator[float, None, Any]:
        """Yield sums, and end a rank's process once at a step; `times` is a file that tells that it has ended."""
        for number in range(start, upto):
            if self.world.rank == rank and number == at and not os.path.exists(times):  # noqa: PTH110 - the shortest
                with open(times, "x"):  # noqa: PTH123
                    pass
                if how == "hangs":
                    while True:
                        pass
                os.kill(os.getpid(), signal.SIGKILL)
            yield self._sum(number)

    @method
    def fails(self, upto: int, rank: int, at: int, meets: bool) -> Generator[float, None, Any]:  # noqa: FBT001 - as sent
        """Raise on a rank at a step."""
        for number in range(upto):
            if self.world.rank == rank and number == at:
                raise ValueError(f"rank {rank} fails at {number}")
            yield self._sum(number) if meets else float(number)

    @method
    def lengths(self, lengths: list[int]) -> Generator[int, None, Any]:
        """Yield as many numbers as are named for this rank."""
        yield from range(lengths[self.world.rank])
        return "the end"

    @method
    def slow(self, name: str, seconds: float) -> Generator[int, None, Any]:
        """Yield numbers, slowly, for ever."""
        number = 0
        try:
            while True:
                time.sleep(seconds)  # the duration of a step is what is tested
                yield number
                number += 1
        finally:
            self.log.append([name, "closed"])

    @method
    def silent(self, seconds: float) -> Generator[int, None, Any]:
        """Take a long time for the second part."""
        yield 0
        time.sleep(seconds)  # longer than the reader waits
        yield 1

    @method
    def arrays(self, count: int, size: int) -> Generator[Any, None, Any]:
        """Yield arrays; ranks other than 0 yield what cannot be sent."""
        for number in range(count):
            yield np.full(size, number) if self.world.rank == 0 else object()
        return None if self.world.rank == 0 else object()

    @method
    def note(self, item: Any) -> Any:
        """Note an item in the order of calls, after a sum over ranks."""
        self.log.append(item)
        return self._sum(1)

    @method(idempotent=True)
    def noted(self) -> list[Any]:
        """Return what was noted."""
        return self.log

    @method(idempotent=True)
    def where(self) -> list[int]:
        """Return rank, epoch and process."""
        return [self.world.rank, self.world.epoch, os.getpid()]

    def _sum(self, number: float) -> float:
        return float(self.world.all_reduce(np.asarray(float(number) * (self.world.rank + 1))))
