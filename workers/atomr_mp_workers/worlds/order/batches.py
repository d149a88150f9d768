"""Rank 0's choice of the calls that run together: which complete calls of batched methods share an entry. Pure.

A batch is formed as late as it can be published. Of each method, two batches at most are published and not ended by
all members, the second only if it is full: so calls that come meanwhile still share a batch. A call whose deadline has
passed by then, or that its caller has cancelled, is left out. Once a batch is published, all of its calls run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Final, NamedTuple

from atomr_mp.protocol.world.page import MAX_REQUESTS
from atomr_mp_workers.requests.batches.former import NEVER_NS, BatchFormer, BatchLimits
from atomr_mp_workers.worlds.order.steps import PartKey

MOST_AHEAD: Final = 2
"""Most batches of a method that not all members have ended."""


class BatchedPart(NamedTuple):
    """What rank 0 has to know of its part of a call to put it into a batch."""

    method: str
    limits: BatchLimits
    group: Hashable
    """Calls of one group share a batch."""
    owner: Hashable
    """The session; sessions take turns by their weights."""
    nbytes: int
    deadline_ns: int = NEVER_NS
    """When the call is not to begin any longer, CLOCK_MONOTONIC."""


class OrderOfBatches:
    """The complete calls of batched methods, until they are published.

    Args:
        weigh: Returns an owner's weight.
    """

    def __init__(self, weigh: Callable[[Hashable], float] = attrgetter("weight")) -> None:
        self._weigh: Final = weigh
        self.late: Final[list[PartKey]] = []
        """Calls that `next` has left out, for the caller to take: a batch has come behind their deadline."""
        self._known: dict[PartKey, BatchedPart] = {}
        """Parts of calls that have not come to all members."""
        self._methods: dict[str, _Method] = {}
        """By name; the method of the latest batch is last."""
        self._chosen: list[PartKey] = []
        """The batch that is published next."""
        self._chosen_of = ""
        self.wait_for_end = False
        """Whether a batch is due that was not published: members have to end something first."""
        self.due_ns: int | None = None
        """When the next batch is due; None if one waits for members, or none waits."""

    def know(self, key: PartKey, part: BatchedPart) -> None:
        """Take in what a call's part is, before all members have noted theirs."""
        self._known[key] = part

    def forget(self, key: PartKey) -> None:
        """Take in that a call will not run."""
        self._known.pop(key, None)

    def add(self, key: PartKey, now_ns: int) -> bool:
        """Let a call wait that has come to all members; return False if it is of no batched method."""
        part = self._known.pop(key, None)
        if part is None:
            return False
        method = self._methods.get(part.method)
        if method is None:
            method = self._methods[part.method] = _Method(part.limits, self._weigh)
        method.waiting[key] = part.deadline_ns
        method.former.add(key, key=part.group, owner=part.owner, nbytes=part.nbytes, now_ns=now_ns)
        return True

    def cancel(self, session: int) -> list[PartKey]:
        """Drop the calls of a session, and return those that had come to all members."""
        self._known = {key: part for key, part in self._known.items() if key[0] != session}
        found = [key for key in self._chosen if key[0] == session]
        self._chosen = [key for key in self._chosen if key[0] != session]
        for method in self._methods.values():
            gone = [key for key in method.waiting if key[0] == session]
            for key in gone:
                del method.waiting[key]
            found += gone
        return found

    def drop(self, key: PartKey) -> bool:
        """Drop a call that has come to all members; return whether there was one."""
        if key in self._chosen:
            self._chosen.remove(key)
            return True
        return any(method.waiting.pop(key, None) is not None for method in self._methods.values())

    def clear(self) -> None:
        """Drop all calls."""
        self._known.clear()
        self._methods.clear()
        self._chosen = []
        self.wait_for_end, self.due_ns = False, None

    def look(self, now_ns: int) -> None:
        """Notice which batches are due."""
        if not self._methods:
            return
        dues = [due for each in self._methods.values() if (due := each.former.due_ns(now_ns)) is not None]
        self.wait_for_end = bool(self._chosen) or any(due <= now_ns for due in dues)
        self.due_ns = min([due for due in dues if due > now_ns], default=None)

    def next(self, now_ns: int, ended: int) -> list[PartKey]:
        """Return the batch that is published next, the same one until it is; empty if none may be now.

        Args:
            now_ns: The time.
            ended: The sequence number up to which all members have ended all.
        """
        if not self._chosen:
            for name, method in self._methods.items():
                self._chosen, late = method.take(now_ns, ended)
                self._chosen_of = name
                self.late.extend(late)
                if self._chosen:
                    break
        return self._chosen

    def published(self, sequence: int, now_ns: int) -> None:
        """Take in that the next batch was published as this entry."""
        method = self._methods.pop(self._chosen_of)
        method.unended.append(sequence)
        self._methods[self._chosen_of] = method
        self._chosen = []
        self.look(now_ns)


class _Method:
    """The waiting calls and the unended batches of a method."""

    def __init__(self, limits: BatchLimits, weigh: Callable[[Hashable], float]) -> None:
        self.waiting: Final[dict[PartKey, int]] = {}
        """The calls in the former that still have to run, with their deadlines."""
        self._now_ns = 0
        self.unended: Final[deque[int]] = deque()
        """Sequence numbers of the batches that not all members have ended."""
        limits = limits._replace(max_items=min(limits.max_items, MAX_REQUESTS))
        self.former: Final[BatchFormer[PartKey]] = BatchFormer(
            limits, lambda key: self.waiting.get(key, -1) < self._now_ns, lambda _key: True, weigh
        )

    def take(self, now_ns: int, ended: int) -> tuple[list[PartKey], list[PartKey]]:
        """Return the next batch if it may be published now, and calls that were too late for it."""
        while self.unended and self.unended[0] <= ended:
            self.unended.popleft()
        if len(self.unended) >= MOST_AHEAD:
            return [], []
        self._now_ns = now_ns
        batch: list[PartKey] = []
        late: list[PartKey] = []
        while not batch and (taken := self.former.take(now_ns, full=bool(self.unended))):
            for each in taken:
                due_ns = self.waiting.pop(each.item, None)
                if due_ns is not None:
                    (batch if now_ns <= due_ns else late).append(each.item)
        return batch, late
