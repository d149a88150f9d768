"""Calls of worlds by `tcp://`: the tests of local clients, unchanged, with a client that comes through a relay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from tests import remote as served
from tests.contract.worlds import test_gang_calls
from tests.support import DEADLINE_S, Ledger
from tests.worlds import on_host, ready_world

SIZE: Final = 2

LOCAL: Final[dict[str, str]] = {
    "test_a_client_with_few_calls_does_not_wait_for_one_with_many": "connects by the run directory",
    "test_status_and_doctor_show_who_waits_for_whom": "asks the doctor, who reads the run directory",
    "test_many_calls_of_many_clients_have_one_order": "connects by the run directory",
}
"""Why a test is not for remote clients, by its name."""

pytestmark = on_host


@pytest.fixture(scope="module")
def serving() -> Iterator[served.Served]:
    """A pool with a world, behind a relay."""
    worlds = {"tp": {"devices": list(range(SIZE)), "actors": ["Worldly"]}}
    with Ledger() as ledger:
        found = served.serve(ledger, test_gang_calls.WORLDLY, gpus=SIZE, worlds=worlds)
        with found.pool:
            yield found


@pytest.fixture(scope="module")
def pool(serving: served.Served) -> Iterator[atomr_mp.Pool]:
    """A remote client of it."""
    with serving.client() as remote:
        yield remote


@pytest.fixture
def world(pool: atomr_mp.Pool) -> Any:
    """The world, ready."""
    return ready_world(pool)


globals().update(served.repeated(test_gang_calls, LOCAL))


def test_an_array_is_sent_once_for_all_ranks(pool: atomr_mp.Pool, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads and in event loops; each part of the call only names it."""
    memory: Any = pool._client.memory
    written: list[int] = []
    write = memory._copier.write

    def noted(slab: object, offset: int, content: memoryview) -> None:
        written.append(len(content))
        write(slab, offset, content)

    monkeypatch.setattr(memory._copier, "write", noted)
    x = np.arange(300_000.0)

    async def use() -> Any:
        return await pool.world("tp").call("Worldly.add", x + 1)

    np.testing.assert_array_equal(world.call("Worldly.add", x).result(DEADLINE_S), 3 * x)
    np.testing.assert_array_equal(asyncio.run(use()), 3 * (x + 1))
    assert written == [x.nbytes, x.nbytes]
