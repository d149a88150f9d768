"""Collectives on refs copy some of their arrays on the host: within the device's limit, or they are refused on all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.made_world import MadeWorld
from tests import made_worlds
from tests.made_worlds import put, same
from tests.support import BACKEND, DEADLINE_S, Ledger, shared_devices

pytestmark = pytest.mark.skipif(BACKEND != "host", reason="of the host's memory")

LIMIT_BYTES = 64 * 2**20
HUGE = LIMIT_BYTES // 4  # twice the limit as float64

books = made_worlds.books


@pytest.fixture(scope="module")
def pool(books: Ledger) -> Iterator[atomr_mp.Pool]:
    """Two devices with little memory."""
    with books.start(**shared_devices(2) | {"memory_bytes": LIMIT_BYTES}) as started:
        started.wait_ready(DEADLINE_S)
        yield started


@pytest.fixture
def empty_pool(ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """The same, without what earlier tests may not have given back yet."""
    with ledger.start(**shared_devices(2) | {"memory_bytes": LIMIT_BYTES}) as started:
        started.wait_ready(DEADLINE_S)
        yield started


def huge(ref: Any) -> Any:
    """Return a view of many elements that takes no memory."""
    return ref.as_strided((HUGE,), (0,))


Refs = Sequence[Any]
Use = Callable[[MadeWorld, Refs], Any]

USES: dict[str, Use] = {
    "all_to_all_v": lambda w, r: w.all_to_all_v([[huge(each)] * 2 for each in r]),
    "all_to_all_v of one part": lambda w, r: w.all_to_all_v([[r[0], r[0]], [huge(r[1]), r[1]]]),
    "reduce": lambda w, r: w.reduce([huge(each) for each in r], 1),
    "sendrecv": lambda w, r: w.sendrecv([huge(each) for each in r], [(0, 1)]),
    "broadcast": lambda w, r: w.broadcast([huge(each) for each in r]),
    "all_reduce": lambda w, r: w.all_reduce([huge(each) for each in r]),
}


@pytest.mark.parametrize("name", USES)
def test_what_does_not_fit_is_refused_on_all_ranks(pool: atomr_mp.Pool, name: str) -> None:
    """Nothing was written or is kept, and the world goes on."""
    with pool.world([0, 1]) as world:
        refs = put(pool, world, [np.ones(3), np.full(3, 2.0)])
        with pytest.raises(errors.OutOfMemory) as refused:
            USES[name](world, refs).result(DEADLINE_S)
        assert not refused.value.maybe_executed
        same(world.all_reduce(refs).result(DEADLINE_S), [np.full(3, 3.0)] * 2)
        assert world.epoch == 1


@pytest.mark.parametrize("way", ["gaps", "in place"])
def test_a_copy_that_one_rank_has_no_room_for_leaves_outputs_as_they_were(empty_pool: atomr_mp.Pool, way: str) -> None:
    """On all ranks, where `out` has gaps or lies over the input. With room the same collective runs."""
    pool, part = empty_pool, LIMIT_BYTES // 8 // 7  # a seventh of the memory
    with pool.world([0, 1]) as world:
        if way == "gaps":
            outs = [pool.device(device).zeros((part, 2), "float64")[:, 0] for device in world.devices]
            ins = put(pool, world, [np.ones(part)] * 2)
        else:
            outs = ins = put(pool, world, [np.repeat([1.0, 2.0], part)] * 2)
        collective = world.all_reduce if way == "gaps" else world.all_to_all
        before = [out.numpy() for out in outs]
        filler = []
        with contextlib.suppress(errors.OutOfMemory):
            while True:
                filler.append(pool.device(1).zeros((part,), "float64"))
                filler[-1].numpy()
        with pytest.raises(errors.OutOfMemory) as refused:
            collective(ins, out=outs).result(DEADLINE_S)
        assert refused.value.rank == 1
        same(outs, before)
        filler.clear()
        expected = [np.full(part, 2.0)] * 2 if way == "gaps" else [np.full(2 * part, rank + 1.0) for rank in (0, 1)]
        collective(ins, out=outs).result(DEADLINE_S)
        same(outs, expected)
        assert world.epoch == 1


@pytest.mark.parametrize("rows", [0, 1, 5, 300_000])
def test_results_of_several_lengths_lie_where_refs_do(pool: atomr_mp.Pool, rows: int) -> None:
    """Those of `all_to_all_v` are written in their own memory, of few elements, many and none."""
    with pool.world([0, 1]) as world:
        arrays = [[np.full((rows + to, 2), 10.0 * rank + to) for to in range(2)] for rank in range(2)]
        parts = [[pool.device(rank).put(each) for each in row] for rank, row in enumerate(arrays)]
        found = world.all_to_all_v(parts).result(DEADLINE_S)
        for rank, row in enumerate(found):
            same(row, [arrays[sender][rank] for sender in range(2)])
            refs = [pool.device(rank).elementwise.add(each, each).result(DEADLINE_S) for each in row]
            same(refs, [2 * arrays[sender][rank] for sender in range(2)])
