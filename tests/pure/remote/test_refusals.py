from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.relay.refusals import EVERY_S, Refusals

STEPS = st.lists(st.tuples(st.floats(0.1, EVERY_S), st.integers(0, 3), st.integers(0, 3)), max_size=50)


@given(STEPS)
def test_refusals_are_written_at_once_and_then_now_and_again(steps: list[tuple[float, int, int]]) -> None:
    """None is left out: what comes between two events is in the next one."""
    refusals, now_s, keys, others, told_s, waits = Refusals(), 100.0, 0, 0, -EVERY_S, False
    for after_s, more_keys, more_others in steps:
        now_s, keys, others = now_s + after_s, keys + more_keys, others + more_others
        waits = waits or more_keys + more_others > 0
        text = refusals.look(keys, "10.0.0.7", others, now_s)
        assert bool(text) is (waits and now_s >= told_s + EVERY_S)
        if text:
            told_s, waits = now_s, False


def test_the_words_name_the_number_and_the_place() -> None:
    """Each kind is counted since the last event."""
    refusals = Refusals()
    assert refusals.look(2, "10.0.0.7", 0, 0.0) == (
        "the relay has refused 2 connections whose key is not admitted, the last from 10.0.0.7"
    )
    assert refusals.look(2, "10.0.0.7", 1, EVERY_S) == (
        "the relay has refused 1 channel or packet beyond a limit or the rules"
    )
