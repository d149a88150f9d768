"""Whoever judges another's silence does not count the time in which it did not run itself."""

from __future__ import annotations

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.own_time import LOOK_S, STEP_S, OwnTime, Patience

LIMIT_S: Final = 5.0
EVERY_S: Final = 0.5
"""How often the peer says something, as long as it runs."""

RUNS: Final = st.floats(0.01, LOOK_S)
PAUSES: Final = st.one_of(st.just(0.0), st.floats(0, 3 * STEP_S), st.floats(0, 1e6))


class Judge:
    """A loop that takes in what has come, and then judges."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.own = OwnTime(self.now_s)
        self.heard_s = self.own.now_s

    def look(self, after_s: float, *, hears: bool) -> bool:
        """Look at the clock after so long; return whether the peer counts as silent."""
        self.now_s += after_s
        self.own.look(self.now_s)
        if hears:
            self.heard_s = self.own.now_s
        return self.own.now_s - self.heard_s > LIMIT_S


@given(st.lists(st.tuples(RUNS, PAUSES), max_size=80))
def test_no_pause_of_the_judge_makes_a_verdict(steps: list[tuple[float, float]]) -> None:
    """The peer runs on meanwhile: what it has said waits, and is taken in first."""
    judge, said_s = Judge(), 1000.0
    for ran_s, paused_s in steps:
        now_s = judge.now_s + ran_s + paused_s
        hears = now_s - said_s >= EVERY_S
        said_s = now_s if hears else said_s
        assert not judge.look(ran_s + paused_s, hears=hears)


@given(st.lists(st.tuples(RUNS, PAUSES), max_size=80))
def test_no_pause_of_both_makes_a_verdict(steps: list[tuple[float, float]]) -> None:
    """As when their container is frozen: the peer says nothing meanwhile, and goes on as the judge does."""
    judge, unsaid_s, rested = Judge(), 0.0, True
    for ran_s, paused_s in steps:
        unsaid_s += ran_s
        hears = unsaid_s >= EVERY_S
        unsaid_s = 0.0 if hears else unsaid_s
        rested = rested or hears
        frozen_s, rested = (paused_s, False) if rested else (0.0, rested)
        assert not judge.look(ran_s + frozen_s, hears=hears)


@given(st.lists(st.tuples(RUNS, PAUSES), max_size=80))
def test_a_silent_peer_is_found_in_time(steps: list[tuple[float, float]]) -> None:
    """Within the limit and a look, of the time in which the judge ran; pauses only make it earlier."""
    judge, ran_in_all_s = Judge(), 0.0
    for ran_s, paused_s in steps:
        ran_in_all_s += ran_s
        found = judge.look(ran_s + paused_s, hears=False)
        assert found or ran_in_all_s <= LIMIT_S + 1e-6
        if found:
            return


@given(RUNS, st.floats(0, 1e6))
def test_what_is_left_out_is_told(ran_s: float, paused_s: float) -> None:
    """The clock counts all other time; one that goes back counts nothing."""
    own = OwnTime(50.0)
    left_out_s = own.look(50.0 + ran_s + paused_s)
    assert abs(own.now_s - 50.0 + left_out_s - ran_s - paused_s) < 1e-6
    assert own.now_s - 50.0 <= STEP_S
    before_s = own.now_s
    assert own.look(0.0) == 0.0
    assert own.now_s == before_s


@given(st.floats(0.001, 100), st.floats(0, 1e6))
def test_one_pause_of_any_length_leaves_patience(limit_s: float, paused_s: float) -> None:
    """And without a pause it is over after its time, whatever is waited for at once."""
    now_s = 7.0
    patience = Patience(limit_s, lambda: now_s)
    now_s += paused_s
    assert patience.left_s >= limit_s / 2 - 1e-6
    waited_s = 0.0
    while (wait_s := patience.wait_s) > 0:
        wait_s = max(wait_s, 1e-4)  # less is nothing to so great a number
        now_s, waited_s = now_s + wait_s, waited_s + wait_s
    assert waited_s <= limit_s + 2e-3
