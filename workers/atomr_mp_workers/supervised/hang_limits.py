"""Encodes a method's hang limit and its thread for the board, where the supervisor's watchdog reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from atomr_mp.protocol.board import LOOPS, PlaceKind, Watched
from atomr_mp_workers.requests.method import Method

LONGEST_S: Final = 10.0 * 365 * 86400
"""A longer limit means never."""


_FIRST_MADE: Final = 2**11
"""From here on threads of worlds that sessions make are numbered, below it those of actors."""


class HangLimits:
    """The hang limits of methods.

    Args:
        default_s: How long beyond its deadline a request may run by default; 0 for no limit.
        threads: The number of an actor's threads as a place, and how many there are, by method.
        loops: The number of an actor's event loop, by method.
    """

    def __init__(
        self, default_s: float, threads: Mapping[str, tuple[int, int]], loops: Mapping[str, int] | None = None
    ) -> None:
        self._default_s = default_s
        self._threads = threads
        self._loops = loops or {}

    def word(self, method: Method) -> int:
        """Return the word that the board has for each request of a method."""
        own_s = method.hang_timeout_s
        limit_s = self._default_s if own_s is None else own_s
        limit_ns = max(1, math.ceil(limit_s * 1000)) * 1_000_000 if 0 < limit_s <= LONGEST_S else 0
        kind, number, width = PlaceKind.LOOP, 0, 1
        if method.is_async:
            kind, number = PlaceKind.EVENT_LOOP, self._loops[method.name] % LOOPS
        elif method.thread:
            kind = PlaceKind.THREAD
            number, width = self._threads.get(method.name) or (_FIRST_MADE + (method.world or 0) % _FIRST_MADE, 1)
        elif method.stream is not None:
            kind, number = PlaceKind.STREAM, method.stream.number
        watched = Watched(limit_ns, own_s is None, kind, number, method.is_async, width, method.number)
        return watched.pack()
