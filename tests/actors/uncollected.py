"""Actors of a process without collections: what a cycle of its objects keeps stays."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from atomr_mp.errors import InvalidRequest
from atomr_mp_workers import Actor, Batch, Context, Live, Steps, method
from tests.actors.probe import note


async def _raise_later(way: str) -> None:
    await asyncio.sleep(0)  # the other tasks' turn
    _raise(way)


def _raise(way: str) -> None:
    raise InvalidRequest("on purpose") if way == "typed" else ValueError("on purpose")


def _numbers(way: str) -> Iterator[int]:
    """Return the parts of a stream: one, or numbers for ever."""
    return itertools.count() if way == "yields" else iter((0,))


class Uncollected(Actor):
    """Awaits, and streams from its event loop; the other methods run on the worker's loop."""

    max_running = 8

    async def setup(self, context: Context) -> None:  # noqa: ARG002 - nothing of it is needed
        """Have no collection from now on."""
        gc.disable()
        self._error = ValueError("once and for all")

    @method
    def collect(self) -> int:
        """Collect garbage, so that no request's test sees another's."""
        return gc.collect()

    @method
    async def wait(self, array: Any, tag: str) -> None:  # noqa: ARG002 - kept while it waits
        """Wait until it is cancelled."""
        note(tag)
        await asyncio.Event().wait()  # until it is cancelled

    @method
    async def bear(self, array: Any, tag: str) -> Any:
        """Wait until it is cancelled, and return nevertheless, after having waited for others."""
        try:
            await self.wait(array, tag)
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # the others' turn
        return array.nbytes

    @method
    async def fail(self, array: Any, way: str) -> Any:
        """Raise."""
        _raise(way)
        return array.nbytes

    @method
    async def fail_later(self, array: Any, way: str) -> Any:
        """Raise what a task has raised that was awaited."""
        await asyncio.create_task(_raise_later(way))
        return array.nbytes

    @method
    async def fail_in_group(self, array: Any, way: str) -> Any:
        """Raise what a group of tasks has raised."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_raise_later(way)) for _ in range(2)]
        return array.nbytes + len(tasks)

    @method
    def fail_again(self, array: Any, way: str) -> Any:
        """Raise the same exception each time, on the worker's loop."""
        if way == "same":
            raise self._error
        return array.nbytes

    @method
    async def stream(self, array: Any, way: str, tag: str) -> AsyncIterator[int]:
        """Yield, then raise, or wait until it is cancelled, or yield for ever."""
        for number in _numbers(way):
            yield number
        note(tag)
        if way == "waits":
            await asyncio.Event().wait()  # until it is cancelled
        await asyncio.create_task(_raise_later(way))
        yield array.nbytes

    @method(batch=Batch(max_wait_s=0))
    def fail_items(self, arrays: list[Any]) -> list[Any]:
        """Return an exception for each of the items, as it was raised."""
        found: list[Any] = []
        for _ in arrays:
            try:
                _raise("other")
            except ValueError as error:
                found.append(error)
        return found


class Line(msgspec.Struct):
    """The argument of `Threaded.together`."""

    array: Any
    way: str
    tag: str


class Threaded(Actor):
    """Streams from its thread."""

    def setup(self, context: Context) -> None:  # noqa: ARG002 - nothing of it is needed
        """Have no collection from now on."""
        gc.disable()

    @method(thread=True)
    def fail(self, array: Any, way: str) -> Any:
        """Raise."""
        _raise(way)
        return array.nbytes

    @method(thread=True)
    def stream(self, array: Any, way: str, tag: str) -> Iterator[int]:
        """Yield, then raise, or yield for ever."""
        yield from _numbers(way)
        note(tag)
        _raise(way)
        yield array.nbytes

    @method(thread=True, batch=Steps(max_items=4))
    def together(self, live: Live[Line, int]) -> None:
        """Send to each, and have some fail."""
        for each in live.ready:
            each.send(0)
        for each in live.new:
            if each.arguments.way == "alone":
                each.fail(ValueError("on purpose"))
            elif each.arguments.way != "yields":
                _raise(each.arguments.way)
