"""An actor that makes all results in memory of its own, and overwrites that memory as soon as its code goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp import checks
from atomr_mp_workers import Actor, Batch, Context, Live, Steps, method

Array = NDArray[Any]

Asked = tuple[int, int]
"""A caller's number, and the length of its result."""

WRONG = 0xFFFF_FFFF
"""What stands in the memory when no result does."""


def expected(seed: int, length: int) -> Array:
    """Return the result that belongs to a caller's number."""
    return np.arange(length, dtype=np.uint32) * 7 + seed


class Scribbler(Actor):
    """Answers each call with `expected`, from the same memory for each length."""

    def setup(self, context: Context) -> None:
        """Begin without memory."""
        del context
        self._memory: dict[int, Array] = {}
        self._left: dict[int, int] = {}

    def _result(self, seed: int, length: int) -> Array:
        out = self._memory.setdefault(length, np.empty(length, np.uint32))
        out[:] = expected(seed, length)
        return out

    def _scribble(self) -> None:
        for out in self._memory.values():
            out[:] = WRONG

    @method(idempotent=True)
    def checks(self) -> bool:
        """Return whether this process checks its own rules."""
        return checks.ON

    @method(idempotent=True)
    def on_loop(self, asked: Asked) -> Array:
        """Return a result, which the next call overwrites."""
        return self._result(*asked)

    @method(idempotent=True)
    def nested(self, asked: Asked) -> dict[str, Any]:
        """Return two results inside of other values."""
        seed, length = asked
        return {"both": [self._result(seed, length), {"strided": self._result(seed, 2 * length)[::2]}]}

    @method(thread=True, idempotent=True)
    def on_thread(self, asked: Asked) -> Array:
        """Do the same on a thread."""
        return self._result(*asked)

    @method(batch=Batch(max_items=8, max_wait_s=0), thread=True, idempotent=True)
    def rows(self, asked: list[Asked]) -> Array:
        """Return the results of a batch as the rows of one array; all have one length."""
        length = asked[0][1]
        out = self._memory.setdefault(-length, np.empty((8, length), np.uint32))
        for row, each in enumerate(asked):
            out[row] = expected(*each)
        return out[: len(asked)]

    @method(batch=Batch(max_items=1, max_wait_s=0), thread=True, idempotent=True)
    def in_list(self, asked: list[Asked]) -> list[Array]:
        """Return the results of a batch in a list."""
        return [self._result(*each) for each in asked]

    @method(idempotent=True)
    async def awaited(self, asked: Asked) -> Array:
        """Return a result, and overwrite it in the next turn of the event loop."""
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(self._scribble)
        return self._result(*asked)

    @method(thread=True, idempotent=True)
    def parts(self, seed: int, length: int, count: int) -> Iterator[Array]:
        """Yield results, and overwrite each at once."""
        for number in range(count):
            yield self._result(seed + number, length)
            self._scribble()

    @method(idempotent=True)
    async def awaited_parts(self, seed: int, length: int, count: int) -> AsyncIterator[Array]:
        """Do the same on an event loop."""
        for number in range(count):
            yield self._result(seed + number, length)
            self._scribble()

    @method(thread=True, batch=Steps(max_items=4), idempotent=True)
    def steps(self, live: Live[list[int], Array]) -> None:
        """Send each stream one result in each step, and overwrite it at once; end each with another result."""
        for each in live.gone:
            self._left.pop(each.id, None)
        for each in live.new:
            self._left[each.id] = 0
        for each in live.ready:
            (seed, length, count), number = each.arguments, self._left[each.id]
            if number < count:
                each.send(self._result(seed + number, length))
                self._left[each.id] += 1
            else:
                each.end(self._result(seed + number, length))
                del self._left[each.id]
            self._scribble()
