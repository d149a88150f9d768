"""Collectives whose copies and results lie in memory with a limit: a rank without room ends the collective for all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol.world.memory import SLOT_BYTES
from atomr_mp_workers.worlds.exchange.collectives import Collectives
from tests.ranks import Ranks

SIZE = 3


class Limited:
    """Makes arrays while there is room."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.is_full = False

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return an array."""
        if self.is_full:
            raise errors.OutOfMemory("full", maybe_executed=False)
        array = np.empty(shape, dtype)
        self.made.append(array.nbytes)
        return array


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Yield ranks that have joined."""
    ranks = Ranks(SIZE)
    ranks.join()
    yield ranks
    ranks.close()


Use = Callable[[Collectives, Any], Any]


def odd(elements: int) -> np.ndarray[Any, Any]:
    """Return an array of so many elements that is not row-major."""
    return np.ones((2, elements // 2)).T


USES: dict[str, Use] = {
    "all_reduce": lambda each, n: each.all_reduce(odd(n), "sum", None, np.empty((n // 2, 2))),
    "all_reduce to gaps": lambda each, n: each.all_reduce(np.ones(n), "sum", None, np.empty((n, 2))[:, 0]),
    "reduce": lambda each, n: each.reduce(odd(n), 0, "sum", None, np.empty((n // 2, 2))),
    "reduce_scatter": lambda each, n: each.reduce_scatter(odd(n), "sum", None, np.empty((n // 2 // SIZE, 2))),
    "all_gather": lambda each, n: each.all_gather(odd(n), np.empty((SIZE, n // 2, 2))),
    "broadcast": lambda each, n: each.broadcast(odd(n), 1, np.empty((n // 2, 2))),
    "all_to_all": lambda each, n: each.all_to_all(x := np.ones(n), x),
    "all_to_all_v": lambda each, n: each.all_to_all_v([np.ones(n)] * SIZE),
    "all_to_all_v of strides": lambda each, n: each.all_to_all_v([odd(n)] * SIZE),
    "sendrecv": lambda each, n: each.sendrecv(odd(n), None, None, None),
}


@pytest.mark.parametrize("elements", [12, SLOT_BYTES // 8 // SIZE * 6], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize("name", USES)
def test_a_rank_without_room_ends_a_collective_for_all(ranks: Ranks, name: str, elements: int) -> None:
    """Nothing was exchanged, no rank waits, and the next collective works; with room, all is made there."""
    limits = [Limited() for _ in range(SIZE)]
    through = [Collectives(each.meeting, limit) for each, limit in zip(ranks.all, limits, strict=True)]

    def run(use: Use, rank: int) -> Any:
        own = through[rank]
        met = own.steps
        try:
            return use(own, elements)
        except errors.OutOfMemory:
            if own.steps == met:  # as whoever calls it for refs does
                with contextlib.suppress(errors.WorldMismatch):
                    own.refuse()
            raise

    def all_run(use: Use) -> list[Any]:
        return ranks.call(*(partial(lambda _world, rank: run(use, rank), rank=rank) for rank in range(SIZE)))

    limits[1].is_full = True
    found = all_run(USES[name])
    assert [type(each) for each in found] == [errors.WorldMismatch, errors.OutOfMemory, errors.WorldMismatch]
    limits[1].is_full = False
    assert not any(isinstance(each, errors.AtomrError) for each in all_run(USES[name]))
    assert all(sum(each.made) >= 8 * elements for each in limits)
    assert [float(each[0]) for each in all_run(lambda own, _n: own.all_reduce(np.ones(3), "sum", None, None))] == [
        3
    ] * 3
