"""What is known of another machine's clock is never further off than it says, whatever the network does."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp.protocol.tunnel.clock import DRIFT, PoolClock

HOUR_NS = 3600 * 10**9
WAYS = st.integers(0, 10**9) | st.integers(0, 10**6)
WAITS = st.integers(0, HOUR_NS) | st.integers(0, 10**10)


@settings(max_examples=300)
@given(
    ahead_ns=st.integers(0, 10**16) | st.integers(0, 100),
    rate=st.fractions(-Fraction(1, DRIFT), Fraction(1, DRIFT)),
    measurements=st.lists(st.tuples(WAITS, WAYS, WAYS), min_size=1, max_size=12),
    later=WAITS,
    before=WAITS,
)
def test_the_error_holds(
    ahead_ns: int, rate: Fraction, measurements: list[tuple[int, int, int]], later: int, before: int
) -> None:
    """The pool's clock is within the error at any time; and what it has shown was not later than is said."""
    origin_ns = 10**15

    def shows(now_ns: int) -> Fraction:
        return ahead_ns + now_ns + (now_ns - origin_ns) * rate

    clock, now_ns = PoolClock(), origin_ns
    for wait_ns, there_ns, back_ns in measurements:
        asked_ns = now_ns + wait_ns
        now_ns = asked_ns + there_ns + back_ns
        clock.measure(asked_ns, int(shows(asked_ns + there_ns)), now_ns)
        error_ns = clock.error_ns(now_ns)
        assert abs(shows(now_ns) - now_ns - clock._middle_ns) <= error_ns
        fresh_ns = (there_ns + back_ns) // 2 + (there_ns + back_ns) // DRIFT + 3
        assert error_ns <= fresh_ns, "an answer that is better than what was known is not taken"
    now_ns += later
    assert abs(shows(now_ns) - now_ns - clock._middle_ns) <= clock.error_ns(now_ns)
    assert abs(clock.ahead_ns - clock._middle_ns) <= clock.error_ns(now_ns)
    then_ns = max(origin_ns, now_ns - before)
    assert clock.latest(int(shows(then_ns)), now_ns) >= then_ns
    assert clock.latest(int(shows(then_ns)), now_ns) - then_ns <= 2.1 * clock.error_ns(now_ns) + before // 4000 + 10


def test_one_machine_has_one_clock() -> None:
    """Where nothing was measured nothing is off; clocks that may be the same are taken to be."""
    clock = PoolClock()
    assert clock.latest(7, 10**18) == 7
    clock.measure(1000, 1400, 2000)
    assert clock.ahead_ns == 0
    clock.measure(3000, 3001, 3002)
    assert clock.ahead_ns == 0
    clock = PoolClock()
    clock.measure(5000, 6000, 5010)
    assert clock.ahead_ns == 995
