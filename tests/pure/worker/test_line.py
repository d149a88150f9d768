"""Who comes next, of those that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.codec import MAX_WEIGHT, MIN_WEIGHT
from atomr_mp_workers.requests.fair_queue import FairQueue


@given(st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("abc"), st.integers(-2, 2))), max_size=80))
def test_nothing_is_lost_and_the_order_of_an_owner_is_kept(steps: list[tuple[str, int] | None]) -> None:
    """Whatever goes in and comes out: what comes out has the highest priority there is."""
    line: FairQueue[tuple[str, int, int]] = FairQueue()
    waiting: list[tuple[str, int, int]] = []
    for number, step in enumerate(steps):
        if step is not None:
            item = (*step, number)
            waiting.append(item)
            line.add(item, step[0], step[1])
        elif waiting:
            popped = line.pop()
            assert popped[1] == max(priority for _, priority, _ in waiting)
            assert popped == min((each for each in waiting if each[:2] == popped[:2]), key=lambda each: each[2])
            line.put_back(popped, popped[0], popped[1])
            assert line.take(lambda each: each[:2] == popped[:2]) == popped  # noqa: B023 - called at once
            line.put_back(popped, popped[0], popped[1])
            assert line.take(popped.__eq__) == popped
            waiting.remove(popped)
            line.charge(popped[0], 1)
        assert len(line) == len(waiting)
        heads = {each[:2]: each for each in reversed(waiting)}
        assert sorted(line.heads()) == sorted(heads.values())


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.booleans(), st.integers(0, 3)), max_size=40),
    st.lists(st.integers(0, 3), max_size=60),
)
def test_what_may_pass_waits_behind_nothing_that_is_not_ready(
    items: list[tuple[str, int, bool, int]], open_gates: list[int]
) -> None:
    """Each item is ready once its gate is open; those of an owner that may not pass keep their order."""
    line: FairQueue[tuple[int, tuple[str, int, bool, int]]] = FairQueue(may_pass=lambda each: each[1][2])
    for number, item in enumerate(items):
        line.add((number, item), item[0], item[1])
    waiting, opened = dict(enumerate(items)), {0}

    def is_ready(each: tuple[int, tuple[str, int, bool, int]]) -> bool:
        return each[1][3] in opened

    for gate in open_gates:
        opened.add(gate)
        taken = line.take(is_ready)
        rest = [(number, item) for number, item in waiting.items() if item[3] in opened]
        firsts = {item[:2]: number for number, item in reversed(waiting.items())}
        free = [(number, item) for number, item in rest if item[2] or firsts[item[:2]] == number]
        assert (taken is None) == (not free)
        if taken is not None:
            assert taken in free
            del waiting[taken[0]]
        firsts = {item[:2]: number for number, item in reversed(waiting.items())}
        expected = [each for each in waiting.items() if each[1][2] or firsts[each[1][:2]] == each[0]]
        assert sorted(set(line.candidates())) == expected
    assert len(line) == len(waiting)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=5))
def test_owners_get_as_much_as_each_other_whatever_their_items_cost(costs: list[int]) -> None:
    """As long as they have something waiting, none is ahead by more than one item of the most expensive."""
    line: FairQueue[int] = FairQueue()
    for owner in range(len(costs)):
        for _ in range(200):
            line.add(owner, owner)
    had = [0] * len(costs)
    for _ in range(200):
        owner = line.pop()
        had[owner] += costs[owner]
        line.charge(owner, costs[owner])
        assert max(had) - min(had) <= max(costs)


WEIGHTS = st.floats(MIN_WEIGHT, MAX_WEIGHT)
COSTS = st.integers(1, 50)


@given(st.lists(st.tuples(WEIGHTS, COSTS), min_size=2, max_size=5), st.integers(1, 400))
def test_owners_with_items_waiting_get_by_their_weights(owners: list[tuple[float, int]], steps: int) -> None:
    """No two are further apart than one item of each; none is left out, and each has its items in order."""
    line: FairQueue[tuple[int, int]] = FairQueue(lambda owner: owners[cast("int", owner)][0])
    for owner in range(len(owners)):
        for number in range(steps):
            line.add((owner, number), owner)
    count, had = [0] * len(owners), [0.0] * len(owners)
    quanta = [cost / weight for weight, cost in owners]
    for _ in range(steps):
        owner, number = line.pop()
        assert number == count[owner]
        assert had[owner] <= min(had) * (1 + 1e-9)
        count[owner] += 1
        had[owner] += quanta[owner]
        line.charge(owner, owners[owner][1])
        assert max(had) - min(had) <= max(quanta) * (1 + 1e-9)


@given(st.lists(st.tuples(WEIGHTS, COSTS, st.integers(1, 20)), min_size=2, max_size=5))
def test_whatever_the_weights_everything_comes_out(owners: list[tuple[float, int, int]]) -> None:
    """The one of the least weight too, whose time comes when the others have had theirs."""
    line: FairQueue[int] = FairQueue(lambda owner: owners[cast("int", owner)][0])
    for owner, (_, _, items) in enumerate(owners):
        for _ in range(items):
            line.add(owner, owner)
    counted: Counter[int] = Counter()
    while line:
        owner = line.pop()
        counted[owner] += 1
        line.charge(owner, owners[owner][1])
    assert counted == {owner: items for owner, (_, _, items) in enumerate(owners)}


@given(st.integers(1, 8), st.integers(1, 8), COSTS, COSTS)
def test_one_that_comes_back_at_once_has_no_more_than_its_part(a: int, b: int, cost_a: int, cost_b: int) -> None:
    """A client that sends its calls one by one has never more than one waiting, and often none."""
    line: FairQueue[str] = FairQueue(lambda owner: {"a": a, "b": b}[cast("str", owner)])
    costs, had = {"a": cost_a, "b": cost_b}, {"a": 0.0, "b": 0.0}
    for _ in range(400):
        line.add("a", "a")
    line.add("b", "b")
    for _ in range(300):
        owner = line.pop()
        line.charge(owner, costs[owner])
        had[owner] += costs[owner] / {"a": a, "b": b}[owner]
        if owner == "b":
            line.add("b", "b")
        assert abs(had["a"] - had["b"]) <= cost_a / a + cost_b / b


@given(st.integers(1, 6), st.sampled_from([0.5, 1.0, 3.0]))
def test_owners_of_a_group_share_one_weight(count: int, weight: float) -> None:
    """However many they are, together they get what their weight is beside another's, and each its part of that."""

    class Owner(NamedTuple):
        name: int
        weight: float
        group: str | None

    owners = [Owner(number, weight, "key") for number in range(count)]
    alone = Owner(-1, 1.0, None)
    line: FairQueue[Owner] = FairQueue(lambda owner: owner.weight)  # type: ignore[attr-defined]
    for owner in (alone, *owners):
        line.add(owner, owner)
    had = dict.fromkeys((alone, *owners), 0)
    for _ in range(600):
        owner = line.pop()
        had[owner] += 1
        line.add(owner, owner)
        line.charge(owner, 1)
    together = sum(had[owner] for owner in owners)
    assert together == pytest.approx(600 * weight / (1 + weight), abs=count + 4)
    assert all(had[owner] == pytest.approx(together / count, abs=count + 2) for owner in owners)


def test_nothing_is_saved_up_by_not_asking() -> None:
    """Who comes back after a while is next, once; what was forgotten of it is forgotten of all who do not ask."""
    line: FairQueue[str] = FairQueue()
    line.add("b", "b")
    for _ in range(60):
        line.add("a", "a")
    assert line.pop() == "b"
    line.charge("b", 100)
    for _ in range(30):
        assert line.pop() == "a"
        line.charge("a", 100)
    assert line.levels[0].lines.keys() == {"a"}
    line.add("b", "b")
    line.add("b", "b")
    order = []
    for _ in range(4):
        order.append(line.pop())
        line.charge(order[-1], 100)
    assert sorted(order) == ["a", "a", "b", "b"]
    assert order[:2] != ["b", "b"]


def test_who_has_had_much_is_not_forgotten_while_others_wait_for_memory() -> None:
    """What is ready goes first, as there is nothing else to do; it comes back with all that it has had."""
    line: FairQueue[str] = FairQueue()
    line.add("a1", "a")
    line.add("a2", "a")
    line.add("b", "b")
    for _ in range(3):
        assert line.take(lambda item: item == "b") == "b"
        line.charge("b", 100)
        assert line.take(lambda item: item == "b") is None
        line.add("b", "b")
    assert [line.pop(), line.pop(), line.pop()] == ["a1", "a2", "b"]


def test_one_who_comes_late_is_next_and_has_no_more_than_its_turn() -> None:
    """Neither does it wait for all that others have queued, nor does it catch up on what it has not asked for."""
    line: FairQueue[str] = FairQueue()
    for _ in range(10):
        line.add("a", "a")
    for _ in range(5):
        line.charge(line.pop(), 100)
    for _ in range(5):
        line.add("b", "b")
    order = []
    for _ in range(10):
        order.append(line.pop())
        line.charge(order[-1], 100)
    assert order == ["a", "b"] * 5


def test_who_has_to_wait_makes_nobody_else_wait() -> None:
    """The next that is ready is taken, of lower priority too; an owner's own items stay in order."""
    line: FairQueue[str] = FairQueue()
    for item, priority in (("a1", 1), ("a2", 0), ("b1", 0), ("b2", 0)):
        line.add(item, item[0], priority)
    assert line.take(lambda item: item not in {"a1", "a2"}) == "b1"
    assert line.take(lambda item: item == "b1") is None
    assert line.take(lambda item: item != "a1") == "a2"
    assert line.take(lambda item: item not in {"a1", "b2"}) is None
    assert len(line) == 2
    plain: FairQueue[int] = FairQueue()
    plain.add(1, "a")
    plain.add(2, "a")
    assert plain.take(lambda item: item == 2) is None
    assert plain.take(lambda item: item == 1) == 1


def test_an_empty_line_has_nothing() -> None:
    """Also one that has had owners and priorities."""
    line: FairQueue[int] = FairQueue()
    with pytest.raises(IndexError):
        line.pop()
    line.add(1, "a", 3)
    assert line.pop() == 1
    assert len(line) == 0
    with pytest.raises(IndexError):
        line.pop()
    assert line.take(lambda _: True) is None


@given(st.lists(st.integers(1, 50), min_size=1, max_size=100), st.booleans())
def test_an_owner_with_two_lines_has_as_much_as_another(costs: list[int], grouped: bool) -> None:  # noqa: FBT001
    """Its lines take turns, and what one has had is had by both."""
    line: FairQueue[Owner | Line] = FairQueue()
    owner, other = Owner(1.0, "g" if grouped else None), Owner(1.0, "h" if grouped else None)
    further = Line(owner, 1)
    for each in (owner, further, other):
        for _ in range(len(costs)):
            line.add(each, each)
    had, order = [0, 0], []
    for cost in costs:
        popped = line.pop()
        had[popped is other] += cost
        line.charge(other if popped is other else owner, cost)
        if popped is not other:
            order.append(popped)
        assert abs(had[0] - had[1]) <= max(costs)
    assert order[::2] == [owner] * len(order[::2])
    assert order[1::2] == [further] * len(order[1::2])


class Owner:
    """An owner of items."""

    def __init__(self, weight: float, group: str | None) -> None:
        self.weight = weight
        self.group = group


class Line(NamedTuple):
    """A further line of an owner."""

    account: Owner
    number: int


Party = tuple[Hashable, Hashable]
"""An owner in its group, or a group in none."""

MOST_COST = 5
MOST_PENDING = 3


class Watched:
    """A fair queue, and who has had what while all whom it is compared with had an item that was ready."""

    def __init__(self, owners: list[Owner]) -> None:
        self.queue: FairQueue[tuple[Owner, int, int]] = FairQueue(lambda owner: cast("Owner", owner).weight)
        self.owners = owners
        self.waiting: Counter[tuple[Owner, int, int]] = Counter()
        self.pending: list[tuple[Owner, int, int]] = []
        """Items that were taken, and not charged."""
        self.turns: Counter[tuple[tuple[Owner, int, int], int]] = Counter()
        """How often an item of a line was taken, by another line of its owner that could have been."""
        self.had: dict[tuple[int, Party, Party], float] = {}
        """By how much one is ahead of another, by priority."""

    def add(self, owner: Owner, line: int, priority: int) -> None:
        """Let an item of a line wait."""
        self.waiting[owner, line, priority] += 1
        self.queue.add((owner, line, priority), Line(owner, line) if line else owner, priority)

    def take(self, blocked: set[tuple[int, int]]) -> None:
        """Take an item, unless it is of a blocked line."""
        busy = {(self.owners[number % len(self.owners)], line) for number, line in blocked}
        ready = {each for each, count in self.waiting.items() if count and each[:2] not in busy}
        item = self.queue.take(lambda each: each[:2] not in busy)
        assert (item is not None) == bool(ready)
        if item is None:
            return
        owner, line, priority = item
        assert priority == max(each[2] for each in ready)
        self.keep_ready({each for each in ready if each[2] == priority}, priority)
        for each in ready:
            if each[0] is owner and each[2] == priority and each[1] != line:
                self.turns[each, line] += 1
                assert self.turns[each, line] <= 1, "a line had two turns before another's one"
        self.turns = Counter({key: count for key, count in self.turns.items() if key[0] != item and key[0] in ready})
        self.waiting[item] -= 1
        self.pending.append(item)

    def keep_ready(self, ready: set[tuple[Owner, int, int]], priority: int) -> None:
        """Compare only parties, and only owners of one group, that had an item ready at each turn."""
        parties: set[Party] = {(None, each[0].group or each[0]) for each in ready}
        parties |= {(each[0].group, each[0]) for each in ready if each[0].group}
        pairs = {(priority, a, b) for a in parties for b in parties if a[0] == b[0] and a != b}
        self.had = {pair: self.had.get(pair, 0.0) for pair in pairs}

    def charge(self, number: int, cost: int) -> None:
        """Charge for an item that was taken."""
        owner, _, priority = self.pending.pop(number % len(self.pending))
        self.queue.charge(owner, cost)
        weights: dict[Party, float] = {}
        for each in self.owners:
            weights[None, each.group or each] = weights[each.group, each] = each.weight
        mine = {(None, owner.group or owner), (owner.group, owner)}
        for (level, a, b), ahead in list(self.had.items()):
            if level != priority:
                del self.had[level, a, b]  # what it had by priority is before all
                continue
            now = ahead + (a in mine) * cost / owner.weight - (b in mine) * cost / owner.weight
            self.had[level, a, b] = now
            most = (1 + MOST_PENDING) * MOST_COST * (1 / weights[a] + 1 / weights[b])
            assert now <= most * (1 + 1e-9), "one got more than its share"


LINES = st.tuples(st.integers(0, 4), st.integers(0, 2))
STEPS = st.one_of(
    st.tuples(st.just("add"), LINES, st.sampled_from([0, 0, 0, 1]), st.integers(1, 8)),
    st.tuples(st.just("take"), st.frozensets(LINES, max_size=2), st.integers(0, MOST_PENDING), st.integers(1, 30)),
)


@given(
    st.lists(st.sampled_from([(1.0, None), (3.0, None), (0.5, "g"), (2.0, "h")]), min_size=1, max_size=5),
    st.lists(STEPS, min_size=2, max_size=20),
    st.integers(1, MOST_COST),
)
def test_nothing_starves_whatever_comes_and_goes_meanwhile(
    kinds: list[tuple[float, str | None]], steps: list[tuple[Any, ...]], cost: int
) -> None:
    """Each line of an owner has a turn before another one has two, and owners and groups get by their weights.

    New requests and the steps of streams are such lines. Lines come and go, wait for what is in use, are of several
    priorities, and are charged when they have ended.
    """
    watched = Watched([Owner(*kind) for kind in kinds])
    for kind, what, more, count in steps:
        for turn in range(count):
            if kind == "add":
                watched.add(watched.owners[what[0] % len(kinds)], what[1], more)
                continue
            watched.take(what)
            while len(watched.pending) > more:
                watched.charge(turn, 1 + (turn * cost) % MOST_COST)
