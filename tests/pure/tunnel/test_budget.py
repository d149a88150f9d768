"""What keys may have at the relay, over all that opens and ends."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.messages.tunnel import ChannelKind
from atomr_mp.protocol.tunnel import budget
from atomr_mp.protocol.tunnel.budget import MOST, SESSIONS, ChannelGrant, KeyBudgets, KeyLimits
from atomr_mp.protocol.tunnel.flow import SMALL_WINDOW, WINDOWS

ALICE: Final = KeyLimits("alice", 3, 6 * 2**20)
BOB: Final = KeyLimits("bob", 2, 2**20)
POOL: Final = 4

STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from([ALICE, BOB]),
        st.sampled_from(list(ChannelKind)),
        st.sampled_from([b"one", b"two"]),
        st.integers(0, 30) | st.none(),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_key_has_more_than_it_may_and_what_has_ended_makes_room(
    steps: list[tuple[KeyLimits, ChannelKind, bytes, int | None]],
) -> None:
    """Sessions, of each key and of the pool; channels of a session; and bytes, but for small windows."""
    counted, open_ones = KeyBudgets(POOL), list[ChannelGrant]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(budget.MOST, ChannelKind.LANE, 5)
        for key, kind, session, ended in steps:
            if ended is not None and open_ones:
                counted.release(open_ones.pop(ended % len(open_ones)))
            before = [each for each in open_ones if each.key == key.name]
            of_kind = [each for each in open_ones if each.kind is kind]
            if kind in SESSIONS:
                full = sum(each.kind is kind for each in before) >= key.sessions or len(of_kind) >= POOL
            else:
                full = sum(each.session == session for each in of_kind) >= MOST[kind]
            try:
                grant = counted.admit(key, kind, session)
            except errors.Overloaded:
                assert full
                continue
            assert not full
            taken = sum(each.window for each in before)
            fits = taken + WINDOWS[kind] <= key.max_bytes
            assert grant.window == (WINDOWS[kind] if fits else SMALL_WINDOW)
            open_ones.append(grant)
    for each in open_ones:
        counted.release(each)
    assert [*counted._taken, *counted._sessions, *counted._channels] == []
