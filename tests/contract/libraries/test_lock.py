"""The host backend's requests leave the interpreter's lock to the worker's loop, so that other clients go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import atomr_mp
from atomr_mp.protocol.libraries import requests_of
from tests.cases.long_calls import CALLS, Arrays
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger

pytestmark = pytest.mark.skipif(BACKEND != "host", reason="it is about NumPy's and SciPy's routines")

MOST_S = 0.05
"""Longest time without a tick. A routine that keeps the lock keeps it as long as the call takes, which is more."""
ATTEMPTS = 5
"""A busy machine may give the ticking thread no time now and then, but not each time."""


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool whose worker ticks."""
    with Ledger() as ledger, ledger.start(f"{ACTORS}/ticking.py:Ticking") as started:
        yield started


def test_a_thread_that_keeps_the_lock_is_seen(pool: atomr_mp.Pool) -> None:
    """Else the tests below could not fail."""
    pool.call("Ticking.begin").result(DEADLINE_S)
    pool.call("Ticking.keep", MOST_S * 4).result(DEADLINE_S)
    assert pool.call("Ticking.end").result(DEADLINE_S) > MOST_S


@pytest.mark.parametrize("library", CALLS)
def test_no_request_keeps_the_lock(pool: atomr_mp.Pool, library: str) -> None:
    """Every declared request is called at a size at which it takes longer than the lock may be kept."""
    calls = CALLS[library](Arrays(pool.device()))
    assert calls.keys() == requests_of(library).keys()
    kept = {}
    for name, call in calls.items():
        for _ in range(ATTEMPTS):
            pool.call("Ticking.begin").result(DEADLINE_S)
            try:
                call().result(DEADLINE_S)
            finally:
                kept[name] = pool.call("Ticking.end").result(DEADLINE_S)
            if kept[name] < MOST_S:
                del kept[name]
                break
    assert not kept
