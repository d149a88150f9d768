"""Who comes next, of those that wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp_workers.line import Line


@given(st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("abc"), st.integers(-2, 2))), max_size=80))
def test_nothing_is_lost_and_the_order_of_an_owner_is_kept(steps: list[tuple[str, int] | None]) -> None:
    """Whatever goes in and comes out: what comes out has the highest priority there is."""
    line: Line[tuple[str, int, int]] = Line()
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
            waiting.remove(popped)
            line.charge(popped[0], 1)
        assert len(line) == len(waiting)
        heads = {each[:2]: each for each in reversed(waiting)}
        assert sorted(line.heads()) == sorted(heads.values())


@given(st.lists(st.integers(1, 50), min_size=2, max_size=5))
def test_owners_get_as_much_as_each_other_whatever_their_items_cost(costs: list[int]) -> None:
    """As long as they have something waiting, nobody is ahead by more than one item of the most expensive."""
    line: Line[int] = Line()
    for owner in range(len(costs)):
        for _ in range(200):
            line.add(owner, owner)
    had = [0] * len(costs)
    for _ in range(200):
        owner = line.pop()
        had[owner] += costs[owner]
        line.charge(owner, costs[owner])
        assert max(had) - min(had) <= max(costs)


def test_one_who_comes_late_is_next_and_has_no_more_than_its_turn() -> None:
    """Neither does it wait for all that others have queued, nor does it catch up on what it has not asked for."""
    line: Line[str] = Line()
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
    line: Line[str] = Line()
    for item, priority in (("a1", 1), ("a2", 0), ("b1", 0), ("b2", 0)):
        line.add(item, item[0], priority)
    assert line.take(lambda item: item not in {"a1", "a2"}) == "b1"
    assert line.take(lambda item: item == "b1") is None
    assert line.take(lambda item: item != "a1") == "a2"
    assert line.take(lambda item: item not in {"a1", "b2"}) is None
    assert len(line) == 2
    plain: Line[int] = Line()
    plain.add(1, "a")
    plain.add(2, "a")
    assert plain.take(lambda item: item == 2) is None
    assert plain.take(lambda item: item == 1) == 1


def test_an_empty_line_has_nothing() -> None:
    """Also one that has had owners and priorities."""
    line: Line[int] = Line()
    with pytest.raises(IndexError):
        line.pop()
    line.add(1, "a", 3)
    assert line.pop() == 1
    assert len(line) == 0
    with pytest.raises(IndexError):
        line.pop()
    assert line.take(lambda _: True) is None
