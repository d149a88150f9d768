"""Which call of a world is published next: clients take turns, and long calls are not published far ahead."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp_workers.requests.method import UNKNOWN_NS
from atomr_mp_workers.worlds.order.calls import AHEAD_NS, LEAST_AHEAD, CallFacts, OrderOfCalls

QUICK: Any = SimpleNamespace(typical_ns=1000)


@dataclass(eq=False)
class Owner:
    """A session, as far as the order needs it."""

    weight: float = 1.0


def publish(order: OrderOfCalls, sequence: int, ended: int) -> tuple[int, int] | None:
    """Publish the next call, if one may be."""
    key = order.next(ended, 0)
    if key is not None:
        assert order.next(ended, 0) == key, "the same one until it is published"
        order.published(sequence)
    return key


@pytest.mark.parametrize(("weights", "shares"), [((1.0, 1.0), (50, 50)), ((3.0, 1.0), (75, 25))])
def test_clients_take_turns_by_their_weights(weights: tuple[float, ...], shares: tuple[int, ...]) -> None:
    """Whoever came first, and however many calls one has."""
    order = OrderOfCalls()
    owners = [Owner(each) for each in weights]
    for owner, count in ((0, 1000), (1, 100)):
        for number in range(count):
            order.know((owner, number), CallFacts(owners[owner], QUICK))
            order.add((owner, number))
    published = [publish(order, sequence, sequence - 1) for sequence in range(1, 101)]
    found = Counter(key[0] for key in published if key is not None)
    assert [abs(found[owner] - share) <= 2 for owner, share in enumerate(shares)] == [True, True]
    for owner in (0, 1):
        own = [key for key in published if key is not None and key[0] == owner]
        assert own == sorted(own), "those of one client in their order"


@pytest.mark.parametrize("typical_ns", [UNKNOWN_NS, 2 * AHEAD_NS, AHEAD_NS // 10])
def test_long_calls_are_not_published_far_ahead(typical_ns: int) -> None:
    """A method without a known time counts as long."""
    order, method = OrderOfCalls(), SimpleNamespace(typical_ns=typical_ns)
    for number in range(100):
        order.know((1, number), CallFacts(Owner(), method))
        order.add((1, number))
    ahead = 0
    while publish(order, ahead + 1, 0) is not None:
        ahead += 1
    assert ahead == (10 if typical_ns == AHEAD_NS // 10 else LEAST_AHEAD)
    assert publish(order, ahead + 1, 1) is not None, "one has ended"


def test_a_call_whose_turn_comes_too_late_is_passed_over() -> None:
    """Also the one that was next already; none before its turn has come."""
    order = OrderOfCalls()
    slow: Any = SimpleNamespace(typical_ns=AHEAD_NS)
    for number, due_ns in enumerate((10, 5, 10, 3, 20)):
        order.know((1, number), CallFacts(Owner(), slow, due_ns))
        order.add((1, number))
    for number in range(LEAST_AHEAD):
        assert order.next(0, 5) == (1, number)
        order.published(number + 1)
    assert order.next(0, 10) is None
    assert not order.late
    assert order.next(1, 10) == (1, 2)
    assert order.next(1, 11) == (1, 4), "there was no room in the ring before"
    assert order.late == [(1, 2), (1, 3)]
    assert not any(order.knows(key) for key in order.late)
    assert order.next(1, 21) is None
    assert len(order) == 0


def test_every_call_is_published_once_or_dropped() -> None:
    """On random walks, with sessions that end and calls that are forgotten or unknown."""
    chance = random.Random(7)
    for _ in range(200):
        order, owners = OrderOfCalls(), [Owner(chance.choice([1.0, 4.0])) for _ in range(4)]
        waiting: set[tuple[int, int]] = set()
        sequence = 0
        for number in range(100):
            key = (chance.randrange(4), number)
            if chance.random() < 0.9:
                order.know(key, CallFacts(owners[key[0]], QUICK))
            if chance.random() < 0.8:
                order.add(key)
                waiting.add(key)
            if chance.random() < 0.05:
                ended = chance.randrange(4)
                gone = {each for each in waiting if each[0] == ended}
                assert set(order.cancel(ended)) == gone
                waiting -= gone
            if waiting and chance.random() < 0.05:
                order.forget(one := chance.choice(sorted(waiting)))
                waiting.discard(one)
            if chance.random() < 0.5:
                sequence += 1
                found = publish(order, sequence, sequence - 1)
                assert (found is None) == (not waiting)
                waiting -= {found}
            assert len(order) == len(waiting)
        while waiting:
            sequence += 1
            waiting.remove(publish(order, sequence, sequence - 1))  # type: ignore[arg-type]
        assert order.next(sequence, 0) is None
