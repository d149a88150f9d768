from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.supervision.recycle import JITTER, MEMORY_AFTER_S, PATIENCE_S, Life, choose, due, has_limit
from atomr_mp.supervision.settings import PoolSettings

YOUNG = Life(age_s=0.0, early=0.5, requests=0, memory_bytes=0)


def test_without_limits_nobody_is_replaced() -> None:
    """However long it has worked."""
    assert not has_limit(PoolSettings())
    assert due(PoolSettings(), Life(1e9, 1.0, 10**12, 2**50)) == ""


def test_each_limit_is_told_with_its_numbers() -> None:
    """Of requests and memory from the limit on."""
    assert due(PoolSettings(max_requests=5), YOUNG._replace(requests=4)) == ""
    assert due(PoolSettings(max_requests=5), YOUNG._replace(requests=5)) == "it has run 5 requests (max_requests 5)"
    old = YOUNG._replace(age_s=MEMORY_AFTER_S)
    assert due(PoolSettings(max_memory_bytes=7), old._replace(memory_bytes=6)) == ""
    assert "8 bytes of memory (max_memory_bytes 7)" in due(
        PoolSettings(max_memory_bytes=7), old._replace(memory_bytes=8)
    )


def test_it_is_told_who_says_what_is_taken_of_a_device() -> None:
    """The driver, who knows all, or the worker, who knows its slabs."""
    limits = PoolSettings(max_device_bytes=7)
    assert has_limit(limits)
    old = YOUNG._replace(age_s=MEMORY_AFTER_S)
    assert due(limits, old._replace(device_bytes=6)) == ""
    assert due(limits, YOUNG._replace(device_bytes=8)) == ""
    assert due(limits, old._replace(device_bytes=8)) == "its slabs take 8 bytes of its device (max_device_bytes 7)"
    told = due(limits, old._replace(device_bytes=7, by_driver=True))
    assert told == "by what the driver tells, it takes 7 bytes of its device (max_device_bytes 7)"


def test_memory_does_not_count_while_a_worker_is_young() -> None:
    """A limit below what an actor's set-up takes would replace its workers without end."""
    assert due(PoolSettings(max_memory_bytes=1), Life(MEMORY_AFTER_S - 1, 0.0, 0, 100)) == ""


@given(early=st.floats(0, 1), age_s=st.floats(0, 200))
def test_age_is_never_passed_and_no_worker_goes_much_too_early(early: float, age_s: float) -> None:
    """Between four fifths of the limit and the limit, as was drawn."""
    why = due(PoolSettings(max_age_s=100), Life(age_s, early, 0, 0))
    if age_s >= 100:
        assert why
    if age_s < 100 * (1 - JITTER):
        assert not why


def test_one_at_a_time_the_oldest_first() -> None:
    """And none while a device is away."""
    limits = PoolSettings(max_requests=1)
    ready = {0: Life(1.0, 0.0, 9, 0), 1: Life(3.0, 0.0, 9, 0), 2: Life(5.0, 0.0, 0, 0)}
    assert choose(limits, ready, away=1) is None
    chosen = choose(limits, ready, away=0)
    assert chosen is not None
    assert chosen[0] == 1
    assert choose(limits, {}, away=0) is None


def test_a_worker_in_which_clients_hold_buffers_is_left_for_a_while() -> None:
    """Another goes before it; it goes in the end, or nothing would hold against a client that forgets."""
    limits = PoolSettings(max_requests=1)
    holding = Life(9.0, 0.0, 9, 0, leases=1)
    assert choose(limits, {0: holding}, away=0) is None
    chosen = choose(limits, {0: holding, 1: YOUNG._replace(requests=9)}, away=0)
    assert chosen is not None
    assert chosen[0] == 1
    assert choose(limits, {0: holding._replace(waited_s=PATIENCE_S)}, away=0)
