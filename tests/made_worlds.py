"""Fixtures and helpers for tests of worlds that sessions make. A module takes those that it needs, by their names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp.made_world import MadeWorld
from tests.support import ACTORS, BACKEND, DEADLINE_S, Gate, Ledger, shared_devices

EXCHANGING: Final = f"{ACTORS}/exchanging.py:Exchanging"
_NUMBERS: Final = itertools.count()


@pytest.fixture(scope="module")
def books() -> Iterator[Ledger]:
    """Counts what is left."""
    with Ledger() as ledger:
        yield ledger


@pytest.fixture(scope="module")
def pool(books: Ledger) -> Iterator[atomr_mp.Pool]:
    """A pool of four devices."""
    with books.start(EXCHANGING, **shared_devices(4)) as started:
        started.wait_ready(DEADLINE_S)
        yield started


@pytest.fixture
def gate(books: Ledger) -> Iterator[Gate]:
    """A gate."""
    with books.gate(f"gate-{next(_NUMBERS)}") as made:
        yield made


@pytest.fixture(params=[1, 2, 3, 4] if BACKEND == "host" else [1, 2])
def world(pool: atomr_mp.Pool, request: pytest.FixtureRequest) -> Iterator[MadeWorld]:
    """A world of so many ranks, on devices in another order than theirs."""
    with pool.world([3, 1, 0, 2][: request.param]) as made:
        yield made


@pytest.fixture
def pair(pool: atomr_mp.Pool) -> Iterator[MadeWorld]:
    """A world of devices 0 and 1."""
    with pool.world([0, 1]) as made:
        yield made


def arrays_of(world: MadeWorld, shape: Any, dtype: str = "float64") -> list[Any]:
    """Return an array for each rank, with small numbers that sum exactly."""
    random_ = np.random.default_rng(world.size)
    return [random_.integers(0, 5, shape).astype(dtype) for _ in range(world.size)]


def put(pool: atomr_mp.Pool, world: MadeWorld, arrays: list[Any]) -> list[Any]:
    """Return refs with these arrays, by rank."""
    return [pool.device(device).put(array) for device, array in zip(world.devices, arrays, strict=True)]


def same(found: Any, expected: Any) -> None:
    """Assert that refs have these arrays and types, None for none."""
    assert len(found) == len(expected)
    for ref, array in zip(found, expected, strict=True):
        if array is None:
            assert ref is None
            continue
        got = ref.numpy()
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        np.testing.assert_array_equal(got, array)
