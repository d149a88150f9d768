"""Actors that run a program with a loop: on the worker's loop, on threads, in batches, and on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from atomr_mp_workers import Actor, Batch, Context, method
from tests.actors.probe import note

MOST = 2**40


def counting(libraries: Any) -> Any:
    """Return a program that counts its input down to 0."""
    with libraries.program() as p:
        n, one = p.input("n", (), "int64"), p.input("one", (), "int64")
        left = p.elementwise.maximum(n, n)
        with p.while_(left, most=MOST) as loop:
            p.elementwise.subtract(left, one, left)
        p.returns(loop.rounds)
    return p


class _Counting(Actor):
    """Runs the program, and keeps how runs have ended."""

    def _begin(self, context: Context) -> None:
        """Record the program."""
        self._program = counting(context.libraries)
        self._endings: list[str] = []

    def _rounds(self, n: int) -> int:
        note("begun")
        try:
            return int(self._program.run(n=n, one=1).array)
        except BaseException as ended:
            self._endings.append(type(ended).__name__)
            raise

    def _ended(self) -> list[str]:
        """Return the errors that have ended runs, and forget them."""
        found, self._endings = self._endings, []
        return found


class Looping(_Counting):
    """Runs the program in methods of every kind but coroutines."""

    threads = 2

    def setup(self, context: Context) -> None:
        """Record the program."""
        self._begin(context)

    @method
    def here(self, n: int) -> int:
        """Run it on the worker's loop."""
        return self._rounds(n)

    @method(thread=True)
    def on_thread(self, n: int) -> int:
        """Run it on a thread."""
        return self._rounds(n)

    @method(thread=True)
    def stream(self, n: int) -> Iterator[int]:
        """Yield a part, and run it for the next one."""
        yield 0
        yield self._rounds(n)

    @method(thread=True, batch=Batch(max_items=2, max_wait_s=60))
    def together(self, n: list[int]) -> list[int]:
        """Run it for two requests."""
        return [self._rounds(max(n))] * len(n)

    @method
    def endings(self) -> list[str]:
        """Return the errors that have ended runs, and forget them."""
        return self._ended()


class LoopingTasks(_Counting):
    """Runs the program in coroutines."""

    async def setup(self, context: Context) -> None:
        """Record the program."""
        self._begin(context)

    @method
    async def blocking(self, n: int) -> int:
        """Run it on the event loop."""
        return self._rounds(n)

    @method
    async def beside(self, n: int) -> int:
        """Run it on a thread of the event loop's."""
        return await asyncio.to_thread(self._rounds, n)

    @method
    async def endings(self) -> list[str]:
        """Return the errors that have ended runs, and forget them."""
        return self._ended()
