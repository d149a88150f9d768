"""A reply's life as a table: (state, event) to the next state and the lane's actions. Pure.

A lane turns its observations into events, calls `step`, and carries the actions out in their order. The table keeps
these promises, whatever the order of events; tests walk all of it:

- A caller gets one outcome: `END` is done once.
- Credit is taken while a worker may still answer, or the request waits here; `FREE` gives it back, once.
- A request waits in one place: in a queue of its link (`WAITING`), at its worker, or for the supervisor (`PARKED`).
- A request whose caller has an outcome is sent to nobody.
- A request in the backlog has no credit, and gets it when it is let in.
- A request that is ended or taken back without its worker's word may have run: `DOUBT` records it, before the outcome.

A call whose answer comes in parts gets `PART` for each but the last, and `ANSWER` for that one.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple


class ReplyState(StrEnum):
    """The place of a request."""

    BACKLOG = auto()
    """In its lane's backlog: it waits for room in a window."""
    WAITING = auto()
    """In a queue of its link: it waits for others to travel with, or for its device."""
    SENT = auto()
    """At its worker."""
    STREAMING = auto()
    """A stream at its worker, which sends parts."""
    CANCELLING = auto()
    """At its worker, which was asked to forget it."""
    POISONED = auto()
    """Answered with an error that ends its worker. The outcome comes with that end."""
    PARKED = auto()
    """Lost with its worker. The supervisor is asked whether the worker may have died of it."""
    LATE = auto()
    """At its worker still, though its caller has an outcome."""
    OVER = auto()
    """Its caller has an outcome, and no worker has it."""


class ReplyEvent(StrEnum):
    """An event in the life of a request."""

    ADMIT = auto()
    """There is room for it, and it has taken its credit."""
    SEND = auto()
    """The request is put into a message to its worker."""
    OPEN = auto()
    """It is a stream, and is put into a message to its worker."""
    PART = auto()
    """The worker has answered a part of it."""
    ANSWER = auto()
    """The worker has answered it, or the rest of it."""
    POISON = auto()
    """The worker has answered it with an error that ends the worker."""
    CANCEL = auto()
    """The caller no longer wants it."""
    EXPIRE = auto()
    """Its deadline has passed."""
    LEFT = auto()
    """The worker has left on purpose, and has not started it."""
    MOVE = auto()
    """It is a stream, and goes on at another worker, since its own is leaving."""
    LOST = auto()
    """The worker has ended, or the connection to it."""
    RESUME = auto()
    """It is sent again."""
    CROWDED = auto()
    """Its device has stopped taking work, and those that take work have no room for it."""
    FAIL = auto()
    """It is refused, not sent again, or its pool is lost."""


class ReplyAction(StrEnum):
    """An action that a lane carries out for a reply."""

    UNLIST = auto()
    """Take it out of its lane's backlog, and release its arguments in shared memory."""
    DEQUEUE = auto()
    """Take it out of its link's queue."""
    UNPARK = auto()
    """Take it from the requests about which the supervisor is asked."""
    TELL_WORKER = auto()
    """Ask the worker to forget it."""
    KEEP_PART = auto()
    """Give the caller the part of the answer, with its leases."""
    KEEP = auto()
    """Take the answer's leases for the caller."""
    GIVE_BACK = auto()
    """Give the answer's unwanted leases back."""
    FREE = auto()
    """Give its credit back, and release its arguments in shared memory."""
    CEDE = auto()
    """Give its credit back. It keeps its arguments in shared memory."""
    DOUBT = auto()
    """Record that it may have run: its worker has not answered that it did not."""
    END = auto()
    """Give the caller the outcome."""
    REQUEUE = auto()
    """Put it in front of its link's queue."""


AT_WORKER: Final = frozenset(
    {ReplyState.SENT, ReplyState.STREAMING, ReplyState.CANCELLING, ReplyState.POISONED, ReplyState.LATE}
)
"""States in which a worker has the request, and may run it."""


class ReplyStep(NamedTuple):
    """The next state, and the actions in their order."""

    state: ReplyState
    actions: tuple[ReplyAction, ...] = ()


_S, _E, _A = ReplyState, ReplyEvent, ReplyAction

_UNLISTED: Final = ReplyStep(_S.OVER, (_A.UNLIST, _A.END))
_UNSENT: Final = ReplyStep(_S.OVER, (_A.DEQUEUE, _A.FREE, _A.END))
_UNPARKED: Final = ReplyStep(_S.OVER, (_A.UNPARK, _A.FREE, _A.END))
_ANSWERED: Final = ReplyStep(_S.OVER, (_A.FREE, _A.KEEP, _A.END))
_FAILED: Final = ReplyStep(_S.OVER, (_A.FREE, _A.END))
_GIVEN_UP: Final = ReplyStep(_S.OVER, (_A.FREE, _A.DOUBT, _A.END))
_LEFT_BEHIND: Final = ReplyStep(_S.LATE, (_A.TELL_WORKER, _A.DOUBT, _A.END))
_FREED: Final = ReplyStep(_S.OVER, (_A.FREE,))

TRANSITIONS: Final[dict[tuple[ReplyState, ReplyEvent], ReplyStep]] = {
    (_S.BACKLOG, _E.ADMIT): ReplyStep(_S.WAITING),
    (_S.BACKLOG, _E.CANCEL): _UNLISTED,
    (_S.BACKLOG, _E.EXPIRE): _UNLISTED,
    (_S.BACKLOG, _E.FAIL): _UNLISTED,
    (_S.WAITING, _E.SEND): ReplyStep(_S.SENT),
    (_S.WAITING, _E.CANCEL): _UNSENT,
    (_S.WAITING, _E.EXPIRE): _UNSENT,
    (_S.WAITING, _E.FAIL): _UNSENT,
    (_S.WAITING, _E.CROWDED): ReplyStep(_S.BACKLOG, (_A.DEQUEUE, _A.CEDE)),
    # A worker that was judged as hung may still answer its former requests.
    (_S.WAITING, _E.PART): ReplyStep(_S.WAITING, (_A.GIVE_BACK,)),
    (_S.WAITING, _E.ANSWER): ReplyStep(_S.WAITING, (_A.GIVE_BACK,)),
    (_S.WAITING, _E.POISON): ReplyStep(_S.WAITING, (_A.GIVE_BACK,)),
    (_S.WAITING, _E.OPEN): ReplyStep(_S.STREAMING),
    (_S.STREAMING, _E.PART): ReplyStep(_S.STREAMING, (_A.KEEP_PART,)),
    (_S.STREAMING, _E.ANSWER): _ANSWERED,
    (_S.STREAMING, _E.POISON): ReplyStep(_S.POISONED, (_A.GIVE_BACK,)),
    (_S.STREAMING, _E.CANCEL): ReplyStep(_S.CANCELLING, (_A.TELL_WORKER,)),
    (_S.STREAMING, _E.EXPIRE): _LEFT_BEHIND,
    (_S.STREAMING, _E.LEFT): ReplyStep(_S.WAITING, (_A.REQUEUE,)),
    (_S.STREAMING, _E.MOVE): ReplyStep(_S.WAITING, (_A.DOUBT, _A.REQUEUE)),
    (_S.STREAMING, _E.LOST): ReplyStep(_S.PARKED),
    (_S.STREAMING, _E.FAIL): _GIVEN_UP,
    (_S.SENT, _E.PART): ReplyStep(_S.SENT, (_A.KEEP_PART,)),
    (_S.SENT, _E.ANSWER): _ANSWERED,
    (_S.SENT, _E.POISON): ReplyStep(_S.POISONED, (_A.GIVE_BACK,)),
    (_S.SENT, _E.CANCEL): ReplyStep(_S.CANCELLING, (_A.TELL_WORKER,)),
    (_S.SENT, _E.EXPIRE): _LEFT_BEHIND,
    (_S.SENT, _E.LEFT): ReplyStep(_S.WAITING, (_A.REQUEUE,)),
    (_S.SENT, _E.LOST): ReplyStep(_S.PARKED),
    (_S.SENT, _E.FAIL): _GIVEN_UP,
    (_S.CANCELLING, _E.PART): ReplyStep(_S.CANCELLING, (_A.KEEP_PART,)),
    (_S.CANCELLING, _E.ANSWER): _ANSWERED,
    (_S.CANCELLING, _E.POISON): ReplyStep(_S.LATE, (_A.GIVE_BACK, _A.END)),  # its caller does not want it sent again
    (_S.CANCELLING, _E.CANCEL): ReplyStep(_S.CANCELLING),
    (_S.CANCELLING, _E.EXPIRE): ReplyStep(_S.LATE, (_A.DOUBT, _A.END)),
    # The next worker has not heard that it is cancelled, and would run it.
    (_S.CANCELLING, _E.LEFT): _FAILED,
    (_S.CANCELLING, _E.LOST): _FAILED,
    (_S.CANCELLING, _E.FAIL): _GIVEN_UP,
    (_S.POISONED, _E.PART): ReplyStep(_S.POISONED, (_A.GIVE_BACK,)),
    (_S.POISONED, _E.ANSWER): ReplyStep(_S.POISONED, (_A.GIVE_BACK,)),
    (_S.POISONED, _E.POISON): ReplyStep(_S.POISONED, (_A.GIVE_BACK,)),
    # Its error is known already; only whether it ran is not.
    (_S.POISONED, _E.CANCEL): ReplyStep(_S.LATE, (_A.DOUBT, _A.END)),
    (_S.POISONED, _E.EXPIRE): ReplyStep(_S.LATE, (_A.DOUBT, _A.END)),
    (_S.POISONED, _E.LOST): ReplyStep(_S.PARKED),
    (_S.POISONED, _E.FAIL): _GIVEN_UP,
    (_S.PARKED, _E.PART): ReplyStep(_S.PARKED, (_A.GIVE_BACK,)),
    (_S.PARKED, _E.ANSWER): ReplyStep(_S.PARKED, (_A.GIVE_BACK,)),
    (_S.PARKED, _E.POISON): ReplyStep(_S.PARKED, (_A.GIVE_BACK,)),
    (_S.PARKED, _E.CANCEL): _UNPARKED,
    (_S.PARKED, _E.EXPIRE): _UNPARKED,
    (_S.PARKED, _E.RESUME): ReplyStep(_S.WAITING, (_A.UNPARK, _A.REQUEUE)),
    (_S.PARKED, _E.FAIL): _UNPARKED,
    (_S.LATE, _E.PART): ReplyStep(_S.LATE, (_A.GIVE_BACK,)),
    (_S.LATE, _E.ANSWER): ReplyStep(_S.OVER, (_A.FREE, _A.GIVE_BACK)),
    (_S.LATE, _E.POISON): ReplyStep(_S.LATE, (_A.GIVE_BACK,)),
    (_S.LATE, _E.CANCEL): ReplyStep(_S.LATE),
    (_S.LATE, _E.EXPIRE): ReplyStep(_S.LATE),
    (_S.LATE, _E.LEFT): _FREED,
    (_S.LATE, _E.LOST): _FREED,
    (_S.LATE, _E.FAIL): _FREED,
    (_S.OVER, _E.CANCEL): ReplyStep(_S.OVER),
    (_S.OVER, _E.EXPIRE): ReplyStep(_S.OVER),
}


class UnexpectedReplyEventError(Exception):
    """The event has no meaning in this state: the lane is at fault."""

    def __init__(self, state: ReplyState, event: ReplyEvent) -> None:
        super().__init__(f"{event} has no meaning while a reply is {state}")


def step(state: ReplyState, event: ReplyEvent) -> ReplyStep:
    """Return the step that `event` takes from `state`.

    Raises:
        UnexpectedReplyEventError: The pair is not in the table.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UnexpectedReplyEventError(state, event) from None
