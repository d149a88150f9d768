"""Wrong uses of a pool, refused in the caller's words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.pool import Pool
from tests.support import ACTORS


async def endless() -> AsyncIterator[int]:
    """Yield items."""
    yield 1


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda pool: pool.call("Crossing.plain", 1, device="0"), "device is a whole number from 0 to 0; got '0'"),
        (lambda pool: pool.call("Crossing.plain", 1, device=1.0), "device is a whole number from 0 to 0; got 1.0"),
        (lambda pool: pool.device("0"), "device is a whole number"),
        (lambda pool: pool.call("Crossing.plain", kwargs={1: 1}), "kwargs are a dict of arguments by name"),
        (lambda pool: pool.call("Crossing.plain", kwargs="x"), "kwargs are a dict of arguments by name"),
        (
            lambda pool: pool.call("Crossing.plain", 1).add_done_callback(5),
            "a callback is called with the reply; got 5",
        ),
        (lambda pool: pool.map("Crossing.plain", endless()), "pool.amap"),
        (lambda pool: pool.map("Crossing.plain", 3), "items must be an iterable; these are 3"),
        (lambda pool: pool.map("Crossing.plain", [1], journal=3), "journal must be a file's path; got 3"),
    ],
)
def test_a_wrong_argument_is_told_at_the_call(pool: Pool, use: Callable[[Pool], Any], said: str) -> None:
    """With what it may be."""
    with pytest.raises(errors.InvalidRequest, match=said):
        use(pool)


@pytest.fixture(scope="module")
def pool() -> Any:
    """A pool of one device."""
    threads = np.int64(2)  # a number of NumPy's is one
    with atomr_mp.start(
        actors=f"{ACTORS}/crossing.py:Crossing", gpus=1, backend="host", threads_per_worker=threads
    ) as pool:
        yield pool


def test_a_closed_pool_says_so_and_is_not_entered_again(pool: Pool) -> None:
    """Its devices may be ready, for others."""
    own = atomr_mp.connect(run_dir=pool.run_dir)
    with own:
        assert "0: ready" in repr(own)
    assert repr(own).endswith("closed>")
    with pytest.raises(errors.PoolLost, match="was closed"), own:
        pass


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"timeout": 3}, "did you mean start_timeout_s"),
        ({"actors": "words.py::Words"}, "does not name an actor"),
        ({"threads_per_worker": 10**9}, "threads_per_worker is 1000000000"),
    ],
)
def test_a_wrong_setting_is_told_before_anything_starts(settings: dict[str, Any], said: str) -> None:
    """In words, and with the right one."""
    with pytest.raises((errors.ConfigurationError, errors.InvalidRequest), match=said):
        atomr_mp.start(**settings)
