"""The life of a communicator as a table: (state, event) to the next state and the actions. Pure.

The gate is open in one state only, `READY`. Whatever ends a communicator shuts it first, and no way leads back.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple


class CommState(StrEnum):
    """The states of a communicator."""

    FORMING = auto()
    """The ranks find each other, and use it for the first time."""
    READY = auto()
    """Collectives may be put on a stream."""
    CLOSED = auto()
    """The gate is shut. A call may still be inside the library."""
    ABORTING = auto()
    """A thread aborts it."""
    LATE = auto()
    """The abort has not returned in the time for it, and the process has to be replaced."""
    GONE = auto()
    """The library has forgotten it."""


class CommEvent(StrEnum):
    """The events of a communicator."""

    FORMED = auto()
    """All ranks have used it."""
    FAILED = auto()
    """The library says that it cannot be formed."""
    CLOSE = auto()
    """The epoch is over, or it is not needed."""
    CLEAR = auto()
    """No call is inside the library any longer, or one has been there for too long."""
    OVERDUE = auto()
    """The time for the abort is over."""
    RETURNED = auto()
    """The abort has returned, or there was nothing to abort."""


class CommAction(StrEnum):
    """What follows from an event."""

    ABORT = auto()
    """Have a thread wait until no call is inside, and abort it."""
    REPLACE = auto()
    """Ask for another process."""


class CommMove(NamedTuple):
    """The next state, and the actions in order."""

    state: CommState
    actions: tuple[CommAction, ...] = ()


class UnexpectedCommEventError(Exception):
    """The event has no meaning in this state: `communicator.py` is at fault."""

    def __init__(self, state: CommState, event: CommEvent) -> None:
        super().__init__(f"{event} has no meaning while a communicator is {state}")


_S, _E, _A = CommState, CommEvent, CommAction

TRANSITIONS: Final[dict[tuple[CommState, CommEvent], CommMove]] = {
    (_S.FORMING, _E.FORMED): CommMove(_S.READY),
    (_S.FORMING, _E.FAILED): CommMove(_S.CLOSED, (_A.ABORT,)),
    (_S.FORMING, _E.CLOSE): CommMove(_S.CLOSED, (_A.ABORT,)),
    (_S.READY, _E.FAILED): CommMove(_S.CLOSED, (_A.ABORT,)),
    (_S.READY, _E.CLOSE): CommMove(_S.CLOSED, (_A.ABORT,)),
    (_S.CLOSED, _E.FORMED): CommMove(_S.CLOSED),
    (_S.CLOSED, _E.FAILED): CommMove(_S.CLOSED),
    (_S.CLOSED, _E.CLOSE): CommMove(_S.CLOSED),
    (_S.CLOSED, _E.CLEAR): CommMove(_S.ABORTING),
    (_S.CLOSED, _E.OVERDUE): CommMove(_S.LATE, (_A.REPLACE,)),
    (_S.ABORTING, _E.FORMED): CommMove(_S.ABORTING),
    (_S.ABORTING, _E.FAILED): CommMove(_S.ABORTING),
    (_S.ABORTING, _E.CLOSE): CommMove(_S.ABORTING),
    (_S.ABORTING, _E.OVERDUE): CommMove(_S.LATE, (_A.REPLACE,)),
    (_S.ABORTING, _E.RETURNED): CommMove(_S.GONE),
    (_S.LATE, _E.FORMED): CommMove(_S.LATE),
    (_S.LATE, _E.FAILED): CommMove(_S.LATE),
    (_S.LATE, _E.CLOSE): CommMove(_S.LATE),
    (_S.LATE, _E.CLEAR): CommMove(_S.LATE),
    (_S.LATE, _E.RETURNED): CommMove(_S.LATE),  # the process was asked for another one
    (_S.GONE, _E.FORMED): CommMove(_S.GONE),
    (_S.GONE, _E.FAILED): CommMove(_S.GONE),
    (_S.GONE, _E.CLOSE): CommMove(_S.GONE),
    (_S.GONE, _E.OVERDUE): CommMove(_S.GONE),
}


def comm_step(state: CommState, event: CommEvent) -> CommMove:
    """Return where `event` leads from `state`.

    Raises:
        UnexpectedCommEventError: The pair is not in the table.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UnexpectedCommEventError(state, event) from None
