"""The contract holds by `tcp://` too: the tests of local pools, unchanged, with a client that comes through a relay.

Tests that start pools with settings of their own are not repeated. What only a local client has is named in `LOCAL`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest

import atomr_mp
from tests import remote as served
from tests.contract.calls import test_client, test_map, test_scribbling, test_waiting
from tests.contract.libraries import test_fft, test_program, test_refs_as_arrays
from tests.contract.memory import test_buffers
from tests.support import BYSTANDER, KEEPER, PROBE, Ledger

_BY_DIRECTORY: Final = "connects by the run directory"
_INSIDE: Final = "looks inside a local client"
_MAPPED: Final = "views: no other machine can map the memory"
_OWN: Final = "needs a pool of its own"
_SAME: Final = "what a device computes is the same; each operator is repeated once"

LOCAL: Final[dict[str, str]] = {
    "test_a_callback_may_wait_and_close": _BY_DIRECTORY,
    "test_a_client_may_be_closed_while_a_callback_is_added": _BY_DIRECTORY,
    "test_what_methods_have_made_for_a_client_goes_with_it": _BY_DIRECTORY,
    "test_slow_input_does_not_hold_back_what_it_gave_before": _BY_DIRECTORY,
    "test_the_session_ends_whatever_fails_meanwhile": _BY_DIRECTORY,
    "test_a_view_excludes_writers_until_its_last_array_is_gone": _MAPPED,
    "test_a_writable_view_excludes_everybody": _MAPPED,
    "test_a_view_outlives_its_ref": _MAPPED,
    "test_a_view_whose_elements_share_memory_is_not_writable": _MAPPED,
    "test_other_libraries_see_views": _MAPPED,
    "test_a_view_stays_readable_when_its_generation_has_ended": _MAPPED,
    "test_a_closed_loop_s_call_finds_its_arguments_as_they_were": _OWN,
    "test_a_device_names_its_libraries": _OWN,
    "test_a_worker_s_end_in_the_middle_of_a_put_is_not_noticed": _OWN,
    "test_a_ref_is_no_value": _OWN,
    "test_expressions_over_refs_are_those_of_numpy": _SAME,
    "test_results_are_refs_where_the_method_makes_them": _MAPPED,
    "test_a_view_in_the_devices_own_process_is_refused": _MAPPED,
    "test_the_supervisor_has_loaded_nothing_that_computes": _MAPPED,
    "test_an_array_where_workers_reach_it_is_not_copied_on_its_way": _MAPPED,
    "test_what_is_shared_is_claimed_once": _BY_DIRECTORY,
    "test_a_large_result_that_is_let_go_is_told_as_what_it_is": _INSIDE,
}
"""Why a test is not for remote clients, by its name."""


@pytest.fixture(scope="module")
def serving() -> Iterator[tuple[Ledger, served.Served]]:
    """A pool that listens, for all tests."""
    with Ledger() as ledger:
        actors = PROBE, BYSTANDER, KEEPER, test_map.MAPPED, test_scribbling.SCRIBBLER
        found = served.serve(ledger, *actors, gpus=2, backoff_initial_s=0.05, max_restarts=1000)
        with found.pool:
            yield ledger, found


@pytest.fixture
def ledger(serving: tuple[Ledger, served.Served]) -> Ledger:
    """The shared pool's ledger, with nothing noted yet."""
    for path in serving[0].path.iterdir():
        if path.name == "runs" or path.is_fifo():
            path.unlink()
    return serving[0]


@pytest.fixture
def notes(ledger: Ledger) -> Ledger:
    """The same, by the name that other tests have for it."""
    return ledger


@pytest.fixture
def pool(serving: tuple[Ledger, served.Served]) -> Iterator[atomr_mp.Pool]:
    """A remote client, with no history."""
    with serving[1].client() as own:
        yield own


@pytest.fixture
def fresh(pool: atomr_mp.Pool) -> atomr_mp.Pool:
    """The pool, whose workers may end."""
    return pool


@pytest.fixture
def two(pool: atomr_mp.Pool) -> atomr_mp.Pool:
    """The pool, which has two devices."""
    return pool


@pytest.fixture
def device(pool: atomr_mp.Pool) -> atomr_mp.Device:
    """A device, as a remote client sees it."""
    return pool.device(0)


@pytest.fixture
def random() -> np.random.Generator:
    """Numbers, the same in every run."""
    return np.random.default_rng(7)


for _module in (
    test_client,
    test_map,
    test_scribbling,
    test_buffers,
    test_program,
    test_fft,
    test_refs_as_arrays,
):
    globals().update(served.repeated(_module, LOCAL))

_WAITING: Final = served.repeated(test_waiting, LOCAL)  # the others count places in a small window
globals().update({name: test for name, test in _WAITING.items() if name.startswith("test_amap")})
