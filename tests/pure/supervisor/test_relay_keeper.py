"""When a relay that is silent is replaced."""

from __future__ import annotations

import pytest

from atomr_mp.protocol.own_time import RELAY_QUIET_S
from atomr_mp.supervisor.care.relay import LEAST_QUIET_S, LOOK_S, quiet_s


@pytest.mark.parametrize("grace_s", [6.0, 7.0, 9.9, 10.0, 30.0, 3600.0])
def test_a_silent_relay_is_replaced_before_its_clients_give_up(grace_s: float) -> None:
    """And not before its loop may be only late."""
    assert LEAST_QUIET_S <= quiet_s(grace_s) <= RELAY_QUIET_S
    assert quiet_s(grace_s) + LOOK_S < grace_s


@pytest.mark.parametrize("grace_s", [0.0, 0.5, 5.9])
def test_where_clients_wait_too_short_the_relay_has_its_time(grace_s: float) -> None:
    """No relay could be found hung in time for them."""
    assert quiet_s(grace_s) == RELAY_QUIET_S
