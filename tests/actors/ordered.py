"""Actors that read and write buffers in every place where a method may run, by calls and by streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from atomr_mp_workers import Actor, Batch, Context, DeviceArray, Live, Steps, method


class OneThread(Actor):
    """Reads and writes on the loop and on one thread."""

    def setup(self, context: Context) -> None:
        """Remember how many parts its streams with steps have left."""
        del context
        self._left: dict[int, int] = {}

    @method
    def read(self, buffer: DeviceArray) -> float:
        """Return the first element, on the loop."""
        return _first(buffer)

    @method(writes=["buffer"])
    def write(self, buffer: DeviceArray) -> None:
        """Add one, on the loop."""
        _add(buffer)

    @method(thread=True)
    def read_on_thread(self, buffer: DeviceArray) -> float:
        """Return the first element."""
        return _first(buffer)

    @method(thread=True, writes=["buffer"])
    def write_on_thread(self, buffer: DeviceArray) -> None:
        """Add one."""
        _add(buffer)

    @method(thread=True)
    def read_parts(self, buffer: DeviceArray, parts: int) -> Iterator[float]:
        """Yield the first element so many times."""
        for _ in range(parts):
            yield _first(buffer)

    @method(thread=True, exclusive=True)
    def read_parts_alone(self, buffer: DeviceArray, parts: int) -> Iterator[float]:
        """Yield the first element so many times, with the thread for itself."""
        for _ in range(parts):
            yield _first(buffer)

    @method(thread=True, writes=["buffer"])
    def write_parts(self, buffer: DeviceArray, parts: int) -> Iterator[float]:
        """Add one before each part, and yield what is there."""
        for _ in range(parts):
            _add(buffer)
            yield _first(buffer)

    @method(thread=True, batch=Batch(max_items=3, max_wait_s=0))
    def read_together(self, buffers: list[DeviceArray]) -> list[float]:
        """Return the first element of each."""
        return [_first(buffer) for buffer in buffers]

    @method(thread=True, batch=Batch(max_items=3, max_wait_s=0), writes=["buffers"])
    def write_together(self, buffers: list[DeviceArray]) -> list[None]:
        """Add one to each."""
        for buffer in buffers:
            _add(buffer)
        return [None] * len(buffers)

    @method(thread=True, batch=Steps(max_items=2))
    def read_steps(self, live: Live[DeviceArray, float]) -> None:
        """Send each stream the first element three times."""
        for gone in live.gone:
            self._left.pop(gone.id, None)
        for each in live.new:
            self._left[each.id] = 3
        for each in live.ready:
            each.send(_first(each.arguments))
            self._left[each.id] -= 1
            if not self._left[each.id]:
                del self._left[each.id]
                each.end()


class TwoThreads(OneThread):
    """Does the same with two threads."""

    threads = 2


class Tasks(Actor):
    """Reads and writes on an event loop, two requests at a time."""

    max_running = 2

    @method
    async def read_on_thread(self, buffer: DeviceArray) -> float:
        """Return the first element."""
        return _first(buffer)

    @method(writes=["buffer"])
    async def write_on_thread(self, buffer: DeviceArray) -> None:
        """Add one."""
        _add(buffer)

    @method
    async def read_parts(self, buffer: DeviceArray, parts: int) -> AsyncIterator[float]:
        """Yield the first element so many times."""
        for _ in range(parts):
            yield _first(buffer)

    @method(writes=["buffer"])
    async def write_parts(self, buffer: DeviceArray, parts: int) -> AsyncIterator[float]:
        """Add one before each part, and yield what is there."""
        for _ in range(parts):
            _add(buffer)
            yield _first(buffer)


def _first(buffer: Any) -> float:
    return float(buffer.array[0])


def _add(buffer: Any) -> None:
    buffer.array[:] += 1
