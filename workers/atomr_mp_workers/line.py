"""What waits for its turn: higher priorities first, and among equals whoever has had the least. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Line(Generic[T]):
    """Items of several owners. Those of one owner and priority come out in the order in which they went in.

    As long as there is one owner, and no priority, it is a plain queue. Then there is nothing in `levels`, otherwise
    nothing in `plain`; to look there costs less than to call.
    """

    __slots__ = ("_count", "_owner", "levels", "plain")

    def __init__(self) -> None:
        self.plain: deque[T] = deque()
        """All items, while they are of one owner and of priority 0."""
        self._owner: Hashable = None
        """Whose these are."""
        self.levels: dict[int, _Level[T]] = {}
        """All items, otherwise; by priority."""
        self._count = 0
        """Of the items in the levels."""

    def __len__(self) -> int:
        return len(self.plain) or self._count

    def add(self, item: T, owner: Hashable, priority: int = 0) -> None:
        """Let an item wait."""
        if not self.levels:
            if priority == 0 and (owner is self._owner or not self.plain):
                self._owner = owner
                self.plain.append(item)
                return
            self._sort_in()
        self._put(item, owner, priority)

    def pop(self) -> T:
        """Return what comes next, which is no longer in the line.

        Raises:
            IndexError: There is nothing.
        """
        if not self.levels:
            return self.plain.popleft()
        priority = max(self.levels)
        return self._next(priority, self.levels[priority].order()[0])

    def take(self, is_ready: Callable[[T], bool]) -> T | None:
        """Return the next item that is ready, None if there is none; who has to wait makes nobody else wait."""
        if not self.levels:
            return self.plain.popleft() if self.plain and is_ready(self.plain[0]) else None
        for priority in sorted(self.levels, reverse=True):
            for share in self.levels[priority].order():
                if is_ready(share.items[0]):
                    return self._next(priority, share)
        return None

    def heads(self) -> Iterator[T]:
        """Yield the first item of each owner and priority."""
        if self.plain:
            yield self.plain[0]
        for level in self.levels.values():
            for share in level.shares.values():
                yield share.items[0]

    def charge(self, owner: Hashable, cost: int) -> None:
        """Note what an owner has had; the others come first until they have had as much.

        Of no effect on a plain queue.
        """
        for level in self.levels.values():
            share = level.shares.get(owner)
            if share is not None:
                share.had += cost

    def _sort_in(self) -> None:
        """Give up being a plain queue."""
        for item in self.plain:
            self._put(item, self._owner, 0)
        self.plain.clear()

    def _put(self, item: T, owner: Hashable, priority: int) -> None:
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = _Level()
        share = level.shares.get(owner)
        if share is None:
            share = level.shares[owner] = _Share(owner, level.had)
        share.items.append(item)
        self._count += 1

    def _next(self, priority: int, share: _Share[T]) -> T:
        level = self.levels[priority]
        level.had = max(level.had, share.had)
        item = share.items.popleft()
        self._count -= 1
        if not share.items:
            del level.shares[share.owner]
            if not level.shares:
                del self.levels[priority]
        return item


class _Level(Generic[T]):
    """The items of one priority."""

    __slots__ = ("had", "shares")

    def __init__(self) -> None:
        self.shares: dict[Hashable, _Share[T]] = {}
        self.had = 0
        """What whoever came last has had: who joins is to have neither an advantage nor a debt."""

    def order(self) -> list[_Share[T]]:
        """Return who comes first, second, and so on."""
        return sorted(self.shares.values(), key=_had)


class _Share(Generic[T]):
    """The items of one owner."""

    __slots__ = ("had", "items", "owner")

    def __init__(self, owner: Hashable, had: int) -> None:
        self.owner = owner
        self.items: deque[T] = deque()
        self.had = had


def _had(share: _Share[T]) -> int:
    return share.had
