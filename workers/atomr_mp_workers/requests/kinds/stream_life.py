"""A stream's life in the worker as a table: from (state, event) to the next state and action. Pure.

A stream takes its steps on its actor's thread, as many at a time as fit into a turn there, and holds no thread in
between. The table keeps these promises, whatever the order of events; tests walk all of it:

- It is in one place: in its thread's queue (`WAITING`, `READY`), on the thread (`RUNNING`), or aside.
- Only a stream that has credit, or has to end, is put into the queue; while a suspect runs alone, none that has begun
  is.
- A stream that has begun ends on its thread, so that its `finally` runs there.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple


class StreamState(StrEnum):
    """The states of a stream."""

    WAITING = auto()
    """In its thread's queue; it has not begun."""
    RUNNING = auto()
    """On its thread."""
    READY = auto()
    """In its thread's queue again."""
    PARKED = auto()
    """Aside: without credit."""
    PAUSED = auto()
    """Aside: it could go on, but a suspect runs alone."""
    OVER = auto()
    """Answered."""


class StreamEvent(StrEnum):
    """An event in the life of a stream."""

    TURN = auto()
    """Its turn begins."""
    REST = auto()
    """Its turn is over, and it has credit, or is to end."""
    REST_DRY = auto()
    """Its turn is over, and it has no credit."""
    REST_PAUSED = auto()
    """Its turn is over, and a suspect waits to run alone, or does."""
    GRANT = auto()
    """It has credit now."""
    CLOSE = auto()
    """It has to end: it is unwanted, or late."""
    RESUME = auto()
    """The suspect has ended."""
    END = auto()
    """Its generator has ended, or it was dropped before it began."""


class StreamStep(NamedTuple):
    """The next state, and whether the stream is put into its thread's queue."""

    state: StreamState
    queue: bool = False


_S, _E = StreamState, StreamEvent

_QUEUED: Final = StreamStep(_S.READY, queue=True)

TRANSITIONS: Final[dict[tuple[StreamState, StreamEvent], StreamStep]] = {
    (_S.WAITING, _E.TURN): StreamStep(_S.RUNNING),
    (_S.WAITING, _E.GRANT): StreamStep(_S.WAITING),
    (_S.WAITING, _E.END): StreamStep(_S.OVER),
    (_S.RUNNING, _E.REST): _QUEUED,
    (_S.RUNNING, _E.REST_DRY): StreamStep(_S.PARKED),
    (_S.RUNNING, _E.REST_PAUSED): StreamStep(_S.PAUSED),
    (_S.RUNNING, _E.GRANT): StreamStep(_S.RUNNING),
    (_S.RUNNING, _E.CLOSE): StreamStep(_S.RUNNING),
    (_S.RUNNING, _E.END): StreamStep(_S.OVER),
    (_S.READY, _E.TURN): StreamStep(_S.RUNNING),
    (_S.READY, _E.GRANT): StreamStep(_S.READY),
    (_S.READY, _E.CLOSE): StreamStep(_S.READY),
    (_S.PARKED, _E.GRANT): _QUEUED,
    (_S.PARKED, _E.CLOSE): _QUEUED,
    (_S.PAUSED, _E.GRANT): StreamStep(_S.PAUSED),
    (_S.PAUSED, _E.CLOSE): StreamStep(_S.PAUSED),
    (_S.PAUSED, _E.RESUME): _QUEUED,
}


class UnexpectedStreamEventError(Exception):
    """The event has no meaning in this state: the worker is at fault."""

    def __init__(self, state: StreamState, event: StreamEvent) -> None:
        super().__init__(f"{event} has no meaning while a stream is {state}")


def step(state: StreamState, event: StreamEvent) -> StreamStep:
    """Return where `event` leads from `state`.

    Raises:
        UnexpectedStreamEventError: The pair is not in the table.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UnexpectedStreamEventError(state, event) from None
