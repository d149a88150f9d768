from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.client.taken_arguments import kept
from atomr_mp.ray.failover import ClusterCall, StartedCalls, goes_on
from atomr_mp.ray.gpu_locks import given_gpus
from atomr_mp.ray.outcomes import outcome, value_of

NOW_NS = 1_000
LATER_NS = 2_000


def lost(*, maybe_executed: bool) -> errors.PoolLost:
    """Return what a call ends with whose session was lost."""
    return errors.SessionLost("gone", maybe_executed=maybe_executed)


NOTHING = kept((), {})


@pytest.mark.parametrize(
    ("call", "error", "expected"),
    [
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS, idempotent=True), lost(maybe_executed=True), True),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS), lost(maybe_executed=True), False),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS), lost(maybe_executed=False), True),
        (ClusterCall("A.m", NOTHING, None, 1, LATER_NS), lost(maybe_executed=False), True),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS, node=0, idempotent=True), lost(maybe_executed=False), False),
        (ClusterCall("A.m", NOTHING, None, None, NOW_NS, idempotent=True), lost(maybe_executed=False), False),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS), errors.DeviceUnavailable("stopped"), True),
        (
            ClusterCall("A.m", NOTHING, None, None, LATER_NS),
            errors.DeviceUnavailable("stops", maybe_executed=True),
            False,
        ),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS, node=0), errors.DeviceUnavailable("stopped"), False),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS, idempotent=True), errors.WorkerLost("killed"), False),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS), errors.WorkerLost("killed"), False),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS), errors.WorkerLost("killed", maybe_executed=False), True),
        (ClusterCall("A.m", NOTHING, None, 1, LATER_NS), errors.ContextPoisoned("bad", maybe_executed=False), True),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS), errors.ConnectionLost("ended", maybe_executed=False), True),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS), errors.ConnectionLost("ended", maybe_executed=True), False),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS), errors.InvalidRequest("wrong"), False),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS, idempotent=True), errors.ActorFailed("raised"), False),
        (ClusterCall("A.m", NOTHING, None, None, LATER_NS, idempotent=True), None, False),
    ],
)
def test_only_what_may_run_elsewhere_goes_on(
    call: ClusterCall,
    error: errors.AtomrError | None,
    expected: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    """Calls run at most once across nodes; a named node and a deadline hold too."""
    assert goes_on(call, error, NOW_NS) is expected


NS = st.integers(0, 10**12)


@given(NS, NS, NS, NS, st.integers(-(10**15), 10**15), st.integers(-500, 500))
def test_no_call_that_a_node_may_have_forgotten_counts_as_unstarted(
    sent_before: int, forgotten: int, looked_after: int, heard_after: int, offset: int, drift_ppm: int
) -> None:
    """Whatever the clocks of two machines show, and however long the answer takes."""

    def here(node_ns: int) -> int:
        return offset + node_ns + node_ns * drift_ppm // 10**6

    sent_ns = here(max(0, forgotten - sent_before))
    heard_ns = here(forgotten + looked_after + heard_after)
    told = StartedCalls.told([7], looked_after, heard_ns)
    assert told.may_have(8, sent_ns)
    assert told.may_have(7, heard_ns)


def test_a_node_that_has_forgotten_nothing_knows_all() -> None:
    """Only the ids count then."""
    told = StartedCalls.told([7], None, 5)
    assert (told.may_have(7, 1), told.may_have(8, 1)) == (True, False)


def test_a_call_that_was_sent_after_all_that_was_forgotten_has_not_started() -> None:
    """A board that has forgotten something is of use still."""
    told = StartedCalls.told([7], 10**6, 10**9)
    assert not told.may_have(8, 10**9 - 10**5)


def test_an_error_crosses_as_a_value_with_all_its_facts() -> None:
    """A caller reads the same facts as beside the pool."""
    error = errors.WorkerLost("killed", maybe_executed=False, device=3, generation=7, cause="killed by SIGKILL")
    with pytest.raises(errors.WorkerLost, match="killed") as raised:
        value_of({"error": errors.to_wire(error)})
    assert errors.to_wire(raised.value) == errors.to_wire(error)
    assert value_of({"value": [1, 2]}) == [1, 2]


@pytest.mark.parametrize(
    ("ids", "visible", "expected"),
    [(["2", "3"], "2,3", ["2", "3"]), ([0], "0", ["0"]), (["GPU-1a2b"], " GPU-1a2b ", ["GPU-1a2b"])],
)
def test_the_gpus_that_ray_names_are_taken(ids: list[object], visible: str, expected: list[str]) -> None:
    """Ray names them by index or by UUID."""
    assert given_gpus(ids, visible) == expected


@pytest.mark.parametrize(
    ("ids", "visible"), [(["0"], None), (["0"], ""), (["0"], "1"), (["0"], "0,1"), ([], "0"), ([], None)]
)
def test_a_pool_does_not_start_on_gpus_that_ray_has_not_given(ids: list[object], visible: str | None) -> None:
    """A variable that was set by hand, or that Ray was ordered not to set, is refused."""
    with pytest.raises(errors.ConfigurationError, match="leave that variable to Ray"):
        given_gpus(ids, visible)


@pytest.mark.parametrize("error", [TypeError("no string"), OSError("no room"), KeyError("x")])
def test_an_error_of_another_kind_is_told_as_one_of_this_package(error: Exception) -> None:
    """Otherwise the start of a cluster would be tried again until its time is over."""

    async def fails() -> None:
        raise error

    found = asyncio.run(outcome(fails()))
    with pytest.raises(errors.ConfigurationError, match=type(error).__name__):
        value_of(found)
