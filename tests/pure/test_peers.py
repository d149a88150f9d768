"""What a worker knows of its sessions and their connections, without a socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp_workers.peers import MOST_EARLY, Serials


@given(st.permutations(range(1, 30)), st.integers(0, 29))
def test_serials_are_known_up_to_the_first_that_is_missing(serials: list[int], count: int) -> None:
    """In whatever order connections bring them; nothing is kept of what is complete."""
    known, come = Serials(), set[int]()
    for serial in serials[:count]:
        known.add(serial)
        come.add(serial)
        expected = next(number - 1 for number in range(1, 31) if number not in come)
        assert known.upto == expected
        assert len(known._early) == len(come) - expected
    for serial in serials[count:]:
        known.add(serial)
    assert known.upto == 29
    assert not known._early


@given(st.lists(st.integers(1, 12), max_size=40))
def test_a_serial_that_comes_again_changes_nothing(serials: list[int]) -> None:
    """No promise of the client's is needed for the count to be right."""
    known, come = Serials(), set[int]()
    for serial in serials:
        known.add(serial)
        come.add(serial)
        assert known.upto == next(number - 1 for number in range(1, 14) if number not in come)


def test_serials_that_nobody_has_counted_are_refused() -> None:
    """What is kept of them is bounded, whatever comes."""
    known = Serials()
    for serial in range(2, MOST_EARLY + 2):
        known.add(serial)
    with pytest.raises(errors.ProtocolError, match="releases have come"):
        known.add(MOST_EARLY + 2)
    known = Serials()
    for serial in [1, 2, 1, 2, 1]:
        known.add(serial)
    assert not known._early
