"""The tables of a gang call: every walk keeps the promises, and the ends of parts come to one truthful outcome."""

from __future__ import annotations

import pickle
from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.client.worlds.gang_life import (
    TRANSITIONS,
    GangAction,
    GangEvent,
    GangState,
    UnexpectedGangEventError,
    step,
)
from atomr_mp.client.worlds.gang_outcome import FOLLOWING, LOSSES, PartEnd, goes_again, has_diverged, judge
from atomr_mp.client.worlds.known_worlds import KnownWorlds
from atomr_mp.protocol.messages.devices import MethodInfo, Resend, WorldInfo

S, E, A = GangState, GangEvent, GangAction


class Call(NamedTuple):
    """One call: what is true of it, beside the table's state."""

    state: GangState = S.NEW
    queued: bool = False
    out: bool = False
    outcome: bool = False
    doubted: bool = False
    forgotten: bool = False

    def possible(self) -> list[GangEvent]:
        """Return what can happen now."""
        events = [] if self.state is S.NEW else [E.GIVE_UP]
        if self.state in {S.NEW, S.LINED_UP}:
            events.append(E.SEND)
        if self.state is S.NEW:
            events.append(E.WAIT)
        if self.out:
            events.append(E.SETTLED)
            if not self.outcome:
                events.append(E.AGAIN)
        return events

    def after(self, event: GangEvent) -> Call:
        """Return what is true after an event, and check the table's promises."""
        state, actions = step(self.state, event)
        now = self._replace(state=state, out=self.out and event not in {E.SETTLED, E.AGAIN})
        for action in actions:
            now = now.acted(action)
        assert now.queued == (state is S.LINED_UP)
        assert now.out == (state in {S.OUT, S.LATE})
        assert now.outcome == (state in {S.LATE, S.OVER})
        assert now.forgotten == (state is S.OVER)
        assert now.doubted or not (now.out and now.outcome), "given up while it may run, and nobody doubts it"
        return now

    def acted(self, action: GangAction) -> Call:
        """Return what is true after an action."""
        match action:
            case A.LINE_UP:
                assert not any((self.queued, self.out, self.outcome))
                return self._replace(queued=True)
            case A.UNLIST:
                assert self.queued
                return self._replace(queued=False)
            case A.PUT:
                assert not any((self.queued, self.out, self.outcome)), "sent for nobody, or twice at a time"
                return self._replace(out=True)
            case A.DOUBT:
                assert not self.outcome, "recorded too late"
                return self._replace(doubted=True)
            case A.END:
                assert not self.outcome, "two outcomes"
                return self._replace(outcome=True)
            case A.FORGET:
                return self._replace(forgotten=True)


def test_every_walk_keeps_the_promises() -> None:
    """All walks of the model, and every row of the table is used."""
    seen, to_do, used = {Call()}, deque([Call()]), set()
    while to_do:
        call = to_do.popleft()
        for event in call.possible():
            used.add((call.state, event))
            if (after := call.after(event)) not in seen:
                seen.add(after)
                to_do.append(after)
    assert used == TRANSITIONS.keys()


def test_what_is_not_in_the_table_is_an_error() -> None:
    """The lane would be at fault."""
    with pytest.raises(UnexpectedGangEventError, match="settled has no meaning"):
        step(S.LINED_UP, E.SETTLED)


FAULTS = (
    None,
    errors.CollectiveAborted("rank 1 has left", rank=1),
    errors.ActorFailed("raised"),
    errors.InvalidRequest("wrong"),
    errors.CollectiveAborted("aborted"),
    errors.CollectiveAborted("aborted", maybe_executed=False),
    errors.CollectiveAborted("left", diverged=True),
    errors.CollectiveAborted("aborted", maybe_executed=False, planned=True),
    errors.WorkerLost("killed"),
    errors.ContextPoisoned("poisoned"),
)
ends = st.builds(PartEnd, st.sampled_from(FAULTS), st.booleans(), st.booleans())


@given(st.lists(ends, min_size=1, max_size=4))
def test_the_outcome_is_the_lowest_rank_s_that_caused_it(parts: list[PartEnd]) -> None:
    """What has followed from another rank's error never hides that one."""
    end = judge(parts)
    assert end.executed == any(part.executed for part in parts)
    failed = [rank for rank, part in enumerate(parts) if part.error is not None]
    if not failed:
        assert (end.error, end.rank) == (None, -1)
        return
    causes = [rank for rank in failed if not isinstance(parts[rank].error, FOLLOWING)]
    causes = causes or [rank for rank in failed if getattr(parts[rank].error, "diverged", False)]
    causes = causes or [rank for rank in failed if isinstance(parts[rank].error, errors.WorkerLost)]
    causes = causes or [rank for rank in failed if getattr(parts[rank].error, "rank", -1) >= 0]
    assert end.rank == (causes or failed)[0]
    assert end.error is parts[end.rank].error


@given(
    parts=st.lists(ends, min_size=1, max_size=3),
    idempotent=st.booleans(),
    resend=st.sampled_from(Resend),
    replays=st.integers(0, 3),
    before=st.booleans(),
)
def test_only_what_may_run_twice_or_never_ran_goes_again(
    parts: list[PartEnd], resend: Resend, replays: int, *, idempotent: bool, before: bool
) -> None:
    """At most so often; what no worker got only waits on."""
    info = MethodInfo("m", [], idempotent=idempotent, deadline_s=None, doc="", resend=resend)
    end = judge(parts)
    again = goes_again(end, info, replays, 2, may_have_run=before or end.executed)
    assert not (end.moves and end.executed)
    assert again or not end.moves or not isinstance(end.error, LOSSES) or has_diverged(end.error)
    if again and end.sent and not end.moves:
        assert replays < 2
        assert idempotent or (resend is Resend.UNSTARTED and not before and not end.executed)
    if again:
        assert not isinstance(end.error, errors.ActorFailed | errors.InvalidRequest | None)


def test_the_rank_of_an_error_outlives_copies() -> None:
    """It is kept where errors are raised anew, and by pickle."""
    error = errors.ActorFailed("raised")
    assert error.rank == -1
    error.rank = 1
    assert errors.unraised(error).rank == 1
    assert pickle.loads(pickle.dumps(error)).rank == 1


def test_an_unknown_world_is_refused_by_the_known_names() -> None:
    """So are ordinary calls of a world's actor."""
    known = KnownWorlds([WorldInfo(0, "tp", [0, 1], ["Mlp"])])
    assert known.named("tp").number == 0
    with pytest.raises(errors.InvalidRequest, match=r"no world 'tq'.*this pool's worlds are: tp"):
        known.named("tq")
    known.refuse("Probe.echo")
    with pytest.raises(
        errors.InvalidRequest, match=r"Mlp belongs to the world tp: call pool.world\('tp'\).call\(...\)"
    ):
        known.refuse("Mlp.forward")
    known.take(WorldInfo(0, "tp", [0, 1], ["Other"]))
    known.refuse("Mlp.forward")
