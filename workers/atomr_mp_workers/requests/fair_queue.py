"""A queue with priorities, and fair shares among owners of equal priority. Pure.

Among equal priorities it does start-time fair queueing (Goyal, Vin and Cheng, 1996), with costs that are known
afterwards: each owner has a virtual time, which a cost advances by its size over the owner's weight. The owner with the
earliest virtual time is next. It is done twice where owners form a group: among groups, and within each.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import Final, Generic, TypeVar

T = TypeVar("T")


def equally(_owner: Hashable) -> float:
    """Return the same weight for all owners."""
    return 1.0


class FairQueue(Generic[T]):
    """Items of several owners. Items of one owner and priority come out in the order in which they went in.

    An owner may keep lines beside its own for items that must not wait behind each other: an item's owner is then any
    object with the attribute `account`, the owner that it stands for. The lines of one owner take turns.

    With one owner and no priority it is a plain queue. Then `levels` is empty, otherwise `plain` is; checking these
    costs less than a call.

    Owners with an equal attribute `group`, other than None, share one weight, and take turns within it.

    Args:
        weigh: Returns an owner's weight, above 0. Between two owners with waiting items, one of twice the weight gets
            twice as much. Called when an owner comes.
        may_pass: Returns whether an item, once it is ready, passes those before it while the first of these is not
            ready. It returns the same for an item each time. None: no item does.
    """

    __slots__ = ("_count", "_may_pass", "_owner", "_passing", "_weigh", "levels", "plain")

    def __init__(
        self, weigh: Callable[[Hashable], float] = equally, may_pass: Callable[[T], bool] | None = None
    ) -> None:
        self.plain: deque[T] = deque()
        """All items, while they belong to one owner and have priority 0."""
        self._owner: Hashable = None
        """The owner of the plain items."""
        self.levels: dict[int, _Level[T]] = {}
        """All items by priority, unless they are plain."""
        self._count = 0
        """Number of items in the levels."""
        self._weigh = weigh
        self._may_pass = may_pass
        self._passing = 0
        """Number of items that may pass others."""

    def __len__(self) -> int:
        return len(self.plain) or self._count

    @property
    def top(self) -> int:
        """The highest priority of an item; 0 if there is none."""
        return max(self.levels) if self.levels else 0

    def add(self, item: T, owner: Hashable, priority: int = 0) -> None:
        """Let an item wait."""
        if self._may_pass is not None and self._may_pass(item):
            self._passing += 1
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
        items = self.levels[priority].lines[owner].items if self.levels else self.plain
        items.rotate()

    def pop(self) -> T:
        """Remove and return the next item.

        Raises:
            IndexError: The queue is empty.
        """
        if not self.levels:
            return self._gone(self.plain.popleft())
        priority = max(self.levels)
        line = self.levels[priority].first(_any)
        assert line is not None  # a level has items
        return self._next(priority, line)

    def take(self, is_ready: Callable[[T], bool]) -> T | None:
        """Return the next item that is ready, None if there is none; an owner that has to wait holds up no other."""
        may_pass = self._may_pass if self._passing else None
        if not self.levels:
            return (
                self._gone(self.plain.popleft()) if self.plain and _has_ready(self.plain, is_ready, may_pass) else None
            )
        for priority in sorted(self.levels, reverse=True):
            line = self.levels[priority].first(is_ready, may_pass)
            if line is not None:
                return self._next(priority, line)
        return None

    def heads(self) -> Iterator[T]:
        """Yield the first item of each owner and priority."""
        if self.plain:
            yield self.plain[0]
        for level in self.levels.values():
            for line in level.lines.values():
                if line.items:
                    yield line.items[0]

    def items(self) -> Iterator[T]:
        """Yield all items."""
        yield from self.plain
        for level in self.levels.values():
            for line in level.lines.values():
                yield from line.items

    def candidates(self) -> Iterator[T]:
        """Yield the items that may be next: the first of each owner and priority, and those that may pass others."""
        yield from self.heads()
        if self._passing and self._may_pass is not None:
            lines = [self.plain, *[line.items for level in self.levels.values() for line in level.lines.values()]]
            for line in lines:
                yield from filter(self._may_pass, itertools.islice(line, 1, None))

    def charge(self, owner: Hashable, cost: int) -> None:
        """Charge an owner; the others come first until they have had as much, each for its weight.

        Of no effect on a plain queue.

        Args:
            owner: The owner, not one of its further lines.
            cost: Its cost.
        """
        for level in self.levels.values():
            account = level.accounts.get(owner)
            if account is None:
                continue
            more = cost / account.weight
            account.had += more
            if account.party is not account:
                account.party.had += more

    def _sort_in(self) -> None:
        """Turn a plain queue into levels."""
        for item in self.plain:
            self._put(item, self._owner, 0)
        self.plain.clear()

    def _put(self, item: T, owner: Hashable, priority: int) -> None:
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = _Level()
        line = level.lines.get(owner)
        if line is None:
            line = level.join(owner, self._weigh)
        line.items.append(item)
        level.count += 1
        self._count += 1

    def _next(self, priority: int, line: _Line[T]) -> T:
        level = self.levels[priority]
        level.give_turn(line)
        level.count -= 1
        self._count -= 1
        if not level.count:
            del self.levels[priority]
        return self._gone(line.items.popleft())

    def _gone(self, item: T) -> T:
        """Take in that an item leaves, and return it."""
        if self._passing and self._may_pass is not None and self._may_pass(item):
            self._passing -= 1
        return item


class _Account:
    """What an owner, or a group of owners, has had."""

    __slots__ = ("had", "latest", "lines", "name", "party", "weight")

    def __init__(self, name: Hashable, had: float, weight: float, group: _Account | None) -> None:
        self.name: Final = name
        self.had = had
        """Virtual time: the charges over the weight."""
        self.latest = 0.0
        """Of a group: virtual time of the last of its owners to come out."""
        self.lines = 0
        """Number of lines."""
        self.weight = weight
        self.party: Final = group or self
        """The account of its group, itself if it has none."""


class _Line(Generic[T]):
    """Items of one owner that wait for each other."""

    __slots__ = ("account", "items", "owner", "turn")

    def __init__(self, owner: Hashable, account: _Account, turn: int) -> None:
        self.owner = owner
        self.items: deque[T] = deque()
        self.account = account
        self.turn = turn
        """Number of its latest turn; of the turn before which it came, if it has had none."""


class _Level(Generic[T]):
    """The items of one priority.

    A line without items stays until the owners with items have had as much, and so does its owner's account. An owner
    that always has a single item so gets no more than its share.
    """

    __slots__ = ("_groups", "_heap", "_numbers", "accounts", "count", "had", "lines")

    def __init__(self) -> None:
        self.lines: dict[Hashable, _Line[T]] = {}
        """Lines by the owners of their items."""
        self.accounts: dict[Hashable, _Account] = {}
        """Accounts of all owners that have lines. All lines of an owner have one account: none of them can be ahead of
        the others by what the owner has had before it came."""
        self._groups: dict[Hashable, _Account] = {}
        self.had = 0.0
        """Virtual time of the last owner to come out; a new owner starts here, with neither an advantage nor a debt."""
        self.count = 0
        """Number of items."""
        self._heap: list[tuple[float, float, int, _Line[T]]] = []
        """Each line once, by what its group has had, then its owner, then by its latest turn; as they were when it was
        put here, and they only grow."""
        self._numbers = itertools.count()

    def join(self, owner: Hashable, weigh: Callable[[Hashable], float]) -> _Line[T]:
        """Return a new line of an owner."""
        of = getattr(owner, "account", owner)
        account = self.accounts.get(of)
        if account is None:
            account = self.accounts[of] = self._open(of, weigh(of))
        account.lines += 1
        if account.party is not account:
            account.party.lines += 1
        line = self.lines[owner] = _Line[T](owner, account, next(self._numbers))
        heappush(self._heap, (account.party.had, account.had, line.turn, line))
        return line

    def give_turn(self, line: _Line[T]) -> None:
        """Give a line its turn. No owner saves up the time in which it had no item that was ready."""
        account = line.account
        party = account.party
        if party.had > self.had:
            self.had = party.had
        else:
            party.had = self.had
        if party is not account:
            party.latest = account.had = max(party.latest, account.had)
        line.turn = next(self._numbers)

    def first(self, is_ready: Callable[[T], bool], may_pass: Callable[[T], bool] | None = None) -> _Line[T] | None:
        """Return the first line whose next item is ready, None if no line has one."""
        heap = self._heap
        passed: list[tuple[float, float, int, _Line[T]]] = []
        found = None
        while heap:
            had, own, turn, line = heap[0]
            account = line.account
            if line.turn > turn or account.had > own or account.party.had > had:
                heapreplace(heap, (account.party.had, account.had, line.turn, line))
            elif line.items and _has_ready(line.items, is_ready, may_pass):
                found = line
                break
            elif line.items or passed:
                passed.append(heappop(heap))
            else:  # no owner with items has had less
                heappop(heap)
                self._leave(line)
        for entry in passed:
            heappush(heap, entry)
        return found

    def _open(self, owner: Hashable, weight: float) -> _Account:
        """Return the account of an owner that comes."""
        key = getattr(owner, "group", None)
        if key is None:
            return _Account(owner, self.had, weight, None)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Account(key, self.had, weight, None)
        return _Account(owner, group.latest, weight, group)

    def _leave(self, line: _Line[T]) -> None:
        """Forget a line, and the accounts that have no other."""
        del self.lines[line.owner]
        account = line.account
        party = account.party
        account.lines -= 1
        if not account.lines:
            del self.accounts[account.name]
        if party is not account:
            party.lines -= 1
            if not party.lines:
                del self._groups[party.name]


def _has_ready(items: deque[T], is_ready: Callable[[T], bool], may_pass: Callable[[T], bool] | None) -> bool:
    """Return whether the first item of a line is ready; if it is not, one that is and may pass becomes the first."""
    if is_ready(items[0]):
        return True
    if may_pass is None:
        return False
    found = next((at for at, each in enumerate(items) if at and may_pass(each) and is_ready(each)), 0)
    if found:
        item = items[found]
        del items[found]
        items.appendleft(item)
    return bool(found)


def _any(_item: object) -> bool:
    return True
