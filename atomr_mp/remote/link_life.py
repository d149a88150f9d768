"""The table of a remote connection's life. Pure.

libzmq connects, and connects anew after a cut. Each connection begins with a hello and a resumption; calls are sent in
one state only, `OPEN`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class LinkState(StrEnum):
    """How the client stands with the gateway."""

    DOWN = "down"
    """There is no connection; libzmq tries to make one."""
    GREETING = "greeting"
    """The hello was sent."""
    RESUMING = "resuming"
    """What is unanswered was told."""
    OPEN = "open"
    """Calls are sent."""
    OVER = "over"
    """The session has ended."""


class LinkEvent(StrEnum):
    """What happens."""

    HANDSHAKE = "handshake"
    """A new connection is authenticated."""
    CUT = "cut"
    """The connection has ended."""
    WELCOMED = "welcomed"
    RESUMED = "resumed"
    UNKNOWN = "unknown"
    """The gateway does not know the connection, or has another epoch."""
    ENDED = "ended"
    """The gateway has ended the session, or the client has."""


class LinkAction(StrEnum):
    """What is to be done."""

    HELLO = "hello"
    RESUME = "resume"
    SORT = "sort"
    """Send again what never came, end what was lost, and send what waits."""


_CONNECTED: Final = (LinkState.GREETING, LinkState.RESUMING, LinkState.OPEN)

TRANSITIONS: Final[dict[tuple[LinkState, LinkEvent], tuple[LinkState, LinkAction | None]]] = {
    (LinkState.DOWN, LinkEvent.HANDSHAKE): (LinkState.GREETING, LinkAction.HELLO),
    (LinkState.GREETING, LinkEvent.WELCOMED): (LinkState.RESUMING, LinkAction.RESUME),
    (LinkState.RESUMING, LinkEvent.RESUMED): (LinkState.OPEN, LinkAction.SORT),
    # A cut was missed.
    **{(state, LinkEvent.HANDSHAKE): (LinkState.GREETING, LinkAction.HELLO) for state in _CONNECTED},
    **{(state, LinkEvent.CUT): (LinkState.DOWN, None) for state in _CONNECTED},
    (LinkState.RESUMING, LinkEvent.UNKNOWN): (LinkState.GREETING, LinkAction.HELLO),
    (LinkState.OPEN, LinkEvent.UNKNOWN): (LinkState.GREETING, LinkAction.HELLO),
    **{(state, LinkEvent.ENDED): (LinkState.OVER, None) for state in LinkState},
}
"""What is not here changes nothing: it is of a connection that has ended since."""


def step(state: LinkState, event: LinkEvent) -> tuple[LinkState, LinkAction | None]:
    """Return the next state, and what is to be done."""
    return TRANSITIONS.get((state, event), (state, None))
