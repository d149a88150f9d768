from __future__ import annotations

from atomr_mp.serve.parent.backoff import FIRST_RETRY_S, LAST_RETRY_S, LONG_S, Backoff


def test_what_ends_at_once_is_started_again_ever_later() -> None:
    """Up to a bound; what has lived for long is started again soon."""
    backoff = Backoff()
    delays_s = [backoff.next_s(0.0) for _ in range(12)]
    assert delays_s[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert delays_s == sorted(delays_s)
    assert delays_s[-1] == LAST_RETRY_S
    assert backoff.next_s(LONG_S) == FIRST_RETRY_S
