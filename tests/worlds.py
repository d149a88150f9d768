"""Pools with one world, "tp", on all of their devices, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

import atomr_mp
from tests.support import BACKEND, DEADLINE_S, Ledger, shared_devices

on_host: Final = pytest.mark.skipif(BACKEND != "host", reason="what it tests is not the backend's")

RECOVERS: Final[dict[str, Any]] = {"max_restarts": 1000, "backoff_initial_s": 0.0}
"""Settings with which lost members come back at once, however often."""


def start(ledger: Ledger, actor: str, size: int = 2, begin_timeout_s: float = 10.0, **settings: Any) -> atomr_mp.Pool:
    """Start a pool with a world of so many ranks, and wait until it is ready.

    Args:
        ledger: Counts what is left.
        actor: "path/to/file.py:Class".
        size: How many ranks.
        begin_timeout_s: The world's.
        settings: The pool's.
    """
    plan = {"devices": list(range(size)), "actors": [actor.rpartition(":")[2]], "begin_timeout_s": begin_timeout_s}
    pool = ledger.start(actor, **shared_devices(size), worlds={"tp": plan}, **settings)
    pool.world("tp").wait_ready(DEADLINE_S)
    return pool


def ready_world(pool: atomr_mp.Pool) -> atomr_mp.World:
    """Return the world, ready."""
    found = pool.world("tp")
    found.wait_ready(DEADLINE_S)
    return found


def pools_of_sizes(actor: str, *sizes: int) -> Any:
    """Return a fixture: a pool for a file's tests, with a world of so many ranks, one size after the other."""

    @pytest.fixture(scope="module", params=sizes)
    def pool(request: pytest.FixtureRequest) -> Iterator[atomr_mp.Pool]:
        with Ledger() as ledger, start(ledger, actor, request.param) as started:
            yield started

    return pool


def pools_that_recover(actor: str, size: int = 3) -> Any:
    """Return a fixture: a pool for a file's tests whose members are lost and come back, with standbys and without."""

    @pytest.fixture(scope="module", params=["hot", "none"])
    def pool(request: pytest.FixtureRequest) -> Iterator[atomr_mp.Pool]:
        with Ledger() as ledger, start(ledger, actor, size, 1.0, standby=request.param, **RECOVERS) as started:
            yield started

    return pool
