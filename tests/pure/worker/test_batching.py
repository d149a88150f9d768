"""Batches in the making, with a clock that the test moves."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atomr_mp_workers.requests.batches.former import MOST_PASSED, BatchFormer, BatchLimits

WAIT_NS = 1000


class Item(NamedTuple):
    """What waits."""

    number: int
    key: int
    owner: str
    priority: int
    nbytes: int
    since_ns: int
    items: int


class Batches(RuleBasedStateMachine):
    """Items of several owners and keys arrive, become ready or are gone; batches are taken at any time."""

    most_each = 1
    """How many an item may count for."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = BatchLimits(max_items=4, max_bytes=100, max_wait_ns=WAIT_NS)
        self.gone: set[int] = set()
        self.blocked: set[int] = set()
        self.forming: BatchFormer[Item] = BatchFormer(
            self.limits, lambda item: item.number in self.gone, lambda item: item.number not in self.blocked
        )
        self.now_ns = 0
        self.waiting: dict[int, Item] = {}
        self.added = 0
        self.taken: list[Item] = []

    @rule(
        key=st.integers(0, 2),
        owner=st.sampled_from("abc"),
        priority=st.sampled_from((0, 0, 0, 1)),
        nbytes=st.integers(0, 120),
        items=st.integers(1, 4),
        blocked=st.booleans(),
    )
    def add(self, key: int, owner: str, priority: int, nbytes: int, items: int, *, blocked: bool) -> None:
        """Let an item come, perhaps one that has to wait for something else."""
        item = Item(self.added, key, owner, priority, nbytes, self.now_ns, min(items, self.most_each))
        self.added += 1
        self.waiting[item.number] = item
        if blocked:
            self.blocked.add(item.number)
        self.forming.add(
            item, key=key, owner=owner, priority=priority, nbytes=nbytes, items=item.items, now_ns=self.now_ns
        )

    @rule(drawn=st.data())
    def settle(self, drawn: st.DataObject) -> None:
        """Let some become ready, and some be gone."""
        if self.waiting:
            numbers = st.sets(st.sampled_from(sorted(self.waiting)))
            self.blocked -= drawn.draw(numbers)
            self.gone |= drawn.draw(numbers)

    @rule(passed_ns=st.integers(0, 2 * WAIT_NS))
    def wait(self, passed_ns: int) -> None:
        """Let time pass."""
        self.now_ns += passed_ns

    @rule(full=st.booleans())
    def take(self, *, full: bool) -> None:
        """Take a batch, if there is one."""
        due_ns = self.forming.due_ns(self.now_ns, full=full)
        batch = [waiting.item for waiting in self.forming.take(self.now_ns, full=full)]
        assert bool(batch) == (due_ns is not None and due_ns <= self.now_ns), "due is what can be taken"
        for item in batch:
            assert self.waiting.pop(item.number) == item, "each is taken once"
        alive = [item for item in batch if item.number not in self.gone]
        assert len({item.key for item in batch}) <= 1
        assert not self.blocked & {item.number for item in alive}
        assert sum(item.items for item in alive) <= 4
        assert len(alive) <= 1 or sum(item.nbytes for item in alive) <= 100
        for item in alive:
            before = [
                other
                for other in self.waiting.values()
                if (other.key, other.owner, other.priority) == (item.key, item.owner, item.priority)
            ]
            assert all(other.number > item.number for other in before), "the order of an owner's items is kept"

    @invariant()
    def nothing_is_lost(self) -> None:
        """Items added and not taken wait."""
        assert len(self.forming) == len(self.waiting)

    @invariant()
    def nobody_waits_too_long(self) -> None:
        """What is ready, and behind nothing that is not, is due within its wait."""
        for item in self.waiting.values():
            if all(other.number in self.gone or other.number not in self.blocked for other in self.waiting.values()):
                due_ns = self.forming.due_ns(self.now_ns)
                assert due_ns is not None
                assert due_ns <= max(self.now_ns, item.since_ns + WAIT_NS)

    def teardown(self) -> None:
        """In the end all come out."""
        self.blocked.clear()
        self.now_ns += WAIT_NS
        while (due_ns := self.forming.due_ns(self.now_ns)) is not None:
            assert due_ns <= self.now_ns
            self.take(full=False)
        assert not self.waiting


TestBatches = Batches.TestCase


class WholeBatches(Batches):
    """The same of items that count for several and are never cut."""

    most_each = 4


TestWholeBatches = WholeBatches.TestCase


def forming(max_items: int = 4, max_bytes: int | None = None, max_wait_ns: int = WAIT_NS) -> BatchFormer[int]:
    """Return one whose items are always ready."""
    return BatchFormer(BatchLimits(max_items, max_bytes, max_wait_ns), lambda _: False, lambda _: True)


def test_a_batch_goes_when_it_is_full_or_its_first_item_has_waited() -> None:
    """Not before, and not later."""
    batches = forming()
    for number in range(4):
        assert batches.take(0) == []
        batches.add(number, nbytes=1, now_ns=0)
    assert [each.item for each in batches.take(0)] == [0, 1, 2, 3]
    batches.add(4, nbytes=1, now_ns=10)
    batches.add(5, nbytes=1, now_ns=500)
    assert batches.due_ns(600) == 10 + WAIT_NS
    assert batches.take(9 + WAIT_NS) == []
    assert [each.item for each in batches.take(10 + WAIT_NS)] == [4, 5]
    assert batches.due_ns(10 + WAIT_NS) is None


def test_without_a_wait_what_has_come_goes() -> None:
    """Continuous batching: no request waits for another."""
    batches = forming(max_wait_ns=0)
    batches.add(1, nbytes=1, now_ns=7)
    assert batches.take(7, full=True) == []
    assert [each.item for each in batches.take(7)] == [1]


def test_in_a_hurry_what_waits_goes() -> None:
    """What has come before and what comes later."""
    batches = forming()
    batches.add(1, nbytes=1, now_ns=0)
    batches.hurry()
    assert batches.due_ns(0) == 0
    assert [each.item for each in batches.take(0)] == [1]
    batches.add(2, nbytes=1, now_ns=0)
    assert [each.item for each in batches.take(0)] == [2]


def test_bytes_close_a_batch_and_a_large_item_is_alone() -> None:
    """What does not fit opens the next one."""
    batches = forming(max_items=10, max_bytes=10)
    for number, nbytes in enumerate((4, 4, 4, 50, 1)):
        batches.add(number, nbytes=nbytes, now_ns=0)
    assert [each.item for each in batches.take(0)] == [0, 1]
    assert [each.item for each in batches.take(0)] == [2]
    assert [each.item for each in batches.take(0)] == [3]
    assert batches.take(0) == []
    assert [each.item for each in batches.take(WAIT_NS)] == [4]


def test_what_is_not_cut_waits_for_a_batch_with_room() -> None:
    """A batch is full when the next one does not fit; what is behind it keeps its order."""
    batches = forming(max_items=4)
    for number, items in enumerate((3, 2, 1, 1, 4)):
        batches.add(number, nbytes=0, items=items, now_ns=0)
    assert [each.item for each in batches.take(0)] == [0]
    assert [each.item for each in batches.take(0)] == [1, 2, 3]
    assert [each.item for each in batches.take(0)] == [4]
    batches.add(5, nbytes=0, items=3, now_ns=0)
    assert batches.take(0) == [], "another row has room"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60), st.integers(1, 4))
def test_a_large_item_is_not_passed_over_for_ever(others: list[int], large: int) -> None:
    """Others fill the rest of a batch that it does not fit into, and then it is first."""
    batches: BatchFormer[str] = BatchFormer(BatchLimits(4, None, WAIT_NS), lambda _: False, lambda _: True)
    for items in others:
        batches.add("others", owner="others", nbytes=0, items=items, now_ns=0)
    batches.add("large", owner="large", nbytes=0, items=large, now_ns=0)
    taken = [{each.item for each in batches.take(WAIT_NS)} for _ in range(2)]
    assert "large" in taken[0] | taken[1]


@given(st.lists(st.sampled_from((0, 0, 0, 0, 1, 2, 3)), min_size=1, max_size=200))
def test_no_key_waits_for_ever_behind_another(keys: list[int]) -> None:
    """However many full batches there are of others."""
    batches = forming(max_items=2)
    for number, key in enumerate(keys):
        batches.add(number, key=key, nbytes=1, now_ns=0)
    order = []
    while batch := batches.take(WAIT_NS):
        order.append(keys[batch[0].item])
    for key in set(keys):
        turns = [-1, *(at for at, each in enumerate(order) if each == key)]
        assert max(later - turn for turn, later in itertools.pairwise(turns)) <= MOST_PASSED + len(set(keys))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), min_size=1, max_size=60))
def test_a_higher_priority_comes_first_whatever_its_key(items: list[tuple[int, int]]) -> None:
    """Each batch has one of the highest priority that waits, full or not."""
    batches: BatchFormer[int] = BatchFormer(BatchLimits(3, None, 0), lambda _: False, lambda _: True)
    for key, priority in items:
        batches.add(priority, key=key, priority=priority, nbytes=1, now_ns=0)
    waiting = sorted(priority for _, priority in items)
    while batch := batches.take(0):
        found = [each.item for each in batch]
        assert max(found) == waiting[-1]
        for each in found:
            waiting.remove(each)
    assert not waiting


def test_full_batches_come_first_and_take_turns() -> None:
    """Else most of each batch would be empty where keys are many, and items more than can be done."""
    batches: BatchFormer[str] = BatchFormer(BatchLimits(2, None, WAIT_NS), lambda _: False, lambda _: True)
    for key in "abacac":
        batches.add(key, key=key, nbytes=1, now_ns=0)
    assert ["".join(each.item for each in batches.take(WAIT_NS)) for _ in range(4)] == ["aa", "cc", "b", "a"]


def test_one_that_is_due_goes_too_where_only_full_ones_are_to() -> None:
    """What runs always has a full one behind it, as long as there are some: it must not have to end first."""
    batches = forming(max_items=2)
    batches.add(0, key="few", nbytes=1, now_ns=0)
    order = []
    for number in range(1, 2 * MOST_PASSED + 5):
        for _ in range(2):
            batches.add(number, key="many", nbytes=1, now_ns=0)
        order += [each.item for each in batches.take(WAIT_NS, full=True)]
    assert 2 * (MOST_PASSED - 1) <= order.index(0) <= 2 * (MOST_PASSED + 1)


def test_owners_share_a_batch_whatever_they_have_waiting() -> None:
    """One with a thousand items does not keep another's single one out of the next batch."""
    batches: BatchFormer[str] = BatchFormer(BatchLimits(4, None, WAIT_NS), lambda _: False, lambda _: True)
    for _ in range(1000):
        batches.add("many", owner=1, nbytes=1, now_ns=0)
    batches.add("single", owner=2, nbytes=1, now_ns=5)
    assert sorted(each.item for each in batches.take(5)) == ["many", "many", "many", "single"]


PARCELS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.sampled_from((0, 0, 1)), st.integers(1, 10)), max_size=30
)


@given(PARCELS, st.sets(st.integers(0, 29)))
def test_what_counts_for_several_is_split_to_fill_batches(
    parcels: list[tuple[int, str, int, int]], gone: set[int]
) -> None:
    """Each of its items is in one batch, in order; and no batch has room for one that waits."""
    numbers = itertools.count()

    def split(parcel: list[int], items: int) -> tuple[list[int], list[int]]:
        return parcel[:items], parcel[items:]

    gone_items: set[int] = set()
    forming: BatchFormer[list[int]] = BatchFormer(
        BatchLimits(max_items=4, max_bytes=None, max_wait_ns=0),
        lambda parcel: parcel[0] in gone_items,
        lambda _: True,
        split=split,
    )
    waiting: dict[tuple[int, str, int], list[int]] = {}
    for at, (key, owner, priority, items) in enumerate(parcels):
        parcel = [next(numbers) for _ in range(items)]
        if at in gone:
            gone_items.update(parcel)
        waiting.setdefault((key, owner, priority), []).extend(parcel)
        forming.add(parcel, key=key, owner=owner, priority=priority, nbytes=0, items=items, now_ns=0)
    while forming:
        batch = forming.take(0)
        alive = sum(len(each.item) for each in batch if each.item[0] not in gone_items)
        assert alive <= 4
        for each in batch:
            assert each.items == len(each.item)
            (kind,) = [kind for kind, rest in waiting.items() if each.item[0] in rest]
            assert waiting[kind][: each.items] == each.item
            del waiting[kind][: each.items]
        rest = [number for (key, _, _), numbers in waiting.items() if key == kind[0] for number in numbers]
        assert alive == 4 or all(number in gone_items for number in rest)
    assert not any(waiting.values())
