"""The table of a reply's life, walked in a model of one request.

The model is small enough to be explored completely, so what holds in it holds on every walk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import pytest

from atomr_mp.client.reply_life import (
    TRANSITIONS,
    ReplyAction,
    ReplyEvent,
    ReplyState,
    UnexpectedReplyEventError,
    step,
)

E, S, A = ReplyEvent, ReplyState, ReplyAction
CALLER = (E.CANCEL, E.EXPIRE)
ANSWERS = (E.PART, E.ANSWER, E.POISON)
UNTOLD = (*CALLER, E.FAIL, E.MOVE)
"""Events that say nothing about what a worker has done."""


@dataclass(frozen=True)
class Call:
    """One request: what is true of it in the world, beside the table's state."""

    state: ReplyState = S.WAITING
    queued: bool = True
    """Whether it is in a queue of its link."""
    listed: bool = False
    """Whether it is in its lane's backlog."""
    worker: bool = False
    """A worker has it, and may answer."""
    parked: bool = False
    """The supervisor is asked about it."""
    credit: bool = True
    outcome: bool = False
    unwanted: bool = False
    """The caller has cancelled it."""
    hung: bool = False
    """It was taken from a worker that may still answer."""
    unsure: bool = False
    """It was taken from a worker that has not said whether it ran."""
    doubted: bool = False
    """That is recorded."""

    def possible(self) -> list[ReplyEvent]:
        """Return what can happen now."""
        events = list(CALLER)
        if self.state is S.OVER:
            return events
        if self.listed:
            events += [E.ADMIT, E.FAIL]
        if self.queued:
            events += [E.SEND, E.OPEN, E.CROWDED, E.FAIL]
        if self.worker:
            events += [*ANSWERS, E.LOST, E.FAIL]
            if self.state is not S.POISONED:  # which has started
                events.append(E.LEFT)
            if self.state is S.STREAMING:
                events.append(E.MOVE)
        if self.parked:
            events += [E.RESUME, E.FAIL]
        if self.hung and not self.worker and not self.listed:  # no link knows it while it is listed
            events += ANSWERS
        return events

    def after(self, event: ReplyEvent) -> Call:  # noqa: C901 - one line for each thing that happens
        """Return the request after an event, having checked every promise that the step could break."""
        to = step(self.state, event)
        call = replace(self, state=to.state, unwanted=self.unwanted or event is E.CANCEL)
        if event is E.ADMIT:
            assert not call.credit, "it has credit already"
            call = replace(call, listed=False, queued=True, credit=True)
        if event in (E.SEND, E.OPEN):
            assert not call.outcome, "sent, though its caller has an outcome"
            assert not call.unwanted, "sent, though its caller does not want it"
            call = replace(call, queued=False, worker=True, hung=False)
        if event is E.LOST:
            call = replace(call, worker=False, parked=to.state is S.PARKED, hung=True)
        if event is E.LEFT or (event is E.ANSWER and self.worker and self.state is not S.POISONED):
            call = replace(call, worker=False)
        if self.worker and event in UNTOLD and {A.END, A.REQUEUE} & set(to.actions):
            call = replace(call, unsure=True)
        if event in (E.FAIL, E.MOVE):
            call = replace(call, worker=False, hung=event is E.MOVE or call.hung)
        if event is E.CROWDED:
            call = replace(call, listed=True)
        for action in to.actions:
            call = call.act(action, event)
        call.check()
        if event in CALLER and event is E.EXPIRE:
            assert call.outcome, "it waits beyond its deadline"
        if event in ANSWERS:
            taken = {A.KEEP, A.KEEP_PART} & set(to.actions)
            assert not (taken and self.outcome), "its caller has had an outcome before"
            assert taken or A.GIVE_BACK in to.actions, "what it holds does not come back"
        return call

    def act(self, action: ReplyAction, event: ReplyEvent) -> Call:  # noqa: C901, PLR0911 - one line for each action
        """Return the request after an action."""
        match action:
            case A.UNLIST:
                assert self.listed
                return replace(self, listed=False)
            case A.DEQUEUE:
                assert self.queued
                return replace(self, queued=False)
            case A.UNPARK:
                assert self.parked
                return replace(self, parked=False)
            case A.FREE:
                assert self.credit, "credit comes back twice"
                assert not self.worker, "a worker has it still"
                return replace(self, credit=False)
            case A.CEDE:
                assert self.credit, "credit comes back twice"
                assert self.listed, "it is nowhere"
                return replace(self, credit=False)
            case A.END:
                assert not self.outcome, "two outcomes"
                assert self.doubted or not self.unsure, "its caller is told that it certainly did not run"
                return replace(self, outcome=True)
            case A.REQUEUE:
                assert not self.unwanted, "the next worker would run it"
                assert self.doubted or not self.unsure, "it is forgotten that it may have run"
                return replace(self, queued=True)
            case A.DOUBT:
                assert self.unsure, "its worker has told"
                return replace(self, doubted=True)
            case A.TELL_WORKER:
                assert self.worker
            case A.KEEP | A.KEEP_PART | A.GIVE_BACK:
                assert event in ANSWERS
        return self

    def check(self) -> None:
        """Check what holds in every state."""
        places = self.queued + self.worker + self.parked
        assert self.credit == (places == 1), "credit for what is nowhere, or in two places"
        assert (self.state is S.OVER) == (self.outcome and not self.credit and not self.listed)
        assert self.listed == (self.state is S.BACKLOG)
        assert self.queued == (self.state is S.WAITING)
        assert self.parked == (self.state is S.PARKED)


def walked() -> tuple[set[Call], set[tuple[ReplyState, ReplyEvent]]]:
    """Return every request that can be, and every pair of the table that was met."""
    first = [Call(), Call(state=S.BACKLOG, queued=False, listed=True, credit=False)]
    found, met, left = {*first}, set(), deque(first)
    while left:
        call = left.popleft()
        for event in call.possible():
            met.add((call.state, event))
            after = call.after(event)
            if after not in found:
                found.add(after)
                left.append(after)
    return found, met


def test_every_walk_keeps_the_promises() -> None:
    """One outcome; credit while it is somewhere, and then no more; nothing unwanted is sent; no run is denied."""
    found, _ = walked()
    assert {call.state for call in found} == set(S)


def test_the_table_has_a_row_for_what_can_happen_and_no_other() -> None:
    """A pair that cannot be met is refused."""
    _, met = walked()
    assert met == set(TRANSITIONS)
    with pytest.raises(UnexpectedReplyEventError, match="answer has no meaning while a reply is over"):
        step(S.OVER, E.ANSWER)


def test_from_everywhere_a_worker_s_end_and_a_verdict_lead_to_the_end() -> None:
    """Whatever has happened to it, a request does not stay."""
    for call in walked()[0]:
        left = call
        for event in (E.ADMIT, E.SEND, E.LOST, E.FAIL):
            if event in left.possible():
                left = left.after(event)
        assert left.state is S.OVER
