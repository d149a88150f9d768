"""The table of a stream's life in the worker, walked in a model of one stream with its queue and its thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import pytest

from atomr_mp_workers.requests.kinds.stream_life import (
    TRANSITIONS,
    StreamEvent,
    StreamState,
    UnexpectedStreamEventError,
    step,
)

E, S = StreamEvent, StreamState
ASIDE = (S.PARKED, S.PAUSED)


@dataclass(frozen=True)
class Stream:
    """One stream: what is true of it in the world, beside the table's state."""

    state: StreamState = S.WAITING
    queued: bool = True
    """In its thread's queue."""
    running: bool = False
    credit: bool = True
    closing: bool = False
    """It is to end."""
    suspect: bool = False
    """Another runs alone."""

    def possible(self) -> list[StreamEvent]:
        """Return what can happen now."""
        if self.state is S.OVER:
            return []
        events = [E.GRANT]
        if self.state is not S.WAITING:  # what has not begun is dropped, and not closed
            events.append(E.CLOSE)
        if self.queued:
            events.append(E.TURN)
        if self.state is S.WAITING:
            events.append(E.END)
        if self.running:
            events.append(E.END)
            if self.suspect:
                events.append(E.REST_PAUSED)
            elif self.credit or self.closing:
                events.append(E.REST)
            else:
                events.append(E.REST_DRY)
        if self.state is S.PAUSED and (self.credit or self.closing):
            events.append(E.RESUME)
        return events

    def after(self, event: StreamEvent) -> Stream:
        """Return the stream after an event, having checked every promise that the step could break."""
        to = step(self.state, event)
        stream = replace(self, state=to.state)
        match event:
            case E.GRANT:
                stream = replace(stream, credit=True)
            case E.CLOSE:
                stream = replace(stream, closing=True)
            case E.TURN:
                stream = replace(stream, queued=False, running=True)
            case E.REST | E.REST_DRY | E.REST_PAUSED:
                stream = replace(stream, running=False)
            case E.RESUME:
                stream = replace(stream, suspect=False)
            case E.END:
                stream = replace(stream, running=False, queued=False)
        if to.queue:
            assert not stream.queued, "in its queue twice"
            assert not stream.running, "in its queue, and on its thread"
            assert stream.credit or stream.closing, "it would have nothing to do"
            stream = replace(stream, queued=True)
        assert stream.queued == (stream.state in (S.WAITING, S.READY))
        assert stream.running == (stream.state is S.RUNNING)
        return stream

    def world(self) -> list[Stream]:
        """Return what it may become without an event of its own."""
        found = [replace(self, suspect=not self.suspect)]
        if self.running:
            found.append(replace(self, credit=False))
        return found


def walked() -> tuple[set[Stream], set[tuple[StreamState, StreamEvent]]]:
    """Return every stream that can be, and every pair of the table that was met."""
    found, met, left = {Stream()}, set(), deque([Stream()])
    while left:
        stream = left.popleft()
        nexts = stream.world() if stream.state is not S.OVER else []
        for event in stream.possible():
            met.add((stream.state, event))
            nexts.append(stream.after(event))
        for each in nexts:
            if each not in found:
                found.add(each)
                left.append(each)
    return found, met


def test_every_walk_keeps_the_promises() -> None:
    """One place at a time; nothing is queued that has nothing to do; all states are met."""
    found, _ = walked()
    assert {stream.state for stream in found} == set(S)


def test_the_table_has_a_row_for_what_can_happen_and_no_other() -> None:
    """A pair that cannot be met is refused."""
    _, met = walked()
    assert met == set(TRANSITIONS)
    with pytest.raises(UnexpectedStreamEventError, match="turn has no meaning while a stream is over"):
        step(S.OVER, E.TURN)


def test_whoever_has_begun_can_be_brought_to_its_end() -> None:
    """From everywhere: it is closed, gets its turn, and ends there."""
    for stream in walked()[0]:
        left = replace(stream, suspect=False)
        for event in (E.CLOSE, E.RESUME, E.TURN, E.END):
            if event in left.possible():
                left = left.after(event)
        assert left.state is S.OVER, stream
