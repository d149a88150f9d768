"""What a worker knows of its sessions and their connections, without a socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages import control
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.requests.peers import MOST_EARLY, MOST_FORMER, Peers, SequenceTracker


@given(st.permutations(range(1, 30)), st.integers(0, 29))
def test_serials_are_known_up_to_the_first_that_is_missing(serials: list[int], count: int) -> None:
    """In whatever order connections bring them; nothing is kept of complete ones."""
    known, come = SequenceTracker(), set[int]()
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
    known, come = SequenceTracker(), set[int]()
    for serial in serials:
        assert known.add(serial) == (serial not in come)
        come.add(serial)
        assert known.upto == next(number - 1 for number in range(1, 14) if number not in come)


def test_serials_that_nobody_has_counted_are_refused() -> None:
    """What is kept of them is bounded, whatever comes."""
    known = SequenceTracker()
    for serial in range(2, MOST_EARLY + 2):
        known.add(serial)
    with pytest.raises(errors.ProtocolError, match="releases have come"):
        known.add(MOST_EARLY + 2)
    known = SequenceTracker()
    for serial in [1, 2, 1, 2, 1]:
        known.add(serial)
    assert not known._early


class NoMemory:
    """Stands for a device's memory, which these sessions do not use."""

    @property
    def refs(self) -> NoMemory:
        """Itself."""
        return self

    def admit(self, number: int) -> Holder:
        """Take a session in."""
        return Holder(number)

    def resolver(self, _holder: Holder) -> None:
        """Resolve nothing."""


def test_sessions_that_ended_are_known_for_a_while() -> None:
    """The last of them, by their secrets: what is kept is bounded."""
    peers = Peers(Window(1, 1), NoMemory())  # type: ignore[arg-type]
    names = [number.to_bytes(16, "big") for number in range(MOST_FORMER + 1)]
    for number, name in enumerate(names):
        peers.admit(control.SessionOpened(number, name, name[::-1]))
        assert peers.former_secret(name) is None, "it lives"
        peers.end(number)
        assert peers.secret(name) is None
    assert peers.former_secret(names[0]) is None
    assert [peers.former_secret(name) for name in names[1:]] == [name[::-1] for name in names[1:]]
    expelled = b"expelled".ljust(16)
    peers.admit(control.SessionOpened(9999, expelled, bytes(16)))
    peers.end(9999, expelled=True)
    assert peers.former_secret(expelled) is None
