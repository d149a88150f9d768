"""The table of a remote connection's life. Pure.

libzmq connects, and connects anew after a cut. Each connection begins with a hello and a resumption; calls are sent in
one state only, `OPEN`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class GatewayState(StrEnum):
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


class GatewayEvent(StrEnum):
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


class GatewayAction(StrEnum):
    """What is to be done."""

    HELLO = "hello"
    RESUME = "resume"
    SORT = "sort"
    """Send again what never came, end what was lost, and send what waits."""


_CONNECTED: Final = (GatewayState.GREETING, GatewayState.RESUMING, GatewayState.OPEN)

TRANSITIONS: Final[dict[tuple[GatewayState, GatewayEvent], tuple[GatewayState, GatewayAction | None]]] = {
    (GatewayState.DOWN, GatewayEvent.HANDSHAKE): (GatewayState.GREETING, GatewayAction.HELLO),
    (GatewayState.GREETING, GatewayEvent.WELCOMED): (GatewayState.RESUMING, GatewayAction.RESUME),
    (GatewayState.RESUMING, GatewayEvent.RESUMED): (GatewayState.OPEN, GatewayAction.SORT),
    # A cut was missed.
    **{(state, GatewayEvent.HANDSHAKE): (GatewayState.GREETING, GatewayAction.HELLO) for state in _CONNECTED},
    **{(state, GatewayEvent.CUT): (GatewayState.DOWN, None) for state in _CONNECTED},
    (GatewayState.RESUMING, GatewayEvent.UNKNOWN): (GatewayState.GREETING, GatewayAction.HELLO),
    (GatewayState.OPEN, GatewayEvent.UNKNOWN): (GatewayState.GREETING, GatewayAction.HELLO),
    **{(state, GatewayEvent.ENDED): (GatewayState.OVER, None) for state in GatewayState},
}
"""What is not here changes nothing: it is of a connection that has ended since."""


def step(state: GatewayState, event: GatewayEvent) -> tuple[GatewayState, GatewayAction | None]:
    """Return the next state, and what is to be done."""
    return TRANSITIONS.get((state, event), (state, None))
