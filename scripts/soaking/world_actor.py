"""Actors of overlapping worlds that note each of their executions in a file, for `soaking.worlds`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from atomr_mp import errors
from atomr_mp_workers import Actor, Batch, Context, Live, Steps, method

STEPS: Final = 1000
"""More than a stream has steps: step n of stream m is noted as m * STEPS + n."""

Counted = tuple[int, int, list[float]]
"""Number, count and values of a stream that runs together with others."""


class Noting(Actor):
    """Notes what runs, and then does what the call says."""

    def setup(self, context: Context) -> None:
        """Rehearse, and open this rank's file."""
        assert context.world is not None
        self.world = context.world
        self.world.all_reduce(np.ones(4))
        path = Path(os.environ["WORLD_NOTES"]) / f"{self.world.name}-{self.world.rank}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._places: dict[int, int] = {}

    def _run(self, number: int, way: str, rank: int, values: Any) -> list[float]:
        os.write(self._file, f"{number} {self.world.epoch}\n".encode())
        here = self.world.rank == rank % self.world.size
        if way == "raises" and here:
            raise ValueError("as the call says")
        if way == "kills" and here:
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "poisons" and here:
            raise errors.ContextPoisoned("as the call says")
        if way == "differs" and here and self.world.size > 1:
            self.world.all_reduce(np.ones(3))
        if way == "late" and here:
            time.sleep(0.02)  # the others wait meanwhile
        total = self.world.all_reduce(np.asarray(values, np.float64) * (self.world.rank + 1))
        if way == "raises late" and here:
            raise ValueError("as the call says")
        if way == "twice":
            self.world.barrier()
            total = self.world.all_gather(total)[rank % self.world.size]
        return [float(each) for each in total]

    @method(idempotent=True)
    def again(self, number: int, way: str, rank: int, values: Any) -> list[float]:
        """May run more than once."""
        return self._run(number, way, rank, values)

    @method
    def once(self, number: int, way: str, rank: int, values: Any) -> list[float]:
        """May not."""
        return self._run(number, way, rank, values)

    def _run_all(self, numbers: list[int], ways: list[str], ranks: list[int], values: list[Any]) -> list[Any]:
        """Note a batch as a whole, and do what each of its calls says; one that raises fails alone."""
        os.write(self._file, "".join(f"{number} {self.world.epoch}\n" for number in numbers).encode())
        here = {way for way, rank in zip(ways, ranks, strict=True) if self.world.rank == rank % self.world.size}
        if "kills" in here:
            os.kill(os.getpid(), signal.SIGKILL)
        if "poisons" in here:
            raise errors.ContextPoisoned("as the call says")
        if "late" in here:
            time.sleep(0.02)  # the others wait meanwhile
        own = [np.asarray(each, np.float64) * (self.world.rank + 1) for each in values]
        total = self.world.all_reduce(np.concatenate([np.array([len(own)]), *own]))
        ends = np.cumsum([len(each) for each in own])
        results: list[Any] = [[float(number) for number in each] for each in np.split(total[1:], ends[:-1])]
        for at, (way, rank) in enumerate(zip(ways, ranks, strict=True)):
            if way.startswith("raises") and self.world.rank == rank % self.world.size:
                results[at] = ValueError("as the call says")
        return results

    @method(idempotent=True, batch=Batch(max_items=6, max_wait_s=0.002))
    def batch_again(self, number: list[int], way: list[str], rank: list[int], values: list[Any]) -> list[Any]:
        """May run more than once, with others."""
        return self._run_all(number, way, rank, values)

    @method(batch=Batch(max_items=6, max_wait_s=0, key=lambda number, _way, _rank, _values: number % 2))
    def batch_once(self, number: list[int], way: list[str], rank: list[int], values: list[Any]) -> list[Any]:
        """May not."""
        return self._run_all(number, way, rank, values)

    def _steps(self, number: int, count: int, values: Any, start: int) -> Iterator[float]:
        """Yield sums with their place, and note each step as a call of its own."""
        try:
            for step in range(start, count):
                os.write(self._file, f"{number * STEPS + step} {self.world.epoch}\n".encode())
                total = self.world.all_reduce(np.asarray(values, np.float64) * (self.world.rank + 1))
                yield float(total[0]) + step
        finally:
            self.world.barrier()

    @method(resumable=True)
    def parts(self, number: int, count: int, values: Any, start: int) -> Iterator[float]:
        """Go on in the next epoch."""
        yield from self._steps(number, count, values, start)

    def _step(self, live: Live[Counted, float]) -> None:
        """Do the same for many streams together."""
        for each in live.gone:
            self._places.pop(each.id, None)
        for each in live.new:
            self._places[each.id] = len(each.sent)
        for each in live.ready:
            number, count, values = each.arguments
            step = self._places[each.id]
            if step == count:
                each.end()
                del self._places[each.id]
                continue
            os.write(self._file, f"{number * STEPS + step} {self.world.epoch}\n".encode())
            total = self.world.all_reduce(np.asarray(values, np.float64) * (self.world.rank + 1))
            each.send(float(total[0]) + step)
            self._places[each.id] += 1

    @method(thread=True, batch=Steps(), resumable=True)
    def steps(self, live: Live[Counted, float]) -> None:
        """Go on in the next epoch."""
        self._step(live)

    @method(thread=True, batch=Steps())
    def steps_once(self, live: Live[Counted, float]) -> None:
        """Do not."""
        self._step(live)

    @method
    def parts_once(self, number: int, count: int, values: Any) -> Iterator[float]:
        """Do not."""
        yield from self._steps(number, count, values, 0)


class Other(Noting):
    """The same, in another world."""
