"""Rank 0's choice of the next call that runs by itself: clients take turns, each by its weight. Pure.

A call whose deadline has passed when its turn comes is passed over: no member runs it.

A call costs what calls of its method usually take. A few calls are published ahead of the slowest member, so that none
of its threads waits for rank 0; but not many that take long, since nobody comes between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from atomr_mp_workers.requests.batches.former import NEVER_NS
from atomr_mp_workers.requests.fair_queue import FairQueue
from atomr_mp_workers.requests.method import UNKNOWN_NS
from atomr_mp_workers.worlds.order.steps import PartKey

AHEAD_NS: Final = 2_000_000
"""Calls that are published and not ended take so long together, or there is one of them alone that waits."""

LEAST_AHEAD: Final = 2
"""So many may be published and not ended, however long they take: one that runs, and the next one."""


class TypicalTime(Protocol):
    """What tells how long a method takes."""

    typical_ns: int
    """How long, or `UNKNOWN_NS`."""


class CallFacts(NamedTuple):
    """What rank 0 has to know of its part of a call to give it a turn."""

    owner: Hashable
    """The session; sessions take turns by their weights."""
    method: TypicalTime
    deadline_ns: int = NEVER_NS
    """When the call is not to begin any longer, CLOCK_MONOTONIC."""

    @property
    def cost_ns(self) -> int:
        """How long the call may take, by what is known now; so long that it is not published ahead if nothing is."""
        typical_ns = self.method.typical_ns
        return AHEAD_NS if typical_ns == UNKNOWN_NS else typical_ns


class OrderOfCalls:
    """The complete calls, until they are published.

    Args:
        weigh: Returns an owner's weight.
    """

    def __init__(self, weigh: Callable[[Hashable], float] = attrgetter("weight")) -> None:
        self.late: Final[list[PartKey]] = []
        """Calls that `next` has passed over, for the caller to take: their turn has come behind their deadline."""
        self._facts: dict[PartKey, CallFacts] = {}
        """Facts of the calls that were not published yet, those that run in batches too."""
        self._waiting: Final[set[PartKey]] = set()
        """Calls that have come to all."""
        self._queue: Final[FairQueue[PartKey]] = FairQueue(weigh)
        """Those, and dropped ones, which are passed over."""
        self._next: PartKey | None = None
        """The call that is published next, which has left the queue."""
        self._unended: Final[deque[tuple[int, int]]] = deque()
        """Sequence number and cost of calls that not all members have ended."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    def knows(self, key: PartKey) -> bool:
        """Return whether rank 0 has a part of a call that was neither published nor dropped, of whatever kind."""
        return key in self._facts

    def know(self, key: PartKey, facts: CallFacts) -> None:
        """Take in what a call's part is, before all members have noted theirs."""
        self._facts[key] = facts

    def forget(self, key: PartKey) -> None:
        """Take in that a call will not run, or is not of this kind."""
        self._facts.pop(key, None)
        self._waiting.discard(key)
        if self._next == key:
            self._next = None

    def add(self, key: PartKey) -> None:
        """Let a call wait that has come to all members."""
        self._waiting.add(key)
        self._queue.add(key, self._of(key).owner)

    def cancel(self, session: int) -> list[PartKey]:
        """Drop the calls of a session, and return those that had come to all members."""
        found = [key for key in self._waiting if key[0] == session]
        for key in [*found, *[key for key in self._facts if key[0] == session]]:
            self.forget(key)
        return found

    def clear(self) -> None:
        """Drop all calls."""
        for key in [*self._waiting, *self._facts]:
            self.forget(key)

    def next(self, ended: int, now_ns: int) -> PartKey | None:
        """Return the call that is published next, the same one until it is, or late; None if none may be now.

        Args:
            ended: The sequence number up to which all members have ended all.
            now_ns: The time.
        """
        while self._unended and self._unended[0][0] <= ended:
            self._unended.popleft()
        ahead_ns = sum([cost for _, cost in self._unended])
        if len(self._unended) >= LEAST_AHEAD and ahead_ns >= AHEAD_NS:
            return None
        while self._waiting:
            key = self._queue.pop() if self._next is None else self._next
            if key not in self._waiting:
                continue  # it was dropped
            if now_ns <= self._of(key).deadline_ns:
                self._next = key
                return key
            self.forget(key)
            self.late.append(key)
        return None

    def published(self, sequence: int) -> None:
        """Take in that the next call was published as this entry."""
        key, self._next = self._next, None
        assert key is not None
        facts = self._of(key)
        cost_ns = facts.cost_ns
        self._queue.charge(facts.owner, max(cost_ns, 1))
        self._unended.append((sequence, cost_ns))
        self.forget(key)

    def _of(self, key: PartKey) -> CallFacts:
        return self._facts.get(key) or _UNKNOWN


class _Unknown:
    """Stands for the session and the method of a call without facts."""

    weight = 1.0
    typical_ns = 0


_UNKNOWN: Final = CallFacts(_Unknown, _Unknown)
