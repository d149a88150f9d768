"""A link's life as a table: (state, event) to the next state and what the lane does. Pure.

A link is a device as one lane sees it, through all incarnations. A lane turns what it sees into events, calls `step`,
and carries the actions out in their order. `CONNECT` leads to the next event: `CONNECTED` or `REFUSED`. The timer that
`ARM` starts leads to `RETRY`, and is forgotten with any other event that leaves its state.

The table keeps these promises, whatever the order of events; tests walk all of it:

- Calls are sent in `SERVING` only: on a connection to an incarnation that takes calls, and was not let go.
- An incarnation's last answers are taken in before its connection is closed, and its requests are settled after that.
- While a worker lives and its connection does not, another attempt is under way or a timer runs. Requests that were on
  the connection are given up as soon as the worker is known to live, or cannot be reached.
- Whoever calls a device that takes no work, or cannot be reached, is told at once; others wait.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple

from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState

MOST_FAILURES: Final = 6
"""After as many failed attempts in a row a device counts as unreachable, for this lane."""

FIRST_RETRY_S: Final = 0.01
"""A worker's end looks like a lost connection until the supervisor tells of it; mostly it has told by then."""

LAST_RETRY_S: Final = 5.0

CLOSED: Final = frozenset({DeviceState.STOPPED, DeviceState.STOPPING, DeviceState.QUARANTINED, DeviceState.TRIPPED})
"""States in which a device takes no work, nor will by itself, or not soon."""


class LinkState(StrEnum):
    """How a lane stands with a device."""

    HOLDING = auto()
    """Calls wait for an incarnation. The connection to the last one may be there, for its last answers."""
    CONNECTING = auto()
    """Between `CONNECT` and its result."""
    SERVING = auto()
    """Connected; calls are sent."""
    CUT = auto()
    """Without a connection, though the worker lives as far as is known. Calls wait for the next attempt."""
    TRYING = auto()
    """The attempt: the worker has not let the new connection in. Calls wait."""
    UNREACHABLE = auto()
    """Many attempts have failed. Calls are refused, and attempts go on."""
    PROBING = auto()
    """Such an attempt."""
    CLOSED = auto()
    """The device takes no work. Calls are refused."""
    OVER = auto()
    """The pool is lost."""


class LinkEvent(StrEnum):
    """What can happen to a link."""

    OFFERED = auto()
    """The supervisor tells of an incarnation that takes calls, and is not the last one known."""
    SERVES = auto()
    """The supervisor says once more that the last one known takes calls."""
    HOLDS = auto()
    """The supervisor says that the device takes no calls for now."""
    CLOSES = auto()
    """The supervisor says that the device takes no work, nor will by itself, or not soon."""
    CONNECTED = auto()
    """The connection is made."""
    REFUSED = auto()
    """It could not be made, or ended before the worker had let it in."""
    GIVEN_UP = auto()
    """The same, after many failures."""
    ADMITTED = auto()
    """The worker has let the connection in."""
    FATAL = auto()
    """The incarnation has answered that it ends."""
    CUT = auto()
    """The connection has ended, and the incarnation's end was not told."""
    RETRY = auto()
    """The timer has run out; or a call comes, where no descriptor was left here."""
    ENDED = auto()
    """The incarnation has ended, and all that it has sent is here."""
    FORMER_ENDED = auto()
    """The same of one before it."""
    POOL_LOST = auto()
    """There is no supervisor any more, or it has ended the session."""


class LinkAction(StrEnum):
    """What a lane does."""

    HOLD = auto()
    """Move what waits to be sent together to what waits for the device."""
    SEND_HELD = auto()
    """Send what waits for the device."""
    REFUSE_HELD = auto()
    """End what waits for the device: it takes no work."""
    RETIRE = auto()
    """Keep the connection as the former incarnation's: it may still answer."""
    CONNECT = auto()
    """Connect to the device's incarnation, or use what was connected to its standby."""
    CONDEMN = auto()
    """Lose what ran on a hung incarnation: what it may still have answered came too late."""
    TAKE_LAST = auto()
    """Take in what has arrived."""
    CLOSE = auto()
    """Close the connection, if there is one."""
    TAKE_FORMER = auto()
    """Take in what the former incarnation has sent, and close its connection."""
    RESOLVE = auto()
    """Give the requests of the incarnation that has ended their fates."""
    UNSEND = auto()
    """Put back what was given to a connection that its worker had not let in: it never left."""
    LOSE = auto()
    """Lose the requests that were on the lost connection: their answers come no more."""
    REPEAT = auto()
    """Tell the worker what it has sent in vain, and repeat the releases that it has not acknowledged."""
    TELL = auto()
    """Tell the supervisor how the attempts fare."""
    ARM = auto()
    """Start the timer of the next attempt."""
    DRAIN = auto()
    """Take in the last answers of workers that end with their pool, and close all connections."""
    FAIL_ALL = auto()
    """End all requests."""


class LinkStep(NamedTuple):
    """The next state and what is done, in this order."""

    state: LinkState
    actions: tuple[LinkAction, ...] = ()


_S, _E, _A = LinkState, LinkEvent, LinkAction

_CLOSE: Final = (_A.HOLD, _A.CONDEMN, _A.TAKE_LAST, _A.CLOSE, _A.RESOLVE)
_OVER: Final = LinkStep(_S.OVER, (_A.HOLD, _A.DRAIN, _A.FAIL_ALL))
_GO_OVER: Final = LinkStep(_S.CONNECTING, (_A.HOLD, _A.RETIRE, _A.CONNECT))
_ENDED: Final = LinkStep(_S.HOLDING, _CLOSE)
_FORMER: Final = (_A.CONDEMN, _A.TAKE_FORMER, _A.RESOLVE)

TRANSITIONS: Final[dict[tuple[LinkState, LinkEvent], LinkStep]] = {
    (_S.HOLDING, _E.OFFERED): _GO_OVER,
    # News of one that this lane has let go, or knows to end, which was true before.
    (_S.HOLDING, _E.SERVES): LinkStep(_S.HOLDING),
    (_S.HOLDING, _E.HOLDS): LinkStep(_S.HOLDING),
    (_S.HOLDING, _E.CLOSES): LinkStep(_S.CLOSED, (_A.REFUSE_HELD,)),
    (_S.HOLDING, _E.FATAL): LinkStep(_S.HOLDING),
    (_S.HOLDING, _E.CUT): LinkStep(_S.HOLDING),  # its end will be told
    (_S.HOLDING, _E.ENDED): _ENDED,
    (_S.HOLDING, _E.FORMER_ENDED): LinkStep(_S.HOLDING, _FORMER),
    (_S.HOLDING, _E.POOL_LOST): _OVER,
    (_S.CONNECTING, _E.CONNECTED): LinkStep(_S.SERVING, (_A.SEND_HELD,)),
    (_S.CONNECTING, _E.REFUSED): LinkStep(_S.CUT, (_A.ARM,)),
    (_S.SERVING, _E.OFFERED): _GO_OVER,
    (_S.SERVING, _E.SERVES): LinkStep(_S.SERVING),
    (_S.SERVING, _E.HOLDS): LinkStep(_S.HOLDING, (_A.HOLD,)),
    (_S.SERVING, _E.CLOSES): LinkStep(_S.CLOSED, (_A.HOLD, _A.REFUSE_HELD)),
    (_S.SERVING, _E.ADMITTED): LinkStep(_S.SERVING),
    (_S.SERVING, _E.FATAL): LinkStep(_S.HOLDING, (_A.HOLD,)),
    (_S.SERVING, _E.CUT): LinkStep(_S.CUT, (_A.HOLD, _A.UNSEND, _A.CLOSE, _A.ARM)),
    (_S.SERVING, _E.ENDED): _ENDED,
    (_S.SERVING, _E.FORMER_ENDED): LinkStep(_S.SERVING, _FORMER),
    (_S.SERVING, _E.POOL_LOST): _OVER,
    (_S.CUT, _E.OFFERED): _GO_OVER,
    (_S.CUT, _E.SERVES): LinkStep(_S.CUT),
    (_S.CUT, _E.HOLDS): LinkStep(_S.HOLDING),
    (_S.CUT, _E.CLOSES): LinkStep(_S.CLOSED, (_A.REFUSE_HELD,)),
    # Found out twice, or together.
    (_S.CUT, _E.CUT): LinkStep(_S.CUT),
    (_S.CUT, _E.FATAL): LinkStep(_S.HOLDING),
    (_S.CUT, _E.RETRY): LinkStep(_S.TRYING, (_A.CONNECT,)),
    (_S.CUT, _E.ENDED): _ENDED,
    (_S.CUT, _E.FORMER_ENDED): LinkStep(_S.CUT, _FORMER),
    (_S.CUT, _E.POOL_LOST): _OVER,
    (_S.TRYING, _E.OFFERED): LinkStep(_S.CONNECTING, (_A.CLOSE, _A.CONNECT)),
    (_S.TRYING, _E.SERVES): LinkStep(_S.TRYING),
    (_S.TRYING, _E.HOLDS): LinkStep(_S.HOLDING, (_A.CLOSE,)),
    (_S.TRYING, _E.CLOSES): LinkStep(_S.CLOSED, (_A.CLOSE, _A.REFUSE_HELD)),
    (_S.TRYING, _E.CONNECTED): LinkStep(_S.TRYING),
    (_S.TRYING, _E.REFUSED): LinkStep(_S.CUT, (_A.CLOSE, _A.TELL, _A.ARM)),
    (_S.TRYING, _E.GIVEN_UP): LinkStep(_S.UNREACHABLE, (_A.CLOSE, _A.TELL, _A.LOSE, _A.REFUSE_HELD, _A.ARM)),
    (_S.TRYING, _E.ADMITTED): LinkStep(_S.SERVING, (_A.REPEAT, _A.TELL, _A.LOSE, _A.SEND_HELD)),
    (_S.TRYING, _E.ENDED): _ENDED,
    (_S.TRYING, _E.FORMER_ENDED): LinkStep(_S.TRYING, _FORMER),
    (_S.TRYING, _E.POOL_LOST): _OVER,
    (_S.UNREACHABLE, _E.OFFERED): _GO_OVER,
    (_S.UNREACHABLE, _E.SERVES): LinkStep(_S.UNREACHABLE),
    (_S.UNREACHABLE, _E.HOLDS): LinkStep(_S.HOLDING),
    (_S.UNREACHABLE, _E.CLOSES): LinkStep(_S.CLOSED),
    (_S.UNREACHABLE, _E.RETRY): LinkStep(_S.PROBING, (_A.CONNECT,)),
    (_S.UNREACHABLE, _E.ENDED): _ENDED,
    (_S.UNREACHABLE, _E.FORMER_ENDED): LinkStep(_S.UNREACHABLE, _FORMER),
    (_S.UNREACHABLE, _E.POOL_LOST): _OVER,
    (_S.PROBING, _E.OFFERED): LinkStep(_S.CONNECTING, (_A.CLOSE, _A.CONNECT)),
    (_S.PROBING, _E.SERVES): LinkStep(_S.PROBING),
    (_S.PROBING, _E.HOLDS): LinkStep(_S.HOLDING, (_A.CLOSE,)),
    (_S.PROBING, _E.CLOSES): LinkStep(_S.CLOSED, (_A.CLOSE,)),
    (_S.PROBING, _E.CONNECTED): LinkStep(_S.PROBING),
    (_S.PROBING, _E.REFUSED): LinkStep(_S.UNREACHABLE, (_A.CLOSE, _A.TELL, _A.ARM)),
    (_S.PROBING, _E.GIVEN_UP): LinkStep(_S.UNREACHABLE, (_A.CLOSE, _A.TELL, _A.ARM)),
    (_S.PROBING, _E.ADMITTED): LinkStep(_S.SERVING, (_A.REPEAT, _A.TELL)),
    (_S.PROBING, _E.ENDED): _ENDED,
    (_S.PROBING, _E.FORMER_ENDED): LinkStep(_S.PROBING, _FORMER),
    (_S.PROBING, _E.POOL_LOST): _OVER,
    (_S.CLOSED, _E.OFFERED): _GO_OVER,
    (_S.CLOSED, _E.SERVES): LinkStep(_S.CLOSED),
    (_S.CLOSED, _E.HOLDS): LinkStep(_S.HOLDING),
    (_S.CLOSED, _E.CLOSES): LinkStep(_S.CLOSED),
    (_S.CLOSED, _E.FATAL): LinkStep(_S.CLOSED),
    (_S.CLOSED, _E.CUT): LinkStep(_S.CLOSED),
    (_S.CLOSED, _E.ENDED): LinkStep(_S.CLOSED, (*_CLOSE, _A.REFUSE_HELD)),
    (_S.CLOSED, _E.FORMER_ENDED): LinkStep(_S.CLOSED, (*_FORMER, _A.REFUSE_HELD)),
    (_S.CLOSED, _E.POOL_LOST): _OVER,
    # Of the last answers.
    (_S.OVER, _E.FATAL): LinkStep(_S.OVER),
    (_S.OVER, _E.CUT): LinkStep(_S.OVER),
}

REFUSING: Final = frozenset({LinkState.CLOSED, LinkState.UNREACHABLE, LinkState.PROBING})
"""States in which calls are refused."""


class UnexpectedLinkEventError(Exception):
    """The event has no meaning in this state: the lane is at fault."""

    def __init__(self, state: LinkState, event: LinkEvent) -> None:
        super().__init__(f"{event} has no meaning while a link is {state}")


def step(state: LinkState, event: LinkEvent) -> LinkStep:
    """Return where `event` leads from `state`.

    Raises:
        UnexpectedLinkEventError: The pair is not in the table.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UnexpectedLinkEventError(state, event) from None


def heard(generation: int, info: DeviceInfo) -> LinkEvent:
    """Return what news of a device mean to a link that knows incarnations up to `generation`."""
    if info.state in CLOSED:
        return LinkEvent.CLOSES
    if not info.admitted or info.state is not DeviceState.READY:
        return LinkEvent.HOLDS
    return LinkEvent.SERVES if info.generation == generation else LinkEvent.OFFERED


def failed(failures: int) -> LinkEvent:
    """Return what a failed attempt means, the last of as many in a row."""
    return LinkEvent.GIVEN_UP if failures >= MOST_FAILURES else LinkEvent.REFUSED


def retry_s(failures: int) -> float:
    """Return when the next attempt is made, after as many failures in a row."""
    return min(FIRST_RETRY_S * 2.0 ** min(failures, 20), LAST_RETRY_S)
