"""A link's life as a table: (state, event) to the next state and the lane's actions. Pure.

A link is a device as one lane sees it, through all incarnations. A lane turns its observations into events, calls
`step`, and carries the actions out in their order. `CONNECT` leads to the next event: `CONNECTED` or `REFUSED`. The
timer that `ARM` starts leads to `RETRY`, and is forgotten with any other event that leaves its state.

The table keeps these promises, whatever the order of events; tests walk all of it:

- Calls are sent in `SERVING` only: on a connection to an incarnation that takes calls, and was not let go.
- An incarnation's last answers are taken in before its connection is closed, and its requests are settled after that.
- While a worker lives and its connection does not, another attempt is under way or a timer runs. Requests that were on
  the connection are given up as soon as the worker is known to live, or cannot be reached.
- A call to a device that takes no work, or cannot be reached, is refused at once; other calls wait.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple

from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState

MOST_FAILURES: Final = 10
"""After this number of failed attempts in a row, 10 s, a device counts as unreachable for this lane. The supervisor may
be late by seconds to tell that the worker has ended: when it was stopped, or its news travel on a slow network."""

FIRST_RETRY_S: Final = 0.01
"""First pause. A worker's end looks like a lost connection until the supervisor reports it, mostly within this time."""

LAST_RETRY_S: Final = 5.0

CLOSED: Final = frozenset({DeviceState.STOPPED, DeviceState.STOPPING, DeviceState.QUARANTINED, DeviceState.TRIPPED})
"""States of a device that takes no work, and does not come back soon, or not by itself."""


class LinkState(StrEnum):
    """The state of a lane's link to a device."""

    HOLDING = auto()
    """Calls wait for an incarnation. The connection to the last one may be there, for its last answers."""
    CONNECTING = auto()
    """Between `CONNECT` and its result."""
    SERVING = auto()
    """Connected; calls are sent."""
    CUT = auto()
    """Without a connection, though the worker lives as far as the lane knows. Calls wait for the next attempt."""
    TRYING = auto()
    """An attempt from `CUT` is under way: the worker has not admitted the new connection. Calls wait."""
    UNREACHABLE = auto()
    """Many attempts have failed. Calls are refused, and attempts go on."""
    PROBING = auto()
    """An attempt from `UNREACHABLE` is under way. Calls are refused."""
    CLOSED = auto()
    """The device takes no work. Calls are refused."""
    OVER = auto()
    """The pool is lost."""


class LinkEvent(StrEnum):
    """An event in the life of a link."""

    OFFERED = auto()
    """The supervisor reports an incarnation that takes calls, and that is not the last known one."""
    SERVES = auto()
    """The supervisor says once more that the last known incarnation takes calls."""
    HOLDS = auto()
    """The supervisor says that the device takes no calls for now."""
    CLOSES = auto()
    """The supervisor says that the device takes no work, and does not come back soon, or not by itself."""
    CONNECTED = auto()
    """The connection is made."""
    REFUSED = auto()
    """The connection could not be made, or ended before the worker had admitted it."""
    GIVEN_UP = auto()
    """The same as `REFUSED`, after many failures."""
    ADMITTED = auto()
    """The worker has admitted the connection."""
    FATAL = auto()
    """The incarnation has answered that it ends."""
    CUT = auto()
    """The connection has ended, and the incarnation's end was not reported."""
    RETRY = auto()
    """The timer has run out; or a call has come after an attempt that failed for want of a descriptor."""
    ENDED = auto()
    """The incarnation has ended, and all of its messages are here."""
    FORMER_ENDED = auto()
    """An earlier incarnation has ended, and all of its messages are here."""
    POOL_LOST = auto()
    """The supervisor has gone, or has ended the session."""


class LinkAction(StrEnum):
    """An action that a lane carries out for a link."""

    HOLD = auto()
    """Move the requests of the outbox to those that wait for the device."""
    SEND_HELD = auto()
    """Send the requests that wait for the device."""
    REFUSE_HELD = auto()
    """End the requests that wait for the device, which takes no work."""
    RETIRE = auto()
    """Keep the connection as the former incarnation's: it may still answer."""
    CONNECT = auto()
    """Connect to the device's incarnation, or use the connection to its standby."""
    CONDEMN = auto()
    """Lose the requests that ran on a hung incarnation; its further answers came too late."""
    TAKE_LAST = auto()
    """Take in all answers that have arrived."""
    CLOSE = auto()
    """Close the connection, if there is one."""
    TAKE_FORMER = auto()
    """Take in the former incarnation's answers, and close its connection."""
    RESOLVE = auto()
    """Decide the fates of the ended incarnation's requests."""
    UNSEND = auto()
    """Put back the requests on a connection that its worker had not admitted: they never left."""
    LOSE = auto()
    """Lose the requests that were on the lost connection: their answers come no more."""
    REPEAT = auto()
    """Name to the worker the answers that it has sent in vain, and repeat the releases that it has not acknowledged."""
    TELL = auto()
    """Report the attempts to the supervisor."""
    ARM = auto()
    """Start the timer of the next attempt."""
    DRAIN = auto()
    """Take in the last answers of workers that end with their pool, and close all connections."""
    FAIL_ALL = auto()
    """End all requests."""


class LinkStep(NamedTuple):
    """The next state, and the actions in their order."""

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
    # Older news of an incarnation that this lane has let go, or knows to be ending.
    (_S.HOLDING, _E.SERVES): LinkStep(_S.HOLDING),
    (_S.HOLDING, _E.HOLDS): LinkStep(_S.HOLDING),
    (_S.HOLDING, _E.CLOSES): LinkStep(_S.CLOSED, (_A.REFUSE_HELD,)),
    (_S.HOLDING, _E.FATAL): LinkStep(_S.HOLDING),
    (_S.HOLDING, _E.CUT): LinkStep(_S.HOLDING),  # the supervisor will report its end
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
    # Found twice, or at the same time.
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
    # Found while the last answers were taken in.
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
    """Return the step that `event` takes from `state`.

    Raises:
        UnexpectedLinkEventError: The pair is not in the table.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UnexpectedLinkEventError(state, event) from None


def heard(generation: int, info: DeviceInfo) -> LinkEvent:
    """Return the event for news of a device, on a link that knows incarnations up to `generation`."""
    if info.state in CLOSED:
        return LinkEvent.CLOSES
    if not info.admitted or info.state is not DeviceState.READY:
        return LinkEvent.HOLDS
    return LinkEvent.SERVES if info.generation == generation else LinkEvent.OFFERED


def failed(failures: int) -> LinkEvent:
    """Return the event of a failed attempt, the last of `failures` in a row."""
    return LinkEvent.GIVEN_UP if failures >= MOST_FAILURES else LinkEvent.REFUSED


def retry_s(failures: int) -> float:
    """Return the pause before the next attempt, in seconds, after `failures` in a row."""
    return min(FIRST_RETRY_S * 2.0 ** min(failures, 20), LAST_RETRY_S)
