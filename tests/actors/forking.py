"""An actor that forks in every place where its code runs, and whose children come back from there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from atomr_mp_workers import Actor, Batch, Context, Live, Steps, method

children: list[int] = []


def fork(how: str) -> None:
    """Fork; the child comes back with a result or an exception."""
    child = os.fork()
    if child:
        children.append(child)
    elif how == "raise":
        raise ValueError("in the child")
    elif how == "exit":
        raise SystemExit(0)


def wanted(where: str) -> bool:
    """Return whether a test wants a fork where no argument can say so."""
    return (Path(os.environ["ATOMR_MP_TEST"]) / f"fork-{where}").exists()


if wanted("import"):
    fork("return")


class Forks(msgspec.Struct):
    """An argument that forks when it is decoded."""

    how: str

    def __post_init__(self) -> None:
        fork(self.how)


class Forking(Actor):
    """Forks."""

    def __init__(self) -> None:
        self.calls = 0
        if wanted("init"):
            fork("return")

    def setup(self, _context: Context) -> None:
        """Fork, if a test wants that."""
        if wanted("setup"):
            fork("return")

    @method(idempotent=True)
    def count(self) -> tuple[int, int]:
        """Return the pid, and how often this process was asked."""
        self.calls += 1
        return os.getpid(), self.calls

    @method
    def ended(self) -> list[int]:
        """Wait for all children, and return their exit statuses."""
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        children.clear()
        return statuses

    @method
    def loop(self, how: str) -> int:
        """Fork on the loop."""
        fork(how)
        return 1

    @method(thread=True)
    def thread(self, how: str) -> int:
        """Fork on a thread."""
        fork(how)
        return 1

    @method
    async def awaits(self, how: str) -> int:
        """Fork in a coroutine."""
        fork(how)
        return 1

    @method
    async def task(self, how: str) -> int:
        """Fork in a task of the actor's own."""

        async def own() -> None:
            await asyncio.sleep(0)
            fork(how)

        await asyncio.gather(own(), return_exceptions=True)
        return 1

    @method(batch=Batch(max_items=4, max_wait_s=0))
    def batch(self, hows: list[str]) -> list[int]:
        """Fork in a batch."""
        fork(hows[0])
        return [1] * len(hows)

    @method(batch=Batch(max_items=4, max_wait_s=0, key=fork))
    def key(self, hows: list[str]) -> list[int]:
        """Fork where the key is asked for."""
        return [1] * len(hows)

    @method
    def argument(self, forks: Forks) -> int:
        """Fork where the argument is decoded."""
        return len(forks.how) and 1

    @method(thread=True)
    def stream(self, how: str) -> Iterator[int]:
        """Fork before a part."""
        fork(how)
        yield 1

    @method
    async def async_stream(self, how: str) -> AsyncIterator[int]:
        """Fork before a part, in an asynchronous generator."""
        fork(how)
        yield 1

    @method(thread=True, batch=Steps(max_items=4))
    def steps(self, live: Live[str, Any]) -> None:
        """Fork in a step; the child sends a part."""
        for stream in live.new:
            fork(stream.arguments)
            stream.send(1)
            stream.end()
