"""Decides which runs of a program are done as a graph: recorded once by the device, and launched as a whole. Pure.

A graph has the addresses that it was recorded with. Inputs and results below `COPIED_BYTES` are copied to and from
buffers of the graph's own, so that one graph serves all runs. Each set of addresses of the larger ones, the *key*, has
a graph of its own, and a few are kept. The first run with a key is done step by step, which also loads modules that
recording must not load; the second run is recorded, and launched.

Runs on one stream follow each other, so a graph is launched again before its last launch has ended. If a step has the
device write a verdict for the host, a run that comes before the last verdict was read is done step by step, since both
verdicts would be written to the same place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

COPIED_BYTES: Final = 2**20
"""Inputs and results up to this size are copied; that takes a microsecond or two."""

KEPT: Final = 4
"""Most graphs of a program."""

SEEN: Final = 16
"""Most keys that are remembered until they come again."""

ATTEMPTS: Final = 2
"""After this many failed recordings a program is done step by step."""


class Refusal(Enum):
    """The reason why a program is never a graph; its value is the place of its count, see `board.GraphCounts`."""

    STEP = 4
    """A step is declared as one that cannot be recorded, or there are branches or loops."""
    CAPTURE = 5
    """The device has refused to record it."""
    MEMORY = 6
    """There is no room for its buffers."""


class Way(Enum):
    """The way to do a run."""

    FIRST = "first"
    """Step by step; its allocations are measured."""
    PLAIN = "plain"
    """Step by step."""
    BUSY = "busy"
    """Step by step, since the last run's verdict has not been read."""
    CAPTURE = "capture"
    """It is recorded, then launched."""
    REPLAY = "replay"
    """The graph is launched."""


class Recorded(Protocol):
    """A recorded graph that is kept."""

    @property
    def unread(self) -> bool:
        """Whether a verdict of its last run is still to be read."""


G = TypeVar("G", bound=Recorded)


class GraphTable(Generic[G]):
    """The graphs of one program.

    Args:
        refusal: Why it can have no graphs, if so.
        kept: Most graphs to keep.
    """

    def __init__(self, refusal: Refusal | None = None, kept: int = KEPT) -> None:
        self.refusal = refusal
        self.told = False
        """Whether the refusal has been counted."""
        self._kept = kept
        self._graphs: OrderedDict[Hashable, G] = OrderedDict()
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        """Bytes that a run with each key has allocated."""
        self._failures = 0

    def __len__(self) -> int:
        return len(self._graphs)

    def decide(self, key: Hashable) -> Way:
        """Return the way to do a run."""
        if self.refusal is not None:
            return Way.PLAIN
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            return Way.BUSY if graph.unread else Way.REPLAY
        return Way.CAPTURE if key in self._seen else Way.FIRST

    def measured(self, key: Hashable, nbytes: int) -> None:
        """Note the bytes that the first run with a key has allocated, beyond the program's own declarations."""
        self._seen[key] = nbytes
        if len(self._seen) > SEEN:
            self._seen.popitem(last=False)

    def needs(self, key: Hashable) -> int:
        """Return the bytes that such a run allocates."""
        return self._seen[key]

    def graph(self, key: Hashable) -> G:
        """Return the graph to launch for a run."""
        return self._graphs[key]

    def keep(self, key: Hashable, graph: G) -> int:
        """Keep a graph; return how many were dropped for it. A graph with an unread verdict is never dropped."""
        self._failures = 0
        self._graphs[key] = graph
        dropped = 0
        for old in [*self._droppable(key)][: max(0, len(self._graphs) - self._kept)]:
            del self._graphs[old]
            dropped += 1
        return dropped

    def failed(self, refusal: Refusal) -> bool:
        """Record that a graph could not be recorded; return whether that was the last attempt."""
        self._failures += 1
        if self._failures >= ATTEMPTS:
            self.refusal = refusal
        return self.refusal is not None

    def _droppable(self, but: Hashable) -> Iterator[Hashable]:
        return (key for key, graph in self._graphs.items() if key != but and not graph.unread)
