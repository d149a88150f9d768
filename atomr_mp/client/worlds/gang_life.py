"""A gang call's life as a table: (state, event) to the next state and the lane's actions. Pure.

The table keeps these promises, whatever the order of events; tests walk all of it:

- A caller gets one outcome: `END` is done once.
- Parts are sent only while no other parts of the call are unanswered, and the caller has no outcome.
- A call waits in its world's queue (`LINE_UP`), or its parts are out, or it is over: one of these.
- A call that is given up while its parts are out may have run: `DOUBT` records it, before the outcome.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple


class GangState(StrEnum):
    """The place of a gang call."""

    NEW = auto()
    """Made just now."""
    LINED_UP = auto()
    """In its world's queue: it waits for a ready epoch, or for room on all members."""
    OUT = auto()
    """Its parts are on their way, at their workers, or answered; not all have ended."""
    LATE = auto()
    """Its caller has an outcome; some of its parts have not ended."""
    OVER = auto()
    """Its caller has an outcome, and no part is left."""


class GangEvent(StrEnum):
    """An event in the life of a gang call."""

    WAIT = auto()
    """It cannot be sent now."""
    SEND = auto()
    """The epoch is ready, and all members have room."""
    SETTLED = auto()
    """All of its parts have ended, and that is its outcome."""
    AGAIN = auto()
    """All of its parts have ended, and it is sent again."""
    GIVE_UP = auto()
    """Its deadline has passed, its caller does not want it, or it is refused while it waits."""


class GangAction(StrEnum):
    """An action that a lane carries out for a gang call."""

    LINE_UP = auto()
    """Put it into its world's queue."""
    UNLIST = auto()
    """Take it out of its world's queue."""
    PUT = auto()
    """Send its parts, rank 0's last."""
    DOUBT = auto()
    """Record that it may have run."""
    END = auto()
    """Give the caller the outcome."""
    FORGET = auto()
    """Nothing of it is left here."""


class GangStep(NamedTuple):
    """The next state, and the actions in their order."""

    state: GangState
    actions: tuple[GangAction, ...] = ()


_S, _E, _A = GangState, GangEvent, GangAction

TRANSITIONS: Final[dict[tuple[GangState, GangEvent], GangStep]] = {
    (_S.NEW, _E.SEND): GangStep(_S.OUT, (_A.PUT,)),
    (_S.NEW, _E.WAIT): GangStep(_S.LINED_UP, (_A.LINE_UP,)),
    (_S.LINED_UP, _E.SEND): GangStep(_S.OUT, (_A.UNLIST, _A.PUT)),
    (_S.LINED_UP, _E.GIVE_UP): GangStep(_S.OVER, (_A.UNLIST, _A.FORGET, _A.END)),
    (_S.OUT, _E.SETTLED): GangStep(_S.OVER, (_A.FORGET, _A.END)),
    (_S.OUT, _E.AGAIN): GangStep(_S.LINED_UP, (_A.LINE_UP,)),
    (_S.OUT, _E.GIVE_UP): GangStep(_S.LATE, (_A.DOUBT, _A.END)),
    (_S.LATE, _E.SETTLED): GangStep(_S.OVER, (_A.FORGET,)),
    (_S.LATE, _E.GIVE_UP): GangStep(_S.LATE),
    (_S.OVER, _E.GIVE_UP): GangStep(_S.OVER),
}


class UnexpectedGangEventError(Exception):
    """The event has no meaning in this state: the lane is at fault."""

    def __init__(self, state: GangState, event: GangEvent) -> None:
        super().__init__(f"{event} has no meaning while a gang call is {state}")


def step(state: GangState, event: GangEvent) -> GangStep:
    """Return the step that `event` takes from `state`.

    Raises:
        UnexpectedGangEventError: The pair is not in the table.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UnexpectedGangEventError(state, event) from None
