"""What a soak calls."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Context, DeviceArray, Live, Steps, method

Array = NDArray[np.generic]

RESIDENT_ITEMS: Final = 2**18

SLOWLY_S: Final = 0.02


class Echo(Actor):
    """Gives back what it gets."""

    @method
    def on_loop(self, value: Any) -> Any:
        """Give it back, on the loop."""
        return value

    @method(thread=True)
    def on_thread(self, value: Any) -> Any:
        """Give it back, on the actor's thread."""
        return value

    @method(idempotent=True)
    def number(self, value: int) -> int:
        """Give it back; may be sent again."""
        return value

    @method(idempotent=True, thread=True)
    def slowly(self, value: int) -> int:
        """Do the same after a while, so that kills meet it."""
        time.sleep(SLOWLY_S)
        return value


class Teller(Actor):
    """Streams numbers."""

    def setup(self, context: Context) -> None:  # noqa: ARG002 - nothing of it is needed
        """Begin with nothing."""
        self._next: dict[int, int] = {}

    @method(thread=True, idempotent=True)
    def numbers(self, count: int) -> Iterator[int]:
        """Yield them, now and then after a while, so that kills meet it."""
        for number in range(count):
            if number % 50 == 49:
                time.sleep(SLOWLY_S)
            yield number

    @method(thread=True, resumable=True)
    def resumed(self, count: int, start: int) -> Iterator[int]:
        """Do the same; goes on in the next process."""
        for number in range(start, count):
            if number % 50 == 49:
                time.sleep(SLOWLY_S)
            yield number

    @method(thread=True, batch=Steps(max_items=16), resumable=True)
    def together(self, live: Live[int, int]) -> None:
        """Do the same for many, one number a step."""
        for each in live.gone:
            self._next.pop(each.id, None)
        for each in live.new:
            self._next[each.id] = len(each.sent)
        for each in live.ready:
            if self._next[each.id] < each.arguments:
                each.send(self._next[each.id])
                self._next[each.id] += 1
            else:
                each.end()
                del self._next[each.id]


class Awaited(Actor):
    """Answers and streams from an event loop of its own, where many requests wait side by side."""

    max_running = 32

    @method(idempotent=True)
    async def give_back(self, value: Any) -> Any:
        """Give it back, after the loop's other tasks had their turn."""
        await asyncio.sleep(0)
        return value

    @method
    async def slowly(self, value: Any) -> Any:
        """Do the same after a while, so that kills and cancellations meet it."""
        await asyncio.sleep(SLOWLY_S)
        return value

    @method(idempotent=True)
    async def numbers(self, count: int) -> AsyncIterator[int]:
        """Yield numbers, now and then after a while."""
        for number in range(count):
            await asyncio.sleep(SLOWLY_S if number % 50 == 49 else 0)
            yield number

    @method(resumable=True)
    async def resumed(self, count: int, sent: list[int]) -> AsyncIterator[int]:
        """Do the same; goes on in the next process behind what was sent."""
        for number in range(len(sent), count):
            await asyncio.sleep(SLOWLY_S if number % 50 == 49 else 0)
            yield number


class Once(Actor):
    """Leaves a line for each request that has run, which outlives its process."""

    @method
    def note(self, path: str, tag: str) -> str:
        """Leave it, and return it."""
        with Path(path).open("ab", buffering=0) as file:
            file.write(f"{tag}\n".encode())
        return tag

    @method(thread=True)
    def note_on_thread(self, path: str, tag: str) -> str:
        """Do the same on the actor's thread."""
        return self.note(path, tag)


class Maker(Actor):
    """Makes arrays in the device's memory, and looks at them."""

    _context: Context

    def setup(self, context: Context) -> None:
        """Remember what makes arrays."""
        self._context = context

    @method
    def array_on_loop(self, seed: int, count: int) -> Any:
        """Return an array."""
        return np.arange(seed, seed + count, dtype=np.int64) * 7 % 251

    @method(thread=True)
    def array_on_thread(self, seed: int, count: int) -> Any:
        """Return an array, from the actor's thread."""
        return np.arange(seed, seed + count, dtype=np.int64) * 7 % 251

    @method
    def sum_on_loop(self, array: Array) -> float:
        """Return the sum of all elements."""
        return float(np.sum(array, dtype=np.float64))

    @method(thread=True)
    def sum_on_thread(self, array: Array) -> float:
        """Return the sum of all elements, from the actor's thread."""
        return float(np.sum(array, dtype=np.float64))

    @method
    def sums(self, arrays: dict[str, DeviceArray]) -> list[float]:
        """Return the sums of several."""
        return [float(np.sum(array.array, dtype=np.float64)) for array in arrays.values()]

    @method
    def keep_on_loop(self, array: Array) -> DeviceArray:
        """Return a ref to a copy."""
        return self._context.keep(array)

    @method(thread=True)
    def keep_on_thread(self, array: Array) -> DeviceArray:
        """Return a ref to a copy, made on the actor's thread."""
        return self._context.keep(array)

    @method
    def three(self, array: DeviceArray) -> list[Any]:
        """Return a ref to the argument itself, one to a copy, and an array."""
        return [array, self._context.keep(array.array), np.array(array.array)]

    @method(writes=["target"])
    def add_on_loop(self, target: Array, number: int) -> None:
        """Add to every element."""
        target += np.asarray(number, target.dtype)  # type: ignore[misc]

    @method(writes=["target"])
    def spoil(self, target: Array) -> None:
        """Write the first half, and fail."""
        target[: len(target) // 2] = 1
        raise ValueError("half way")

    @method(thread=True, writes=["target"])
    def add_on_thread(self, target: Array, number: int) -> None:
        """Do the same on the actor's thread."""
        target += np.asarray(number, target.dtype)  # type: ignore[misc]


class Housed(Actor):
    """Has an array in resident memory, every few processes a new one."""

    def setup(self, context: Context) -> None:
        """Fill it, or find it."""
        self._arrays: Any = importlib.import_module("cupy" if context.backend == "cuda" else "numpy")
        version = context.generation // 3
        self._seed = 1000 * context.device + version

        def fill(arrays: Mapping[str, Any]) -> None:
            arrays["pattern"][...] = self._pattern()

        arrays = context.resident(
            f"pattern-{context.device}", {"pattern": ((RESIDENT_ITEMS,), "int64")}, version=f"{version}", fill=fill
        )
        self._array = arrays["pattern"]

    def _pattern(self) -> Any:
        return self._arrays.arange(self._seed, self._seed + RESIDENT_ITEMS, dtype=np.int64) * 7 % 251

    @method
    def whole(self) -> bool:
        """Return whether it is as it was filled, by whichever process."""
        return bool((self._array == self._pattern()).all())


class Hoard(Actor):
    """Keeps the latest of what it is given, whatever becomes of whoever gave it."""

    _kept: deque[tuple[Array, int]]

    def setup(self, context: Context) -> None:  # noqa: ARG002 - nothing of it is needed
        """Have nothing."""
        self._kept = deque()

    @method
    def keep(self, array: Array, total: int) -> bool:
        """Keep an array; return whether the oldest, which has to go for it, is as it was."""
        self._kept.append((array, total))
        return len(self._kept) <= 6 or self._is_right(*self._kept.popleft())

    @method
    def drop(self) -> bool:
        """Drop all that is kept; return whether all was as it was."""
        right = [self._is_right(*kept) for kept in self._kept]
        self._kept.clear()
        ctypes.CDLL(None).malloc_trim(0)  # so that what has grown is seen to have grown
        return all(right)

    def _is_right(self, array: Array, total: int) -> bool:
        return int(np.sum(array, dtype=np.int64)) == total
