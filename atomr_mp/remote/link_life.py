"""The table of a remote connection's life. Pure.

libzmq connects, and connects again after a cut. Each connection begins with a hello and a resumption; calls are sent in
the state `OPEN` only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class RemoteLinkState(StrEnum):
    """The state of the client's connection to the gateway."""

    DOWN = "down"
    """There is no connection; libzmq tries to make one."""
    GREETING = "greeting"
    """The hello was sent."""
    RESUMING = "resuming"
    """The unanswered calls were told."""
    OPEN = "open"
    """Calls are sent."""
    OVER = "over"
    """The session has ended."""


class RemoteLinkEvent(StrEnum):
    """An event of a connection."""

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


class RemoteLinkAction(StrEnum):
    """An action of the session."""

    HELLO = "hello"
    RESUME = "resume"
    SORT = "sort"
    """Send again what never came, end what was lost, and send what waits."""


_CONNECTED: Final = (RemoteLinkState.GREETING, RemoteLinkState.RESUMING, RemoteLinkState.OPEN)

TRANSITIONS: Final[dict[tuple[RemoteLinkState, RemoteLinkEvent], tuple[RemoteLinkState, RemoteLinkAction | None]]] = {
    (RemoteLinkState.DOWN, RemoteLinkEvent.HANDSHAKE): (RemoteLinkState.GREETING, RemoteLinkAction.HELLO),
    (RemoteLinkState.GREETING, RemoteLinkEvent.WELCOMED): (RemoteLinkState.RESUMING, RemoteLinkAction.RESUME),
    (RemoteLinkState.RESUMING, RemoteLinkEvent.RESUMED): (RemoteLinkState.OPEN, RemoteLinkAction.SORT),
    # A cut was missed.
    **{(state, RemoteLinkEvent.HANDSHAKE): (RemoteLinkState.GREETING, RemoteLinkAction.HELLO) for state in _CONNECTED},
    **{(state, RemoteLinkEvent.CUT): (RemoteLinkState.DOWN, None) for state in _CONNECTED},
    (RemoteLinkState.RESUMING, RemoteLinkEvent.UNKNOWN): (RemoteLinkState.GREETING, RemoteLinkAction.HELLO),
    (RemoteLinkState.OPEN, RemoteLinkEvent.UNKNOWN): (RemoteLinkState.GREETING, RemoteLinkAction.HELLO),
    **{(state, RemoteLinkEvent.ENDED): (RemoteLinkState.OVER, None) for state in RemoteLinkState},
}
"""A pair that is missing changes nothing: it concerns a connection that has ended since."""


def step(state: RemoteLinkState, event: RemoteLinkEvent) -> tuple[RemoteLinkState, RemoteLinkAction | None]:
    """Return the next state and the actions."""
    return TRANSITIONS.get((state, event), (state, None))
