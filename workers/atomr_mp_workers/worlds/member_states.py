"""The life of a process's place in a world, as a table: (state, event) to the next state and the actions. Pure."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple


class MemberState(StrEnum):
    """The states of a process's place in a world."""

    OUTSIDE = auto()
    """It is in no epoch: before the first one, or between two."""
    FORMING = auto()
    """It was asked to join, and what the epoch needs on its device is being made."""
    JOINED = auto()
    """It takes parts of gang calls, and begins them in the order of the ring."""
    CLOSING = auto()
    """As joined, but calls that were not published will not begin. It leaves by itself behind the last entry."""
    STOPPED = auto()
    """It has seen that the epoch is over, and begins nothing. The order to leave will say why."""
    LEAVING = auto()
    """All that has not begun is answered. A call may still run."""


class MemberEvent(StrEnum):
    """The events of a process's place in a world."""

    FORM = auto()
    """The supervisor asks for it, and what the epoch needs on devices takes a while."""
    JOIN = auto()
    """The supervisor has asked for it, and what the epoch needs is there."""
    CLOSE = auto()
    """The supervisor says that the epoch ends as planned."""
    LAST = auto()
    """The last entry of the ring has ended here."""
    STOP = auto()
    """The stop word says that the epoch is over."""
    DEPART = auto()
    """The supervisor asks for it."""
    DRAIN = auto()
    """This process is about to leave its device, once it has done what it has."""
    GIVE_UP = auto()
    """A page is damaged, or what the epoch needs on the device cannot be made."""
    IDLE = auto()
    """No call of the epoch runs here."""


class MemberAction(StrEnum):
    """What follows from an event."""

    OPEN = auto()
    """Open the epoch, and tell the supervisor."""
    CLOSE = auto()
    """Take no more parts; as rank 0, publish the last entry."""
    WAKE = auto()
    """Wake the world's thread, which may wait for others, and end what waits on the device."""
    REFUSE = auto()
    """Answer all parts that have not begun."""
    REPORT = auto()
    """Forget the epoch, and tell the supervisor that this process has left it."""


class MemberMove(NamedTuple):
    """The next state, and the actions in order."""

    state: MemberState
    actions: tuple[MemberAction, ...] = ()


class UnexpectedMemberEventError(Exception):
    """The event has no meaning in this state: the supervisor or this process is at fault."""

    def __init__(self, state: MemberState, event: MemberEvent) -> None:
        super().__init__(f"{event} has no meaning while a process is {state} in its world")


_S, _E, _A = MemberState, MemberEvent, MemberAction

TRANSITIONS: Final[dict[tuple[MemberState, MemberEvent], MemberMove]] = {
    (_S.OUTSIDE, _E.JOIN): MemberMove(_S.JOINED, (_A.OPEN,)),
    (_S.OUTSIDE, _E.FORM): MemberMove(_S.FORMING),
    (_S.OUTSIDE, _E.DEPART): MemberMove(_S.OUTSIDE),  # it has left by itself, or could not join
    (_S.OUTSIDE, _E.DRAIN): MemberMove(_S.OUTSIDE),
    (_S.OUTSIDE, _E.GIVE_UP): MemberMove(_S.OUTSIDE),
    (_S.FORMING, _E.JOIN): MemberMove(_S.JOINED, (_A.OPEN,)),
    (_S.FORMING, _E.STOP): MemberMove(_S.STOPPED, (_A.WAKE,)),
    (_S.FORMING, _E.DEPART): MemberMove(_S.LEAVING, (_A.WAKE, _A.REFUSE)),
    (_S.FORMING, _E.DRAIN): MemberMove(_S.LEAVING, (_A.WAKE, _A.REFUSE)),
    (_S.FORMING, _E.GIVE_UP): MemberMove(_S.LEAVING, (_A.WAKE, _A.REFUSE)),
    (_S.JOINED, _E.CLOSE): MemberMove(_S.CLOSING, (_A.CLOSE,)),
    (_S.JOINED, _E.LAST): MemberMove(_S.LEAVING, (_A.REFUSE,)),  # the order to close is on its way
    (_S.JOINED, _E.STOP): MemberMove(_S.STOPPED, (_A.WAKE,)),
    (_S.JOINED, _E.DEPART): MemberMove(_S.LEAVING, (_A.WAKE, _A.REFUSE)),
    (_S.JOINED, _E.DRAIN): MemberMove(_S.LEAVING, (_A.WAKE, _A.REFUSE)),  # without an order to close
    (_S.JOINED, _E.GIVE_UP): MemberMove(_S.LEAVING, (_A.WAKE, _A.REFUSE)),
    (_S.CLOSING, _E.LAST): MemberMove(_S.LEAVING, (_A.REFUSE,)),
    (_S.CLOSING, _E.DRAIN): MemberMove(_S.CLOSING),
    (_S.CLOSING, _E.STOP): MemberMove(_S.STOPPED, (_A.WAKE,)),
    (_S.CLOSING, _E.DEPART): MemberMove(_S.LEAVING, (_A.WAKE, _A.REFUSE)),
    (_S.CLOSING, _E.GIVE_UP): MemberMove(_S.LEAVING, (_A.WAKE, _A.REFUSE)),
    (_S.STOPPED, _E.DEPART): MemberMove(_S.LEAVING, (_A.WAKE, _A.REFUSE)),
    (_S.STOPPED, _E.DRAIN): MemberMove(_S.STOPPED),
    (_S.STOPPED, _E.GIVE_UP): MemberMove(_S.LEAVING, (_A.WAKE, _A.REFUSE)),
    (_S.LEAVING, _E.DEPART): MemberMove(_S.LEAVING),
    (_S.LEAVING, _E.DRAIN): MemberMove(_S.LEAVING),
    (_S.LEAVING, _E.GIVE_UP): MemberMove(_S.LEAVING),
    (_S.LEAVING, _E.IDLE): MemberMove(_S.OUTSIDE, (_A.REPORT,)),
}


def member_step(state: MemberState, event: MemberEvent) -> MemberMove:
    """Return where `event` leads from `state`.

    Raises:
        UnexpectedMemberEventError: The pair is not in the table.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UnexpectedMemberEventError(state, event) from None
