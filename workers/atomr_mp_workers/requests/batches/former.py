"""Forms batches: which items wait, when a batch is due, and which items it takes. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from atomr_mp_workers.requests.fair_queue import FairQueue, equally

T = TypeVar("T")

NEVER_NS: Final = 2**63

MOST_PASSED: Final = 16
"""How many full batches may go before one that is due and not full. Otherwise many keys with few items each would leave
most of each batch empty just under overload."""


class BatchLimits(NamedTuple):
    """The limits that close a batch."""

    max_items: int
    max_bytes: int | None
    max_wait_ns: int


class Waiting(NamedTuple, Generic[T]):
    """An item that waits for a batch."""

    item: T
    owner: Hashable
    priority: int
    nbytes: int
    items: int
    since_ns: int


class BatchFormer(Generic[T]):
    """Items on their way into batches. Each added item is taken once.

    Only items of one key share a batch; items of higher priority come first, whatever their key, and owners take turns.
    Among keys whose items have the same priority, those with a full batch come first, and no key is passed over more
    than `MOST_PASSED` times.

    Args:
        limits: The limits of a batch. A single item may exceed the bytes; it is alone then.
        is_gone: Whether an item needs no work any more; it is taken with the next batch, but does not count in it.
        is_ready: Whether an item can be in a batch now; if not, it and its owner's later items wait for another batch.
        weigh: Returns an owner's weight, see `FairQueue`.
        split: Splits an item that counts for several after so many. None if items are not cut: one that counts for more
            than a batch has room for waits for another.
        may_pass: Returns whether an item does not wait behind items of its owner that are not ready, see `FairQueue`.
    """

    def __init__(
        self,
        limits: BatchLimits,
        is_gone: Callable[[T], bool],
        is_ready: Callable[[T], bool],
        weigh: Callable[[Hashable], float] = equally,
        split: Callable[[T, int], tuple[T, T]] | None = None,
        may_pass: Callable[[T], bool] = lambda _item: False,
    ) -> None:
        self._limits = limits
        self._is_gone = is_gone
        self._is_ready = is_ready
        self._split = split
        self._weigh = weigh
        self._may_pass = may_pass
        self._kinds: dict[Hashable, _Kind[T]] = {}
        """Kinds by key; the key of the latest batch is last."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        item: T,
        *,
        key: Hashable = None,
        owner: Hashable = None,
        priority: int = 0,
        nbytes: int,
        items: int = 1,
        now_ns: int,
    ) -> None:
        """Let an item wait.

        Args:
            item: The item.
            key: The key that items of one batch share.
            owner: Its owner.
            priority: Items of a higher priority come first.
            nbytes: The bytes that it counts for.
            items: How many items it counts for. What is cut counts for several only without a bound on bytes; what is
                not counts for at most as many as a batch has.
            now_ns: When it came; not earlier than the item before.
        """
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(FairQueue(self._weigh, lambda each: self._may_pass(each.item)))
        kind.line.add(Waiting(item, owner, priority, nbytes, items, now_ns), owner, priority)
        kind.nbytes += nbytes
        kind.items += items
        self._count += 1

    def hurry(self) -> None:
        """Let no item wait for others from now on."""
        self._limits = self._limits._replace(max_wait_ns=0)

    def take(self, now_ns: int, *, full: bool = False) -> list[Waiting[T]]:
        """Return the next batch: a full one, or one whose oldest item has waited long enough; empty if there is none.

        Args:
            now_ns: The time.
            full: Whether to return only a full batch, or one that was passed over as often as may be.
        """
        due = [(key, kind) for key, kind in self._kinds.items() if self._due_ns(kind, full=False) <= now_ns]
        if len(due) > 1:
            due.sort(key=lambda each: (-each[1].line.top, each[1].passed < MOST_PASSED, not self._is_full(each[1])))
        for key, kind in due:
            if full and self._due_ns(kind, full=True) > now_ns:
                continue
            batch = self._cut(kind)
            if batch or not kind.line:
                del self._kinds[key]
            if batch:
                for _, other in due:
                    other.passed += 1
                kind.passed = 0
                if kind.line:
                    self._kinds[key] = kind  # behind the other keys
                return batch
        return []

    def due_ns(self, now_ns: int, *, full: bool = False) -> int | None:
        """Return when `take` has a batch if nothing else happens; None if it needs another event."""
        dues = [
            due_ns
            for kind in self._kinds.values()
            if (due_ns := self._due_ns(kind, full=full)) > now_ns or any(map(self._is_movable, kind.line.candidates()))
        ]
        due_ns = min(dues, default=NEVER_NS)
        return None if due_ns == NEVER_NS else due_ns

    def is_held_up(self) -> bool:
        """Return whether the next item of an owner is not ready."""
        return not all(self._is_movable(each) for kind in self._kinds.values() for each in kind.line.heads())

    def _due_ns(self, kind: _Kind[T], *, full: bool) -> int:
        if self._is_full(kind):
            return 0
        if full and kind.passed < MOST_PASSED:
            return NEVER_NS
        return min(each.since_ns for each in kind.line.heads()) + self._limits.max_wait_ns

    def _is_full(self, kind: _Kind[T]) -> bool:
        limits = self._limits
        return kind.items >= limits.max_items or (limits.max_bytes is not None and kind.nbytes >= limits.max_bytes)

    def _cut(self, kind: _Kind[T]) -> list[Waiting[T]]:
        """Take the next batch of a kind."""
        limits, line, is_gone, is_ready = self._limits, kind.line, self._is_gone, self._is_ready
        is_whole = self._split is None
        batch: list[Waiting[T]] = []
        count = nbytes = 0
        gone = False

        def fits(each: Waiting[T]) -> bool:
            nonlocal gone
            gone = is_gone(each.item)
            if gone:
                return True
            if limits.max_bytes is not None and count and nbytes + each.nbytes > limits.max_bytes:
                return False
            if is_whole and count and count + each.items > limits.max_items:
                return False
            return is_ready(each.item)

        while count < limits.max_items and (each := line.take(fits)) is not None:
            room = limits.max_items - count
            if line.levels:  # others wait too, so no owner may take all the room at a time
                room = -(-room // 2)
            taken = each if is_whole or gone or each.items <= room else self._part(kind, each, room)
            batch.append(taken)
            kind.nbytes -= taken.nbytes
            kind.items -= taken.items
            if not gone:
                if line.levels:
                    line.charge(taken.owner, taken.items)
                count += taken.items
                nbytes += taken.nbytes
        self._count -= len(batch)
        return batch

    def _part(self, kind: _Kind[T], each: Waiting[T], items: int) -> Waiting[T]:
        """Return a part of an item that counts for more; the rest waits on."""
        assert self._split is not None  # only a former with `split` has such items
        item, rest = self._split(each.item, items)
        kind.line.put_back(each._replace(item=rest, items=each.items - items), each.owner, each.priority)
        self._count += 1
        return each._replace(item=item, items=items)

    def _is_movable(self, each: Waiting[T]) -> bool:
        return self._is_gone(each.item) or self._is_ready(each.item)


class _Kind(Generic[T]):
    """The items of one key."""

    __slots__ = ("items", "line", "nbytes", "passed")

    def __init__(self, line: FairQueue[Waiting[T]]) -> None:
        self.line = line
        self.items = 0
        self.nbytes = 0
        self.passed = 0
        """How many batches have gone before this kind since it was due, or since its last batch."""
