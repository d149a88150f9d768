"""A channel's life at the client, as a table: (state, event) to the next state. Pure.

A cut of the network is not the end of a channel: another connection takes its place, on which the channel is named. The
relay says there how far it has come, and both ends send the rest again. A channel that the relay had not confirmed is
opened again, for the relay may never have heard of it.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final

from atomr_mp import errors


class ChannelState(StrEnum):
    """The state of a channel."""

    OPENING = auto()
    """Asked for on its first connection. What it carries follows at once."""
    OPEN = auto()
    """Has a connection, on which the relay has confirmed it."""
    UNOPENED = auto()
    """Without a connection, and the relay had not confirmed it."""
    REOPENING = auto()
    """Asked for on a further connection. What it carries waits for the relay's word how far it has come."""
    CUT = auto()
    """Without a connection."""
    RETURNING = auto()
    """Named on a further connection. What it carries waits for the relay's word how far it has come."""
    ENDED = auto()


class ChannelEvent(StrEnum):
    """An event in the life of a channel."""

    OPENED = auto()
    """The relay has confirmed that it is open."""
    RESUMED = auto()
    """The relay has taken it up again."""
    LOST = auto()
    """Its connection has ended, or has not come about in time."""
    DIALLED = auto()
    """Another connection was begun."""
    OVER = auto()
    """The relay has ended it, or this end has, or it was cut for too long."""


_S, _E = ChannelState, ChannelEvent

TRANSITIONS: Final[dict[tuple[ChannelState, ChannelEvent], ChannelState]] = {
    (_S.OPENING, _E.OPENED): _S.OPEN,
    (_S.OPENING, _E.LOST): _S.UNOPENED,
    (_S.OPEN, _E.LOST): _S.CUT,
    (_S.UNOPENED, _E.DIALLED): _S.REOPENING,
    (_S.REOPENING, _E.OPENED): _S.OPEN,
    (_S.REOPENING, _E.LOST): _S.UNOPENED,
    (_S.CUT, _E.DIALLED): _S.RETURNING,
    (_S.RETURNING, _E.RESUMED): _S.OPEN,
    (_S.RETURNING, _E.LOST): _S.CUT,
    **{(state, _E.OVER): _S.ENDED for state in _S},
}

AWAY: Final = frozenset({_S.UNOPENED, _S.CUT})
"""States without a connection."""

TALKING: Final = frozenset({_S.OPENING, _S.OPEN})
"""States in which what is sent leaves at once; in others it is kept, and sent once the relay has said what it has."""

ATTEMPTS: Final = frozenset({_S.OPENING, _S.REOPENING, _S.RETURNING})
"""States in which the relay's word is waited for, on a connection that may not have come about."""


def step(state: ChannelState, event: ChannelEvent) -> ChannelState:
    """Return the state that an event leads to.

    Raises:
        ProtocolError: The event has no meaning in this state: the relay does not keep to the order.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise errors.ProtocolError(f"a channel that is {state} was {event}") from None


FIRST_AGAIN_NS: Final = 10_000_000
LAST_AGAIN_NS: Final = 1_000_000_000
"""Least and greatest pause before a further attempt; the first comes at once."""

ATTEMPT_NS: Final = 3_000_000_000
"""How long an attempt may take until the relay's word has come."""


def again_ns(attempts: int) -> int:
    """Return the pause before the next attempt to connect, after so many in a row that have failed."""
    return 0 if not attempts else min(LAST_AGAIN_NS, FIRST_AGAIN_NS << min(attempts - 1, 20))
