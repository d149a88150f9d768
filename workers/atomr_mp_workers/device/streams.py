"""The streams of the actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp_workers.device.base import Stream

STRATEGIES: Final = ("per_actor", "fresh", "pooled", "single")
"""Strategies: one stream for each actor, for ever; a new one for each request of a stream; a few, in turn; one for
all."""

PRIORITIES: Final = ("low", "normal", "high")
"""Priorities of work on a GPU where more waits than can run at once, lowest first."""


class StreamAllocator:
    """Hands out streams by a strategy.

    Args:
        strategy: One of `STRATEGIES`; "pooled:N" gives the number of streams, by default `POOLED`.
        make: Makes a stream from a name and a priority.
    """

    def __init__(self, strategy: str, make: Callable[[str, str], Stream]) -> None:
        self._strategy, colon, count = strategy.partition(":")
        counts = self._strategy == "pooled" and count.isdecimal() and int(count) > 0
        if self._strategy not in STRATEGIES or (colon and not counts):
            raise errors.ConfigurationError(f"streams = {strategy!r}: use one of {', '.join(STRATEGIES)}, or pooled:N")
        self._make = make
        self._made = 0
        self._count = int(count) if colon else POOLED
        self._streams: dict[tuple[str, str], Stream] = {}
        self._acquired = 0

    def acquire(self, actor: str, priority: str = "normal") -> Stream:
        """Return an actor's stream; streams are shared by actors of the same priority only."""
        number, self._acquired = self._acquired, self._acquired + 1
        match self._strategy:
            case "per_actor":
                name = actor
            case "fresh":
                return self._numbered(f"{actor}-{number}", priority)
            case "pooled":
                name = f"stream-{number % self._count}"
            case _:
                name = "stream"
        stream = self._streams.get((name, priority))
        if stream is None:
            stream = self._streams[name, priority] = self._numbered(name, priority)
        return stream

    def _numbered(self, name: str, priority: str) -> Stream:
        stream = self._make(name, priority)
        stream.number, self._made = self._made, self._made + 1
        return stream


class OneStream(StreamAllocator):
    """Hands out one existing stream.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__("single", lambda _name, _priority: stream)
        self._stream: Final = stream

    def acquire(self, _actor: str, _priority: str = "normal") -> Stream:
        """Return the stream."""
        return self._stream


POOLED: Final = 4
