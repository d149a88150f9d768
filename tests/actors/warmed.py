"""An actor with a method of each kind, which the process calls with its example, and one with more ways to fail."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp import errors
from atomr_mp_workers import Actor, Batch, Context, DeviceArray, Live, Steps, method
from tests.actors.probe import LEDGER, arrive, die

PARTS = 5000
"""More parts than a reader may grant at a time."""


class Warmed(Actor):
    """Notes each run: the method, what it was given, whether that was a warm-up, and where."""

    _context: Context
    _runs: list[tuple[str, Any, bool, str]]

    def setup(self, context: Context) -> None:
        """Begin to note."""
        self._context, self._runs = context, []
        self._note("setup", None)

    def _note(self, name: str, given: Any) -> None:
        self._runs.append((name, given, self._context.warming, threading.current_thread().name))

    def _by_name(self) -> dict[str, Any]:
        return {"second": [1], "first": 2}

    def _buffer(self) -> tuple[DeviceArray]:
        return (self._context.empty((1000,), "float64"),)

    @method(thread=True)
    def runs(self) -> list[tuple[str, Any, bool, str]]:
        """Return all notes."""
        return self._runs

    @method(example=lambda: (np.ones(100_000), 2.0))
    def plain(self, array: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
        """Return an array that is sent in memory that is shared with a client."""
        self._note("plain", [int(array.sum()), array.flags.writeable])
        return array * factor

    @method(thread=True, example="_by_name")
    def threaded(self, first: int, second: list[int], third: str = "default") -> str:
        """Take arguments by name."""
        self._note("threaded", [first, second, third])
        return third

    @method(batch=Batch(max_items=4), example=lambda: ("text",))
    def batched(self, texts: list[str]) -> list[str]:
        """Take several."""
        self._note("batched", texts)
        return texts

    @method(thread=True, example=lambda: (PARTS,))
    def streamed(self, count: int) -> Iterator[int]:
        """Stream numbers."""
        yield from range(count)
        self._note("streamed", count)

    @method(thread=True, batch=Steps(), example=lambda: (3,))
    def stepped(self, live: Live[int, int]) -> None:
        """End each stream in its first step."""
        for stream in live:
            stream.send(stream.arguments)
            self._note("stepped", stream.arguments)
            stream.end()

    @method(writes=["target"], example="_buffer")
    def written(self, target: DeviceArray) -> DeviceArray:
        """Write a buffer, and return it."""
        target.array[...] = 7
        self._note("written", list(target.shape))
        return target

    @method
    def unwarmed(self) -> None:
        """Note if this is ever run."""
        self._note("unwarmed", None)


class WarmedAsync(Actor):
    """The same for asynchronous methods."""

    _context: Context
    _runs: list[tuple[str, Any, bool, str]]

    async def setup(self, context: Context) -> None:
        """Begin to note."""
        self._context, self._runs = context, []

    @method
    async def runs(self) -> list[tuple[str, Any, bool, str]]:
        """Return all notes."""
        return self._runs

    @method(example=lambda: (1,))
    async def coroutine(self, number: int) -> int:
        """Note a number."""
        self._runs.append(("coroutine", number, self._context.warming, threading.current_thread().name))
        return number

    @method(example=lambda: (PARTS,))
    async def generator(self, count: int) -> AsyncIterator[int]:
        """Stream numbers."""
        for number in range(count):
            yield number
        self._runs.append(("generator", count, self._context.warming, threading.current_thread().name))


def _failing(how: str) -> None:
    if (LEDGER / how).exists():
        die("exception" if how == "example" else how)


class Failing(Actor):
    """Fails at its example in the way for which there is a file."""

    hang_timeout_s = 60.0

    def _argument(self) -> Any:
        _failing("example")
        if (LEDGER / "no-tuple").exists():
            return 7
        if (LEDGER / "unsendable").exists():
            return (object(),)
        if (LEDGER / "huge").exists():
            return (np.broadcast_to(np.zeros(1, np.uint8), 2**30 + 1),)
        return ("text",) if (LEDGER / "unfit").exists() else (7,)

    @method(thread=True, hang_timeout_s=0.2)
    def where(self) -> int:
        """Return this process."""
        return os.getpid()

    @method(thread=True, hang_timeout_s=0.2, example="_argument")
    def fail(self, number: int) -> int:
        """Fail, if at all."""
        for how in ("exception", "segv", "hang"):
            _failing(how)
        if (LEDGER / "poison").exists():
            raise errors.ContextPoisoned("on purpose", status=700)
        if (LEDGER / "missing").exists():
            import no_such_module  # type: ignore[import-not-found]  # noqa: F401
        return number


class Slow(Actor):
    """Waits at the gate "warming" in each warm-up, if there is one."""

    @method(thread=True, example=tuple)
    def answer(self) -> int:
        """Return this process."""
        if (LEDGER / "warming.go").exists():
            arrive(str(LEDGER / "warming"))
        return os.getpid()
