"""Worlds that remote clients make: the tests of local clients, unchanged, with a client that comes through a relay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

import atomr_mp
from tests import made_worlds
from tests import remote as served
from tests.contract.worlds import test_made_worlds, test_world_programs
from tests.support import Ledger
from tests.worlds import on_host

LOCAL: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "test_what_only_a_worker_can_know_is_refused_on_all_ranks",
            "test_what_one_rank_refuses_no_rank_begins",
        ),
        "views: no other machine can map the memory",
    ),
    "test_a_collective_as_a_step": "what a step computes is the worker's; drawn programs are run",
    **dict.fromkeys(
        (
            "test_of_calls_that_wait_for_each_other_one_is_refused",
            "test_many_clients_over_shared_refs_never_stand_still",
            "test_a_session_sees_only_its_own_worlds",
            "test_devices_of_the_pool_and_numbers_of_numpy_name_a_world_and_its_ranks",
            "test_a_session_has_so_many_worlds_and_no_more",
            "test_worlds_leave_nothing",
            "test_a_world_is_closed_with_its_last_reference",
        ),
        "connects by the run directory",
    ),
}
"""Why a test is not for remote clients, by its name."""

pytestmark = on_host


books, gate, world, pair = made_worlds.books, made_worlds.gate, made_worlds.world, made_worlds.pair


@pytest.fixture(scope="module")
def serving(books: Ledger) -> Iterator[served.Served]:
    """A pool behind a relay."""
    found = served.serve(books, made_worlds.EXCHANGING, gpus=4)
    with found.pool:
        yield found


@pytest.fixture(scope="module")
def pool(serving: served.Served) -> Iterator[atomr_mp.Pool]:
    """A remote client of it."""
    with serving.client() as remote:
        yield remote


for module in (test_made_worlds, test_world_programs):
    globals().update(served.repeated(module, LOCAL))
