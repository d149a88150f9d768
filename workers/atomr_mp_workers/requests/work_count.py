"""Counts the declared work of a library's requests, with the time that it has taken, on the board."""

from __future__ import annotations

import threading
from collections.abc import MutableSequence
from typing import Final

MOST: Final = 2**62
"""No sum gets there: they all begin anew before one does."""


class WorkCount:
    """The sums over a method's requests. Any thread: streams and the loop count.

    Args:
        words: The words of its `WorkCounts`.
        always: Whether requests count that declare no work.
    """

    def __init__(self, words: MutableSequence[int], *, always: bool = False) -> None:
        self._words: Final = words
        self._always: Final = always
        self._lock: Final = threading.Lock()
        self._requests = self._ns = self._flops = self._moved_bytes = 0

    def add(self, ns: int, flops: int, moved_bytes: int) -> None:
        """Count a request that has been executed; not if it declares no work, unless all count.

        Args:
            ns: Its execution time, in nanoseconds.
            flops: The operations that it declares.
            moved_bytes: The bytes that it declares.
        """
        if not (flops or moved_bytes or self._always) or ns >= MOST or flops >= MOST or moved_bytes >= MOST:
            return
        words = self._words
        with self._lock:
            if self._ns + ns >= MOST or self._flops + flops >= MOST or self._moved_bytes + moved_bytes >= MOST:
                self._requests = self._ns = self._flops = self._moved_bytes = 0
            self._requests += 1
            words[1] = self._ns = self._ns + ns
            words[2] = self._flops = self._flops + flops
            words[3] = self._moved_bytes = self._moved_bytes + moved_bytes
            words[0] = self._requests
