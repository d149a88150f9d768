"""EDGE: copies of large arrays in host memory, by several threads side by side.

One thread copies at a fifth of what the memory gives. NumPy releases the interpreter's lock while it copies elements,
whatever their strides and types, so threads are enough.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from types import EllipsisType
from typing import Any, Final

import numpy as np

LARGE_BYTES: Final = 8 * 2**20
"""Arrays up to this size are copied by one thread, which takes a millisecond."""

MOST_THREADS: Final = 4
"""Most threads of a copy: with more, copies of 8 MiB took twice as long (32 cores, 2026)."""

PART_BYTES: Final = 2**20
"""Least bytes of a part that a thread copies at a time."""

TURNS: Final = 2
"""About how many parts of a copy each thread takes, since another thread may hold it up. After each it may have to wait
for the interpreter's lock, so that of copies that follow each other a thread takes one part."""

Index = tuple[int | slice | EllipsisType, ...]


class CopyThreads:
    """Threads for the copies of one owner, thread-safe: made by its first large copy, and ended by `close`.

    A thread takes as long to start as to copy two MiB, so they stay. They never keep their owner or its arrays.
    """

    def __init__(self) -> None:
        self._called: Final[SimpleQueue[Copying | None]] = SimpleQueue()
        """Copies, each once for each thread that is to help; None to end a thread."""
        self._threads: list[threading.Thread] = []
        self._changing: Final = threading.Lock()
        """Held to start threads, or to close this, after which none is started."""
        self._closed = False

    def copy(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        """Copy elements between arrays of one shape, as `numpy.copyto` does.

        Raises:
            ValueError: The target is read-only.
            TypeError: The elements cannot be converted.
        """
        if target.nbytes <= LARGE_BYTES or (threads := _threads_for(target)) < 2:
            np.copyto(target, source)
            return
        copying = Copying(target, source, TURNS * threads)
        try:
            self._call(copying, threads - 1)
            copying.work()
            copying.wait()
        finally:
            copying.stop()

    def begin(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> Copying:
        """Begin such a copy, behind those that were begun before; the calling thread does not help, if others can.

        Whoever begins it waits for it, or stops it, before the arrays are used otherwise.
        """
        threads = _threads_for(target)
        copying = Copying(target, source, threads)
        try:
            if threads < 2 or not self._call(copying, threads):
                copying.work()
        except BaseException:
            copying.stop()
            raise
        return copying

    def close(self) -> None:
        """End the threads, after the copies that were begun. May be called twice."""
        with self._changing:
            self._closed = True
            threads, self._threads = self._threads, []
        for _thread in threads:
            self._called.put(None)
        for thread in threads:
            if thread.ident is not None:  # its start was not interrupted
                thread.join()

    def __del__(self) -> None:
        for _thread in getattr(self, "_threads", ()):  # an interrupt may have ended `__init__`
            self._called.put(None)

    def _call(self, copying: Copying, count: int) -> int:
        """Have so many threads help with a copy, or as many as are to be had; return how many."""
        count = min(count, len(copying.parts))
        with self._changing:
            while len(self._threads) < count and not self._closed:
                thread = threading.Thread(target=_help, args=(self._called,), name="atomr-mp copy", daemon=True)
                self._threads.append(thread)  # first, so that an interrupted start is not forgotten
                try:
                    thread.start()
                except RuntimeError:
                    del self._threads[-1]
                    break
            count = min(count, len(self._threads))
            for _ in range(count):
                self._called.put(copying)
        return count


class Copying:
    """A copy that several threads work at.

    Args:
        target: Its target.
        source: Its source, of the same shape.
        parts: About how many parts it has.
    """

    def __init__(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any], parts: int) -> None:
        part_bytes = max(PART_BYTES, -(-target.nbytes // parts))
        overlap = np.may_share_memory(target, source)
        # Each part is to lie in one piece in the target, as far as possible. Subclasses may have other shapes.
        axes = sorted(range(target.ndim), key=lambda axis: -abs(target.strides[axis]))
        target, source = (np.asarray(array).transpose(axes) for array in (target, source))
        if target.flags.c_contiguous and source.flags.c_contiguous:
            target, source = target.reshape(-1), source.reshape(-1)
        self._target: Final = target
        self._source: Final = source
        whole: list[Index] = [(...,)]
        in_parts = target.ndim and not overlap  # what overlaps NumPy copies by way of a third array
        self.parts: Final = [*parts_of(target.shape, target.itemsize, part_bytes)] if in_parts else whole
        """Indices of the parts that no thread has begun; the last is taken first."""
        self._helping = 0
        """Number of threads that copy a part, the calling one not counted: only there may an interrupt strike."""
        self._changed: Final = threading.Condition(threading.Lock())
        self._raised: list[Exception] = []

    def work(self) -> None:
        """Copy parts until none is left, on the thread that waits for the copy."""
        while (at := self._next()) is not None:
            self._copy(at)

    def help(self) -> None:
        """Copy parts until none is left, on another thread."""
        while True:
            with self._changed:
                at = self._next()
                if at is None:
                    return
                self._helping += 1
            self._copy(at)
            with self._changed:
                self._helping -= 1
                if not self._helping:
                    self._changed.notify_all()

    def wait(self) -> None:
        """Return when all has been copied.

        Raises:
            Exception: What NumPy has raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: not (self.parts or self._helping))
        if self._raised:
            raised, self._raised = self._raised, []
            del raised[1:]
            raise raised.pop()  # so that it and the arrays do not keep each other until a collection

    def stop(self) -> None:
        """Let no further part begin, and return when no other thread copies one. Does nothing after `wait`."""
        with self._changed:
            self.parts.clear()
            self._changed.wait_for(lambda: not self._helping)

    def _next(self) -> Index | None:
        try:
            return self.parts.pop()
        except IndexError:
            return None

    def _copy(self, at: Index) -> None:
        try:
            np.copyto(self._target[at], self._source[at])
        except Exception as raised:  # noqa: BLE001 - whoever waits for the copy raises it
            self._raised.append(raised)
            self.parts.clear()


def parts_of(shape: Sequence[int], item_bytes: int, most_bytes: int) -> Iterator[Index]:
    """Return indices of parts of an array that together have each element once, in row-major order.

    Args:
        shape: The array's shape, with at least one dimension.
        item_bytes: Bytes of an element.
        most_bytes: Most bytes of a part; each has one element at least.
    """
    count, *inner = shape
    rows = most_bytes // max(1, item_bytes * math.prod(inner))
    if rows or not inner:
        rows = max(1, rows)
        for begin in range(0, count, rows):
            yield (slice(begin, min(begin + rows, count)),)
        return
    for row in range(count):
        for index in parts_of(inner, item_bytes, most_bytes):
            yield (row, *index)


def _threads_for(target: np.ndarray[Any, Any]) -> int:
    """Return how many threads are worth their while for a copy."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)), -(-target.nbytes // PART_BYTES)))


def _help(called: SimpleQueue[Copying | None]) -> None:
    while (copying := called.get()) is not None:
        copying.help()
        del copying  # it keeps the arrays
