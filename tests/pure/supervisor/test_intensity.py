from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.messages.devices import Circuit
from atomr_mp.supervision.intensity import (
    OPEN_LEAST_S,
    Granted,
    History,
    Opened,
    Refused,
    ask,
    forgiven,
    succeeded,
    trial_s,
    tried,
)
from atomr_mp.supervision.settings import PoolSettings

policies = st.builds(
    PoolSettings,
    max_restarts=st.integers(0, 6),
    within_s=st.floats(0.001, 1000),
    backoff_initial_s=st.floats(0, 10),
    backoff_factor=st.floats(1, 1e6),
    backoff_max_s=st.floats(10, 100),
)
gaps = st.lists(st.floats(0, 500), max_size=50)


def test_three_restarts_in_a_minute_are_allowed_and_the_fourth_opens_the_circuit() -> None:
    """The default rule, in numbers that the reason names; the old rule, where the device gives up."""
    policy, history = PoolSettings(), History.EMPTY
    for now_s in (0.0, 20.0, 40.0):
        history, verdict = ask(policy, history, now_s)
        assert isinstance(verdict, Granted)
    why = "4 unplanned ends within 60 s; restarts allowed in that time: 3"
    opened, verdict = ask(policy, history, 60.0)
    assert verdict == Opened(0.5, why)
    assert opened.restarts == history.restarts, "what was refused did not happen"
    assert (opened.circuit, history.circuit) == (Circuit.OPEN, Circuit.CLOSED)
    assert ask(PoolSettings(give_up=True), history, 60.0)[1] == Refused(why)
    _, verdict = ask(policy, history, 60.1)
    assert isinstance(verdict, Granted), "the first is more than a minute ago"


def test_a_policy_of_no_restarts_opens_the_circuit_at_the_first() -> None:
    """`max_restarts` may be 0."""
    for give_up, kind in ((False, Opened), (True, Refused)):
        _, verdict = ask(PoolSettings(max_restarts=0, give_up=give_up), History.EMPTY, 0.0)
        assert isinstance(verdict, kind)


def test_a_process_that_is_tried_opens_the_circuit_again_for_longer() -> None:
    """By its first end, also if it was ready before; and up to the back-off's limit."""
    policy, history = PoolSettings(max_restarts=0, backoff_initial_s=1.0, backoff_max_s=5.0), History.EMPTY
    delays = []
    for now_s in range(5):
        history, verdict = ask(policy, history, now_s)
        assert isinstance(verdict, Opened)
        delays.append(verdict.delay_s)
        history = tried(history)
        assert history.circuit is Circuit.HALF_OPEN
        history = succeeded(history)
        assert history.circuit is Circuit.HALF_OPEN, "to be ready is not to serve"
    assert delays == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert "5 tries after too many unplanned ends" in str(ask(policy, history, 9.0)[1])


@given(policy=policies, walk=st.lists(st.tuples(st.floats(0, 100), st.sampled_from(["end", "ready", "served"]))))
def test_whatever_happens_one_process_is_tried_at_a_time_and_later_each_time(
    policy: PoolSettings, walk: list[tuple[float, str]]
) -> None:
    """An open circuit leads to a trial. A trial leads to an open circuit by any end, and closes it by serving."""
    history, now_s, last_s = History.EMPTY, 0.0, 0.0
    for gap_s, event in walk:
        now_s += gap_s
        before = history.circuit
        assert before is not Circuit.OPEN
        if event == "ready":
            history = succeeded(history)
            assert history.circuit is before
        elif event == "served":
            history, last_s = History.EMPTY, 0.0
        else:
            history, verdict = ask(policy, history, now_s)
            assert not isinstance(verdict, Refused)
            if before is Circuit.HALF_OPEN:
                assert isinstance(verdict, Opened), "what is on trial has no further restarts"
            if isinstance(verdict, Opened):
                assert history.circuit is Circuit.OPEN
                assert last_s <= verdict.delay_s <= max(policy.backoff_max_s, OPEN_LEAST_S)
                assert verdict.delay_s >= OPEN_LEAST_S, "a device that cannot live is not started without end"
                last_s = verdict.delay_s
                history = tried(history)
            else:
                assert history.circuit is Circuit.CLOSED


@given(policy=policies)
def test_who_serves_between_two_ends_for_as_long_as_a_trial_never_opens_the_circuit(policy: PoolSettings) -> None:
    """A trial is as long as ends may be apart on the whole."""
    history, now_s = History.EMPTY, 0.0
    for _ in range(2 * policy.max_restarts + 2):
        now_s += trial_s(policy) * 1.001
        if policy.max_restarts:
            history, verdict = ask(policy, history, now_s)
            assert isinstance(verdict, Granted)


def test_an_end_that_is_forgiven_closes_the_circuit_that_it_has_opened() -> None:
    """What stood before stands again: closed, or half open."""
    policy = PoolSettings(max_restarts=0)
    first, _ = ask(policy, History.EMPTY, 1.0)
    assert forgiven(first, 0.5).circuit is Circuit.OPEN
    assert forgiven(first, 1.0) == History.EMPTY
    second, _ = ask(policy, tried(first), 2.0)
    assert forgiven(second, 2.0) == tried(first)
    assert forgiven(second, 1.0).circuit is Circuit.OPEN


def test_the_back_off_grows_from_nothing_to_its_limit_and_starts_anew_after_a_success() -> None:
    """At once, then doubling; a success resets the delay and not the window."""
    policy = PoolSettings(max_restarts=100, backoff_initial_s=0.5, backoff_factor=2.0, backoff_max_s=3.0)
    history, delays = History.EMPTY, []
    for now_s in range(6):
        history, verdict = ask(policy, history, now_s)
        assert isinstance(verdict, Granted)
        delays.append(verdict.delay_s)
    assert delays == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    before = history.restarts
    history, verdict = ask(policy, succeeded(history), 6.0)
    assert verdict == Granted(0.0)
    assert history.restarts == (*before, 6.0)


@given(policy=policies, gaps=gaps, data=st.data())
def test_no_window_ever_holds_more_restarts_than_allowed(
    policy: PoolSettings, gaps: list[float], data: st.DataObject
) -> None:
    """Whatever the times, and however often an incarnation succeeds in between."""
    history, now_s = History.EMPTY, 0.0
    granted: list[float] = []
    for gap_s in gaps:
        now_s += gap_s
        if data.draw(st.booleans()):
            history = succeeded(history)
        asked, verdict = ask(policy, history, now_s)
        history = asked if isinstance(verdict, Granted) else History(asked.restarts)
        in_window = [then for then in granted if now_s - then <= policy.within_s]
        assert isinstance(verdict, Granted) == (len(in_window) < policy.max_restarts)
        if isinstance(verdict, Granted):
            granted.append(now_s)
        assert len(history.restarts) <= policy.max_restarts, "the history stays as short as the rule"


@given(policy=policies, count=st.integers(2, 2000))
def test_delays_grow_and_stay_within_their_bounds(policy: PoolSettings, count: int) -> None:
    """Also after more failures in a row than a float's exponent can follow."""
    streaks = [0, 1, 2, count, count + 1]
    delays = []
    for streak in streaks:
        _, verdict = ask(PoolSettings(max_restarts=1, within_s=1.0, **_back_off(policy)), History(streak=streak), 0.0)
        assert isinstance(verdict, Granted)
        delays.append(verdict.delay_s)
    assert delays[0] == 0.0
    assert delays[1] == policy.backoff_initial_s
    assert all(a <= b for a, b in pairwise(delays))
    assert delays[-1] <= policy.backoff_max_s


def _back_off(policy: PoolSettings) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in PoolSettings.__struct_fields__ if name.startswith("backoff")}


def test_a_restart_that_is_forgiven_does_not_count() -> None:
    """It makes room for another, once; what was never granted is not missed."""
    policy, history = PoolSettings(max_restarts=2), History.EMPTY
    for now_s in (0.0, 1.0):
        history, _ = ask(policy, history, now_s)
    history = forgiven(forgiven(history, 1.0), 7.0)
    assert history.restarts == (0.0,)
    history, verdict = ask(policy, history, 2.0)
    assert isinstance(verdict, Granted)
    _, verdict = ask(policy, history, 3.0)
    assert isinstance(verdict, Opened)
