"""Worlds that sessions have made end with the last reference to them and their programs, which form no cycles."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.made_world import MadeWorld
from tests import made_worlds
from tests.made_worlds import put
from tests.support import DEADLINE_S, settled

Make = Callable[[], MadeWorld]
"""Makes a world."""

books, pool = made_worlds.books, made_worlds.pool


pytestmark = pytest.mark.usefixtures("uncollected")


def collective(pool: atomr_mp.Pool, make: Make) -> object:
    """Run one."""
    world = make()
    refs = put(pool, world, [np.ones(3)] * 2)
    return world.all_reduce(refs, out=refs).result(DEADLINE_S)


def recorded(pool: atomr_mp.Pool, make: Make) -> object:
    """Record a program that uses several libraries, a ref and an input; run nothing."""
    world = make()
    with world.program() as p:
        x = p.input("x", (2, 2), "float64")
        y = p.blas.gemm(x, p.refs(put(pool, world, [np.eye(2)] * 2)))
        p.returns(p.world.all_reduce(p.elementwise.add(x, y[::1])))
    return x, y


def run(_pool: atomr_mp.Pool, make: Make) -> object:
    """Run a program. The world's handle may go first."""
    world = make()
    with world.program() as p:
        x = p.input("x", (4,), "float64")
        p.returns(p.world.all_reduce(x))
    there = weakref.ref(world)
    del world
    result = p.run(x=np.ones(4)).result(DEADLINE_S)
    assert there() is not None
    return result


def run_refused(_pool: atomr_mp.Pool, make: Make) -> object:
    """Run a program with what it does not take, and one that fails."""
    world = make()
    with world.program() as p:
        x = p.input("x", (2, 2), "float64")
        p.returns(p.world.all_reduce(p.solver.cholesky(x)))
    with contextlib.suppress(errors.InvalidRequest):
        p.run(x=np.ones(5))
    assert p.run(x=-np.eye(2)).exception(DEADLINE_S) is not None
    return None


def not_recorded(_pool: atomr_mp.Pool, make: Make) -> object:
    """Make a program, and record a step outside of `with`."""
    world = make()
    p = world.program()
    return p.world.all_reduce(p.input("x", (4,), "float64"))


def recorded_in_part(_pool: atomr_mp.Pool, make: Make) -> object:
    """Fail amid the recording, at a step that is refused."""
    world = make()
    with contextlib.suppress(errors.InvalidRequest), world.program() as p:
        x = p.input("x", (3,), "float64")
        p.world.all_reduce(x)
        p.world.reduce_scatter(x)
    return None


@pytest.mark.parametrize("use", [collective, recorded, run, run_refused, not_recorded, recorded_in_part])
def test_a_world_ends_with_the_last_reference_to_it_and_its_programs(
    pool: atomr_mp.Pool, use: Callable[[atomr_mp.Pool, Make], object]
) -> None:
    """Garbage is not collected meanwhile. Arrays of its programs do not keep it, nor results."""
    worlds: list[weakref.ref[MadeWorld]] = []

    def make() -> MadeWorld:
        world = pool.world([0, 1])
        world.wait_ready(DEADLINE_S)
        worlds.append(weakref.ref(world))
        return world

    kept = [use(pool, make) for _ in range(3)]
    assert settled(lambda: not any(each() for each in worlds))
    assert settled(lambda: not pool.status().worlds)
    del kept


def test_a_program_of_a_device_is_gone_with_its_last_reference(pool: atomr_mp.Pool) -> None:
    """Recorded, and run."""
    device = pool.device(0)
    with device.program() as p:
        x = p.input("x", (4,), "float64")
        p.returns(p.elementwise.add(x, x))
    np.testing.assert_array_equal(p.run(x=np.ones(4)).result(DEADLINE_S).numpy(), np.full(4, 2.0))
    there = weakref.ref(p)
    del p
    assert there() is None


def test_what_is_declared_of_a_recorded_program_is_refused_and_changes_nothing(pool: atomr_mp.Pool) -> None:
    """It runs as before."""
    with pool.device(0).program() as p:
        x = p.input("x", (4,), "float64")
        p.returns(p.elementwise.add(x, x))
    with pytest.raises(errors.InvalidRequest, match="recorded already"):
        p.input("y", (4,), "float64")
    with pytest.raises(errors.InvalidRequest, match="recorded already"):
        p.empty((4,), "float64")
    np.testing.assert_array_equal(p.run(x=np.ones(4)).result(DEADLINE_S).numpy(), np.full(4, 2.0))
