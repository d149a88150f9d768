"""EDGE: copies of large arrays in host memory, by several threads side by side.

One thread copies at a fifth of what the memory gives. NumPy releases the interpreter's lock while it copies elements,
whatever their strides and types, so threads are enough. They live as long as the transfer that they are for: a fork, or
a client's end, finds none.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, Self

import numpy as np

LARGE_BYTES: Final = 8 * 2**20
"""Arrays up to this size are copied by one thread: to start others takes a fifth of a millisecond."""

MOST_THREADS: Final = 4
"""Most threads of a copy: with more, copies of 8 MiB took twice as long (32 cores, 2026)."""

PART_BYTES: Final = 2 * 2**20
"""Least bytes of a part that a thread copies at a time: a fifth of a millisecond."""

TURNS: Final = 4
"""About how many parts of a copy each thread takes: few, since after each it may wait for the interpreter's lock, and
several, since another thread may hold it up."""

Index = tuple[int | slice, ...]


def copy(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Copy elements between arrays of one shape, as `numpy.copyto` does; large arrays by several threads.

    Raises:
        ValueError: The target is read-only.
        TypeError: The elements cannot be converted.
    """
    if target.nbytes <= LARGE_BYTES:
        np.copyto(target, source)
    else:
        with CopyThreads() as threads:
            threads.copy(target, source)


class CopyThreads:
    """The threads that help the calling one with the copies of one transfer; they end with the `with`.

    They are started by the first copy. Of an interrupted copy no further part begins, and none goes on when the `with`
    is over.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._called: Final[SimpleQueue[_Copy | None]] = SimpleQueue()
        """The present copy, once for each thread that has not heard of it; None to end one."""
        self._left: Final[SimpleQueue[None]] = SimpleQueue()
        """One entry for each thread that has stopped working at the present copy."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._called.put(None)
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join()

    def copy(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        """Copy elements between arrays of one shape, as `numpy.copyto` does. One call at a time."""
        threads = min(MOST_THREADS, len(os.sched_getaffinity(0)), -(-target.nbytes // PART_BYTES))
        if threads < 2 or np.may_share_memory(target, source):  # what overlaps NumPy copies by way of a third array
            np.copyto(target, source)
            return
        self._start(threads - 1)
        copying = _Copy(target, source, max(PART_BYTES, -(-target.nbytes // (TURNS * threads))))
        waited_for = len(self._threads)
        for _ in range(waited_for):
            self._called.put(copying)
        try:
            copying.work()
        finally:
            copying.parts.clear()
            while waited_for and self._takes_back():
                waited_for -= 1
            for _ in range(waited_for):
                self._left.get()
        if copying.raised:
            del copying.raised[1:]
            raise copying.raised.pop()  # so that it and the arrays do not keep each other until a collection

    def _start(self, count: int) -> None:
        """Start threads until there are so many, or no more are to be had."""
        while len(self._threads) < count:
            thread = threading.Thread(target=self._help, name="atomr-mp copy", daemon=True)
            self._threads.append(thread)  # first, so that an interrupted start is not forgotten
            try:
                thread.start()
            except RuntimeError:
                del self._threads[-1]
                return

    def _takes_back(self) -> bool:
        """Take back the call for a thread that has not heard of the copy; return whether there was one."""
        try:
            self._called.get_nowait()
        except Empty:
            return False
        return True

    def _help(self) -> None:
        while (copying := self._called.get()) is not None:
            copying.work()
            del copying  # first, since it keeps the arrays
            self._left.put(None)


class _Copy:
    """A copy that several threads work at.

    Args:
        target: Its target.
        source: Its source, of the same shape.
        part_bytes: Most bytes of a part.
    """

    def __init__(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any], part_bytes: int) -> None:
        # Each part is to lie in one piece in the target, as far as possible. Subclasses may have other shapes.
        axes = sorted(range(target.ndim), key=lambda axis: -abs(target.strides[axis]))
        target, source = (np.asarray(array).transpose(axes) for array in (target, source))
        if target.flags.c_contiguous and source.flags.c_contiguous:
            target, source = target.reshape(-1), source.reshape(-1)
        self._target: Final = target
        self._source: Final = source
        self.parts: Final = list(parts_of(target.shape, target.itemsize, part_bytes))
        """Indices of the parts that no thread has begun; the last is taken first."""
        self.raised: Final[list[Exception]] = []

    def work(self) -> None:
        """Copy parts until none is left. Any thread."""
        while True:
            try:
                at = self.parts.pop()
            except IndexError:
                return
            try:
                np.copyto(self._target[at], self._source[at])
            except Exception as raised:  # noqa: BLE001 - the thread that has called for the copy raises it
                self.raised.append(raised)
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
