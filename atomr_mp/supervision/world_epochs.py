"""The life of a world as a table: (state, event) to the next state and the actions. Pure.

A world is an actor over several devices, its *members*. An *epoch* is one life of it, with one incarnation of each
member. `world_members.py` turns facts about incarnations into these events and carries the actions out, so that:

- every unplanned way out of an epoch is one event, `BROKEN` (or `LATE`, where members do not do in time what they were
  asked), whatever its cause;
- a planned way out is `CLOSE`, or `END` of a ready world: members run what was published, and leave by themselves;
- a member counts as inside from the moment it is asked to join until it has left or its process has ended, and no
  epoch forms while a process is inside of the one before;
- what members map is given back behind the last of them, also after the end of the world.

The devices' own life (`lifecycle.py`) goes on beside it: a world replaces nobody itself, it asks for it.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple

from atomr_mp.protocol.messages.devices import WorldState
from atomr_mp.supervision.state_table import mermaid


class WorldEvent(StrEnum):
    """The events of a world."""

    COMPLETE = auto()
    """Each member has an incarnation that can join, all with the same code, and with mailboxes if the world has any."""
    JOINED = auto()
    """The last member has joined."""
    CLOSE = auto()
    """A member of this epoch is to be replaced as planned."""
    BROKEN = auto()
    """A member of this epoch has ended or is about to, has failed to join, has left unasked, or has raised while
    others wait for it; or a new incarnation has taken its place."""
    LEFT = auto()
    """The last process inside has left or ended."""
    LATE = auto()
    """Somebody has not joined, has not run what was published, or has not left, in the time for it."""
    END = auto()
    """The owner has closed the world, its session has ended, or the pool stops."""


class WorldAction(StrEnum):
    """What follows from an event."""

    FORM = auto()
    """Take the next number, and ask each member's incarnation of now to join; start the timer of joining."""
    PUBLISH = auto()
    """Tell the clients the epoch and its members."""
    STOP = auto()
    """Store the epoch's number in the stop word, before any message: all waits of members for each other end."""
    REFUSE = auto()
    """Tell the clients that the epoch takes no more calls: these end, or wait for the next epoch."""
    CLOSE = auto()
    """Have the members run what was published, and then leave; start the timer of that."""
    LEAVE = auto()
    """Ask all who are inside and alive to leave; start the timer of leaving."""
    REPLACE = auto()
    """Have those replaced who did not do in time what they were asked."""
    CHECK = auto()
    """Feed `COMPLETE` if it is true now."""
    FREE = auto()
    """Give everything back that the world had: the last action of its life."""


class WorldMove(NamedTuple):
    """The next state, and the actions in order."""

    state: WorldState
    actions: tuple[WorldAction, ...] = ()


class UnexpectedWorldEventError(Exception):
    """The event has no meaning in this state: `world_members.py` is at fault."""

    def __init__(self, state: WorldState, event: WorldEvent) -> None:
        super().__init__(f"{event} has no meaning while a world is {state}")


_OVER: Final = (WorldAction.STOP, WorldAction.LEAVE)
"""The end of an epoch whose clients hold their calls already, or never knew of it."""

TRANSITIONS: Final[dict[tuple[WorldState, WorldEvent], WorldMove]] = {
    (WorldState.WAITING, WorldEvent.COMPLETE): WorldMove(WorldState.FORMING, (WorldAction.FORM,)),
    (WorldState.WAITING, WorldEvent.END): WorldMove(WorldState.ENDED, (WorldAction.FREE,)),
    (WorldState.FORMING, WorldEvent.JOINED): WorldMove(WorldState.READY, (WorldAction.PUBLISH,)),
    (WorldState.FORMING, WorldEvent.BROKEN): WorldMove(WorldState.ABORTING, _OVER),
    # Who did not join is stuck, so it would not leave either.
    (WorldState.FORMING, WorldEvent.LATE): WorldMove(
        WorldState.ABORTING, (WorldAction.STOP, WorldAction.REPLACE, WorldAction.LEAVE)
    ),
    (WorldState.FORMING, WorldEvent.END): WorldMove(WorldState.ENDED, _OVER),
    (WorldState.READY, WorldEvent.CLOSE): WorldMove(WorldState.CLOSING, (WorldAction.REFUSE, WorldAction.CLOSE)),
    (WorldState.READY, WorldEvent.BROKEN): WorldMove(
        WorldState.ABORTING, (WorldAction.STOP, WorldAction.REFUSE, WorldAction.LEAVE)
    ),
    (WorldState.READY, WorldEvent.END): WorldMove(WorldState.ENDING, (WorldAction.REFUSE, WorldAction.CLOSE)),
    (WorldState.CLOSING, WorldEvent.LEFT): WorldMove(WorldState.WAITING, (WorldAction.CHECK,)),
    (WorldState.CLOSING, WorldEvent.BROKEN): WorldMove(WorldState.ABORTING, _OVER),
    (WorldState.CLOSING, WorldEvent.LATE): WorldMove(WorldState.ABORTING, _OVER),
    (WorldState.CLOSING, WorldEvent.END): WorldMove(WorldState.ENDING),
    (WorldState.ABORTING, WorldEvent.LEFT): WorldMove(WorldState.WAITING, (WorldAction.CHECK,)),
    (WorldState.ABORTING, WorldEvent.LATE): WorldMove(WorldState.ABORTING, (WorldAction.REPLACE,)),
    (WorldState.ABORTING, WorldEvent.END): WorldMove(WorldState.ENDED),
    (WorldState.ENDING, WorldEvent.LEFT): WorldMove(WorldState.ENDED, (WorldAction.FREE,)),
    (WorldState.ENDING, WorldEvent.BROKEN): WorldMove(WorldState.ENDED, _OVER),
    (WorldState.ENDING, WorldEvent.LATE): WorldMove(WorldState.ENDED, _OVER),
    (WorldState.ENDED, WorldEvent.LATE): WorldMove(WorldState.ENDED, (WorldAction.REPLACE,)),
    (WorldState.ENDED, WorldEvent.LEFT): WorldMove(WorldState.ENDED, (WorldAction.FREE,)),
}


def world_step(state: WorldState, event: WorldEvent) -> WorldMove:
    """Return where `event` leads from `state`.

    Raises:
        UnexpectedWorldEventError: The pair is not in the table.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UnexpectedWorldEventError(state, event) from None


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    return mermaid(TRANSITIONS, WorldState.WAITING)
