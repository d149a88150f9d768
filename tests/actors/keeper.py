"""An actor that makes, keeps and writes arrays in its device's memory."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp.errors import InvalidRequest
from atomr_mp_workers import Actor, Batch, Context, method


class Keeper(Actor):
    """Runs on the loop."""

    _context: Context

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._context = context
        self._kept: list[Any] = []

    @method
    def make(self, array: NDArray[np.generic]) -> Any:
        """Return a ref to a copy."""
        return self._context.keep(array)

    @method
    def make_two(self, array: NDArray[np.generic]) -> Any:
        """Return two refs and an array."""
        return [self._context.keep(array), self._context.keep(array * 2), array * 3]

    @method
    def make_many(self, count: int) -> list[Any]:
        """Return refs to so many arrays."""
        return [self._context.empty((1,)) for _ in range(count)]

    @method
    def double(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return twice the array."""
        return np.asarray(array) * 2

    @method
    def total(self, array: NDArray[np.generic]) -> float:
        """Return the sum of all elements."""
        return float(np.sum(array))

    @method
    def weighted(self, array: NDArray[np.generic], weights: NDArray[np.generic]) -> float:
        """Return a sum over two arrays."""
        return float(np.sum(np.multiply(array, weights)))

    @method
    def large(self, n: int) -> NDArray[np.float64]:
        """Return a new array."""
        return np.arange(float(n))

    @method(thread=True)
    def large_parts(self, n: int, parts: int) -> Generator[NDArray[np.float64], None, NDArray[np.float64]]:
        """Yield new arrays, each with its number, and return one."""
        for number in range(parts):
            yield np.full(n, float(number))
        return np.full(n, float(parts))

    @method(idempotent=True)
    def large_again(self, n: int) -> NDArray[np.float64]:
        """Do the same; may be sent again."""
        return self.large(n)

    @method
    def fail(self, array: NDArray[np.generic], way: str) -> None:
        """Raise, without a later collection that would free the traceback's objects."""
        gc.disable()
        shown = array[:1]
        raise InvalidRequest(f"{shown}") if way == "typed" else ValueError(f"{shown}")

    @method(thread=True)
    def fail_on_thread(self, array: NDArray[np.generic], way: str) -> None:
        """Do the same on the actor's thread."""
        self.fail(array, way)

    @method(batch=Batch(max_wait_s=0))
    def fail_in_batch(self, arrays: list[Any], ways: list[str]) -> list[None]:
        """Do the same for a whole batch."""
        self.fail(arrays[0], ways[0])
        return [None]

    @method
    def keep(self, array: NDArray[np.generic]) -> int:
        """Keep the argument itself."""
        self._kept.append(array)
        return len(self._kept)

    @method
    def grow(self, nbytes: int) -> None:
        """Keep a new array, for ever."""
        self._kept.append(self._context.empty((nbytes,), "uint8"))

    @method(thread=True)
    def keep_total(self, array: NDArray[np.generic]) -> None:
        """Keep the sum of all elements, on the actor's thread."""
        self._kept.append(np.sum(array))

    @method
    def kept_total(self) -> float:
        """Return the sum of all elements of the kept arrays."""
        return float(sum(np.sum(array) for array in self._kept))

    @method
    def drop(self) -> None:
        """Drop all kept arrays."""
        self._kept.clear()

    @method(writes=["target"])
    def add(self, target: NDArray[np.generic], number: float) -> None:
        """Add to every element."""
        target += number  # type: ignore[misc]

    @method(thread=True, writes=["target"])
    def add_on_thread(self, target: NDArray[np.generic], number: float) -> None:
        """Do the same on the actor's thread."""
        target += number  # type: ignore[misc]

    @method(thread=True, writes=["target"])
    def add_slowly(self, gate: str, target: NDArray[np.generic], number: float) -> None:
        """Do the same on the actor's thread, after a wait at a gate."""
        arrive(gate)
        target += number  # type: ignore[misc]

    @method(writes=["target"])
    def fail_writing(self, target: NDArray[np.generic]) -> None:
        """Raise, and leave the target undefined."""
        raise ValueError(f"{target.shape}")

    @method(thread=True)
    def total_slowly(self, gate: str, array: NDArray[np.generic]) -> float:
        """Return the sum of all elements, on the actor's thread, after a wait at a gate."""
        arrive(gate)
        return float(np.sum(array))

    @method(thread=True)
    def total_on_thread(self, array: NDArray[np.generic]) -> float:
        """Return the sum of all elements, on the actor's thread."""
        return float(np.sum(array))

    @method(thread=True)
    def totals(self, array: NDArray[np.generic]) -> Iterator[float]:
        """Yield the sum of all elements."""
        yield float(array.sum())

    @method(thread=True)
    def wait(self, gate: str) -> None:
        """Wait at a gate, on the actor's thread."""
        arrive(gate)

    @method
    def make_slowly(self, gate: str, array: NDArray[np.generic]) -> Any:
        """Return a ref to a copy, after a wait at a gate."""
        arrive(gate)
        return self._context.keep(array)

    @method(thread=True)
    def make_on_thread_slowly(self, gate: str, array: NDArray[np.generic]) -> Any:
        """Do the same on the actor's thread."""
        return self.make_slowly(gate, array)


def arrive(gate: str) -> None:
    """Say that we are at a gate, and wait until it opens."""
    with Path(f"{gate}.here").open("ab", buffering=0) as here:
        here.write(b"1\n")
    with Path(f"{gate}.go").open("rb", buffering=0) as go:
        go.read(1)
