"""An actor whose methods are asynchronous, in every way that tests ask for."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from atomr_mp import errors
from atomr_mp_workers import Actor, Context, method
from tests.actors.probe import arrive, die, note

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="")


async def others_turn() -> None:
    """Give the loop's other tasks their turn."""
    await asyncio.sleep(0)  # asyncio's own way to yield: nothing is waited for


class Awaiter(Actor):
    """Waits for what its own tasks do."""

    max_running = 8

    async def setup(self, context: Context) -> None:
        """Start a task that stays."""
        self._context = context
        self._thread = threading.get_ident()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(self.max_running))  # as many wait at gates
        self._lines: asyncio.Queue[asyncio.Future[str]] = asyncio.Queue()
        self._engine = asyncio.create_task(self._serve())
        self._running = self._most = 0

    async def teardown(self) -> None:
        """Record the end, on the loop."""
        await others_turn()
        note(f"down-{threading.get_ident() == self._thread}")

    async def _serve(self) -> None:
        try:
            while True:
                future = await self._lines.get()
                if not future.done():
                    future.set_result("served")
        finally:
            note("engine-over")

    @method(idempotent=True)
    async def add(self, a: int, b: int) -> int:
        """Add, after having waited for others; on the loop's thread."""
        await others_turn()
        assert threading.get_ident() == self._thread
        return a + b

    @method
    async def served(self) -> str:
        """Wait for the task that `setup` has started."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await self._lines.put(future)
        return await future

    @method
    async def at_a_time(self, gate: str) -> int:
        """Wait at a gate, elsewhere than on the loop; return the most that have run at a time."""
        self._running += 1
        self._most = max(self._most, self._running)
        try:
            await asyncio.to_thread(arrive, gate)
        finally:
            self._running -= 1
        return self._most

    @method(hang_timeout_s=1.0)
    async def wait(self, tag: str, seconds: float = 3600.0) -> str:
        """Wait, and note how that ends."""
        note(f"{tag}-begun")
        try:
            await asyncio.sleep(seconds)  # a request that a drain outlasts: the duration is what is tested
        except asyncio.CancelledError:
            note(f"{tag}-cancelled")
            raise
        return tag

    @method
    async def stubborn(self, tag: str) -> str:
        """Return although it is cancelled."""
        note(f"{tag}-begun")
        try:
            await asyncio.Event().wait()  # until it is cancelled
        except asyncio.CancelledError:
            note(f"{tag}-goes-on")
        return tag

    @method(hang_timeout_s=1.0)
    async def deaf(self, tag: str) -> None:
        """Never end, even on an order."""
        note(f"{tag}-begun")
        while True:
            try:
                await asyncio.Event().wait()  # until it is cancelled
            except asyncio.CancelledError:
                note(f"{tag}-deaf")

    @method(hang_timeout_s=1.0)
    async def block(self) -> None:
        """Hold up the whole loop."""
        await others_turn()
        die("hang")

    @method
    async def failing(self, kind: str) -> Any:
        """Raise."""
        await others_turn()
        match kind:
            case "typed":
                raise errors.OutOfMemory("on purpose", requested_bytes=7)
            case "exit":
                raise SystemExit(1)
            case "cancelled":
                raise asyncio.CancelledError
            case "result":
                return object()
            case "itself":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.Event().wait()  # until it is cancelled
        raise ValueError("on purpose")

    @method(idempotent=True)
    async def die(self, how: str, gate: str = "", only_first: bool = False) -> int:  # noqa: FBT001, FBT002 - a call's
        """Die, in the first incarnation only if so wanted."""
        if only_first and self._context.generation > 1:
            return self._context.generation
        if gate:
            await asyncio.to_thread(arrive, gate)
        die(how)
        return 0

    @method
    async def double(self, array: Any) -> Any:
        """Return a ref to twice an array, that is borrowed meanwhile."""
        import numpy as np

        await others_turn()
        return await asyncio.to_thread(self._context.keep, np.asarray(array) * 2)

    @method(writes=["array"])
    async def fill(self, array: Any, value: float) -> None:
        """Write an array, before and after having waited."""
        array[: len(array) // 2] = value
        await others_turn()
        array[len(array) // 2 :] = value

    @method
    async def variable(self, value: str) -> str:
        """Set a context variable, wait, and return it."""
        VARIABLE.set(value)
        await others_turn()
        return VARIABLE.get()

    @method
    async def count(self, upto: int, seconds: float = 0.0) -> AsyncIterator[int]:
        """Yield numbers."""
        for n in range(upto):
            if seconds:
                await asyncio.sleep(seconds)  # a pace: others run between the parts, or a drain begins
            yield n

    @method(idempotent=True)
    async def again(self, upto: int, at: int, how: str, gate: str = "") -> AsyncIterator[list[int]]:
        """Yield (pid, number), and die at one, in the first incarnation."""
        note("again-begun")
        for n in range(upto):
            await others_turn()
            if n == at and self._context.generation == 1:
                if gate:
                    await asyncio.to_thread(arrive, gate)
                die(how)
            yield [os.getpid(), n]

    @method(resumable=True)
    async def resumed(self, upto: int, at: int, start: int, seconds: float = 0.0) -> AsyncIterator[int]:
        """Yield numbers from `start` on, and die at one, in the first incarnation."""
        for n in range(start, upto):
            await asyncio.sleep(seconds)  # a pace: the stream is moved before its end
            if n == at and self._context.generation == 1:
                time.sleep(0.05)  # noqa: ASYNC251 - nothing tells when the parts have left
                die("kill")
            yield n

    @method(hang_timeout_s=1.0)
    async def endless(self, tag: str, waits_at: int = -1) -> AsyncIterator[int]:
        """Yield for ever, or wait for ever at one; note how it ends, after having waited once more."""
        how, n = "over", 0
        try:
            while True:
                if n == waits_at:
                    note(f"{tag}-waits")
                    await asyncio.Event().wait()  # until it is cancelled
                yield n
                n += 1
        except GeneratorExit:
            how = "closed"
            raise
        except asyncio.CancelledError:
            how = "cancelled"
            raise
        finally:
            await others_turn()
            note(f"{tag}-{how}")

    @method
    async def odd(self, what: str) -> AsyncIterator[Any]:
        """Yield, and then break a rule."""
        try:
            yield 1
            if what == "raise":
                raise ValueError("on purpose")
            if what == "part":
                yield object()
            yield 2
        finally:
            if what == "stubborn":
                yield 3

    @method(hang_timeout_s=1.0)
    async def blocking(self, at: int) -> AsyncIterator[int]:
        """Yield numbers, and hold up the whole loop at one."""
        for n in range(at):
            await others_turn()
            yield n
        die("hang")

    @method
    def pid(self) -> int:
        """Return our pid, from the worker's loop."""
        return os.getpid()

    @method(thread=True)
    def on_thread(self) -> bool:
        """Return whether this is another thread than the loop's."""
        return threading.get_ident() != self._thread
