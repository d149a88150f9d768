"""A queue with priorities, and fair shares among owners of equal priority. Pure.

Among equal priorities it does start-time fair queueing (Goyal, Vin and Cheng, 1996), with costs that are known
afterwards: each owner has a virtual time, which a cost advances by its size over the owner's weight. The owner with the
earliest virtual time is next.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

T = TypeVar("T")


def equally(_owner: Hashable) -> float:
    """Return the same weight for all owners."""
    return 1.0


class FairQueue(Generic[T]):
    """Items of several owners. Items of one owner and priority come out in the order in which they went in.

    With one owner and no priority it is a plain queue. Then `levels` is empty, otherwise `plain` is; checking these
    costs less than a call.

    Owners with an equal attribute `group`, other than None, share one weight: a charge to one is a charge to all.

    Args:
        weigh: Returns an owner's weight, above 0. Between two owners with waiting items, one of twice the weight gets
        twice as much. Called when an owner comes.
    """

    __slots__ = ("_count", "_owner", "_weigh", "levels", "plain")

    def __init__(self, weigh: Callable[[Hashable], float] = equally) -> None:
        self.plain: deque[T] = deque()
        """All items, while they belong to one owner and have priority 0."""
        self._owner: Hashable = None
        """The owner of the plain items."""
        self.levels: dict[int, _Level[T]] = {}
        """All items by priority, unless they are plain."""
        self._count = 0
        """Number of items in the levels."""
        self._weigh = weigh

    def __len__(self) -> int:
        return len(self.plain) or self._count

    def add(self, item: T, owner: Hashable, priority: int = 0) -> None:
        """Let an item wait."""
        if not self.levels:
            if priority == 0 and (owner is self._owner or not self.plain or owner == self._owner):
                self._owner = owner
                self.plain.append(item)
                return
            self._sort_in()
        self._put(item, owner, priority)

    def put_back(self, item: T, owner: Hashable, priority: int = 0) -> None:
        """Let an item that was just taken, or its rest, wait again before its owner's other items."""
        self.add(item, owner, priority)
        items = self.levels[priority].shares[owner].items if self.levels else self.plain
        items.rotate()

    def pop(self) -> T:
        """Remove and return the next item.

        Raises:
            IndexError: The queue is empty.
        """
        if not self.levels:
            return self.plain.popleft()
        priority = max(self.levels)
        share = self.levels[priority].first(_any)
        assert share is not None  # a level has items
        return self._next(priority, share)

    def take(self, is_ready: Callable[[T], bool]) -> T | None:
        """Return the next item that is ready, None if there is none; an owner that has to wait holds up no other."""
        if not self.levels:
            return self.plain.popleft() if self.plain and is_ready(self.plain[0]) else None
        for priority in sorted(self.levels, reverse=True):
            share = self.levels[priority].first(is_ready)
            if share is not None:
                return self._next(priority, share)
        return None

    def heads(self) -> Iterator[T]:
        """Yield the first item of each owner and priority."""
        if self.plain:
            yield self.plain[0]
        for level in self.levels.values():
            for share in level.shares.values():
                if share.items:
                    yield share.items[0]

    def charge(self, owner: Hashable, cost: int, *same: Hashable) -> None:
        """Charge an owner; the others come first until they have had as much, each for its weight.

        Of no effect on a plain queue.

        Args:
            owner: The owner; of those that have had as much, it comes last now.
            cost: Its cost.
            *same: Owners that stand for the same one, of the same weight and group, and are charged as one with it.
        """
        for level in self.levels.values():
            more = 0.0
            group = None
            for each in (owner, *same):
                share = level.shares.get(each)
                if share is None:
                    continue
                if each is owner:
                    share.turn = level.turn()
                more, group = cost / share.weight, share.group
                if group is None:
                    share.had += more
                else:
                    share.own += more
            if group is not None:
                for share in level.shares.values():
                    if share.group == group:
                        share.had += more

    def _sort_in(self) -> None:
        """Turn a plain queue into levels."""
        for item in self.plain:
            self._put(item, self._owner, 0)
        self.plain.clear()

    def _put(self, item: T, owner: Hashable, priority: int) -> None:
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = _Level()
        share = level.shares.get(owner)
        if share is None:
            share = level.join(owner, self._weigh(owner))
        elif not share.items:
            share.had = max(share.had, level.had)  # no owner saves up time in which it asked for nothing
            level.meet(share)
        share.items.append(item)
        level.count += 1
        self._count += 1

    def _next(self, priority: int, share: _Share[T]) -> T:
        level = self.levels[priority]
        level.had = max(level.had, share.had)
        if share.group is not None:
            level.turns[share.group] = max(level.turns.get(share.group, 0.0), share.own)
        level.count -= 1
        self._count -= 1
        if not level.count:
            del self.levels[priority]
        return share.items.popleft()


class _Level(Generic[T]):
    """The items of one priority.

    An owner without items stays until the owners with items have had as much: so an owner that always has a single item
    gets no more than its share.
    """

    __slots__ = ("_heap", "_numbers", "count", "had", "shares", "turns")

    def __init__(self) -> None:
        self.shares: dict[Hashable, _Share[T]] = {}
        self.had = 0.0
        """Virtual time of the last owner to come out; a new owner starts here, with neither an advantage nor a debt."""
        self.count = 0
        """Number of items."""
        self.turns: dict[Hashable, float] = {}
        """Virtual times within each group, as `had` is among groups."""
        self._heap: list[tuple[float, float, int, _Share[T]]] = []
        """Each share once, by what it had when it was put here, which is at most what it has had by now; among those of
        a group, which have the same, by what each has had itself; then by their latest turns, so that equals take
        turns."""
        self._numbers = itertools.count()

    def join(self, owner: Hashable, weight: float) -> _Share[T]:
        """Return a new owner's share."""
        share = self.shares[owner] = _Share[T](owner, self.had, weight)
        share.turn = self.turn()
        self.meet(share)
        heappush(self._heap, (share.had, share.own, share.turn, share))
        return share

    def turn(self) -> int:
        """Return the number of a turn, later than all before."""
        return next(self._numbers)

    def meet(self, share: _Share[T]) -> None:
        """Give a share that comes, or comes back, no turns saved up beside the others of its group."""
        if share.group is not None:
            share.own = max(share.own, self.turns.get(share.group, 0.0))

    def first(self, is_ready: Callable[[T], bool]) -> _Share[T] | None:
        """Return the first share whose next item is ready, None if no share has one."""
        heap = self._heap
        passed: list[tuple[float, float, int, _Share[T]]] = []
        found = None
        while heap:
            had, own, turn, share = heap[0]
            if share.had > had or share.own > own or share.turn > turn:
                heapreplace(heap, (share.had, share.own, share.turn, share))
            elif share.items and is_ready(share.items[0]):
                found = share
                break
            elif share.items or passed:
                passed.append(heappop(heap))
            else:  # no share with items has had less
                heappop(heap)
                del self.shares[share.owner]
        for entry in passed:
            heappush(heap, entry)
        return found


class _Share(Generic[T]):
    """The items of one owner."""

    __slots__ = ("group", "had", "items", "own", "owner", "turn", "weight")

    def __init__(self, owner: Hashable, had: float, weight: float) -> None:
        self.owner = owner
        self.items: deque[T] = deque()
        self.had = had
        """Its virtual time: its charges over its weight."""
        self.weight = weight
        self.own = 0.0
        """Its own charges, within a group."""
        self.turn = 0
        """Number of its latest turn."""
        self.group: Hashable = getattr(owner, "group", None)
        """The group of owners that are charged together."""


def _any(_item: object) -> bool:
    return True
