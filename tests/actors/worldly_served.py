"""An actor of a world for tests of HTTP: plain calls, OpenAI's forms, waits and ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Context, method


class WorldlyServed(Actor):
    """Answers together with its peers."""

    def setup(self, context: Context) -> None:
        """Take the world."""
        assert context.world is not None
        self.world = context.world

    def _sum(self, value: float) -> float:
        return float(self.world.all_reduce(np.asarray([value]))[0])

    @method(idempotent=True)
    def scaled(self, array: NDArray[np.float64], factor: float = 1.0) -> NDArray[np.float64]:
        """Return the array, summed over the ranks."""
        return np.asarray(self.world.all_reduce(array)) * factor

    @method(idempotent=True)
    def rank(self) -> int:
        """Return this rank."""
        self.world.barrier()
        return int(self.world.rank)

    @method
    def sums(self, upto: int, fails: int) -> Generator[float, None, int]:
        """Yield sums over the ranks; one rank may fail at the third. Return the rank."""
        for number in range(upto):
            if number == 2 and self.world.rank == fails:
                raise ValueError("on purpose")
            yield self._sum(number)
        return int(self.world.rank)

    @method
    def fail(self, rank: int) -> None:
        """Raise on one rank."""
        if self.world.rank == rank:
            raise ValueError("on purpose")
        self.world.barrier()

    @method
    def end_once(self, rank: int) -> None:
        """End the process of a rank."""
        if self.world.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        self.world.barrier()

    @method(idempotent=True)
    def end_first(self, rank: int, times: str) -> float:
        """End the process of a rank once; `times` is a file that tells that it has."""
        if self.world.rank == rank and not os.path.exists(times):  # noqa: PTH110 - the shortest
            with open(times, "x"):  # noqa: PTH123
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return self._sum(1.0)

    @method(idempotent=True)
    def wait(self, seconds: float) -> float:
        """Take some time on all ranks."""
        time.sleep(seconds)  # the duration is what is tested: longer than a deadline
        return self._sum(1.0)

    @method(idempotent=True, openai="chat")
    def chat(self, messages: list[dict[str, Any]], temperature: float = 1.0) -> str:
        """Return how many ranks have read the last message."""
        return f"{self._sum(1.0):g} have read {messages[-1]['content']!r} at {temperature:g}"

    @method(idempotent=True, openai="completions")
    def complete(self, prompt: str) -> str:
        """Return the prompt with the number of ranks."""
        return f"{prompt}: {self._sum(1.0):g}"

    @method(idempotent=True, openai="embeddings")
    def embed(self, text: str) -> NDArray[np.float32]:
        """Return a vector, summed over the ranks."""
        return np.asarray(self.world.all_reduce(np.full(3, len(text), np.float32)))
