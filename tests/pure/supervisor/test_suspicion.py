"""Which requests are held to end workers, on any walk of ends and reports."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atomr_mp.protocol.messages.suspects import RequestKey, Suspicion, Verdict
from atomr_mp.supervision.suspicion import STRUCK_S, SUSPECTED_S, Cause, Death, Docket, End, cause_of

A, B, C = (RequestKey("A.run", bytes([n]) * 16) for n in range(3))


def verdicts(changed: Iterable[Suspicion]) -> dict[RequestKey, Verdict]:
    """Return the verdict on each request."""
    return {each.request: each.verdict for each in changed}


def test_what_runs_alone_at_the_second_end_is_condemned_and_nothing_else() -> None:
    """Two ran at the first end; each is tried by itself."""
    docket = Docket(2)
    docket.ended((0, 1), Death(2), 0)
    assert verdicts(docket.suspect((0, 1), [A, B], 0)) == {A: Verdict.SUSPECTED, B: Verdict.SUSPECTED}
    assert verdicts(docket.acquit(A)) == {A: Verdict.CLEARED}
    docket.ended((0, 2), Death(1), 0)
    assert verdicts(docket.suspect((0, 2), [B], 0)) == {B: Verdict.QUARANTINED}
    assert docket.ends(B) == {(0, 1), (0, 2)}
    assert docket.acquit(B) == []
    assert docket.expire(SUSPECTED_S * 10) == []
    assert verdicts(docket.known()) == {B: Verdict.QUARANTINED}
    assert verdicts(docket.clear()) == {B: Verdict.CLEARED}


def test_what_is_admitted_has_to_end_as_many_workers_anew() -> None:
    """What is refused is known with its ends; only that can be admitted, and then nothing is held of it."""
    docket = Docket(2)
    for generation, now_s in ((1, 5.0), (2, 7.0)):
        docket.ended((0, generation), Death(1), 0)
        assert docket.admit(A) == []
        docket.suspect((0, generation), [A], now_s)
    assert docket.quarantined() == [(A, 7.0, [(0, 1), (0, 2)])]
    assert docket.admit(B) == []
    assert verdicts(docket.admit(A)) == {A: Verdict.CLEARED}
    assert docket.quarantined() == []
    assert docket.known() == []
    docket.ended((0, 3), Death(1), 0)
    assert verdicts(docket.suspect((0, 3), [A], 9)) == {A: Verdict.SUSPECTED}


def test_whoever_is_always_beside_others_is_never_condemned() -> None:
    """However many ends it was part of."""
    docket = Docket(2)
    for generation in range(1, 10):
        docket.ended((0, generation), Death(2), 0)
        assert verdicts(docket.suspect((0, generation), [A], 0)) == {A: Verdict.SUSPECTED}


def test_one_end_counts_once() -> None:
    """Also if several clients report the same request of it, or one client several times."""
    docket = Docket(2)
    docket.ended((0, 1), Death(1), 0)
    for _ in range(3):
        assert verdicts(docket.suspect((0, 1), [A, A], 0)) == {A: Verdict.SUSPECTED}


def test_old_suspicions_are_forgotten() -> None:
    """After a minute in which nothing was heard of them."""
    docket = Docket(2)
    docket.ended((0, 1), Death(2), 0)
    docket.suspect((0, 1), [A], 0)
    docket.suspect((0, 1), [B], 30)
    assert verdicts(docket.expire(SUSPECTED_S)) == {A: Verdict.CLEARED}
    assert docket.acquit(A) == []


def test_only_so_much_is_remembered_and_what_is_forgotten_is_told() -> None:
    """So memory is bounded, here and in the clients."""
    docket = Docket(2, kept=2)
    docket.ended((0, 1), Death(3), 0)
    assert verdicts(docket.suspect((0, 1), [A, B, C], 0))[A] is Verdict.CLEARED
    assert verdicts(docket.known()).keys() == {B, C}


def test_without_a_limit_nothing_is_held_of_anything() -> None:
    """Nor of an end of unknown cause, or without fault."""
    docket = Docket(0)
    docket.ended((0, 1), Death(1), 0)
    assert docket.suspect((0, 1), [A], 0) == []
    docket = Docket(2)
    docket.ended((0, 1), Death(0), 0)
    assert docket.suspect((0, 1), [A], 0) == []
    assert docket.suspect((0, 2), [A], 0) == []


STRUCK, STRUCK_ALONE = (Death(1, alone, Cause.UNKNOWN) for alone in (False, True))


def die(
    docket: Docket, end: End, death: Death, requests: list[RequestKey], now_s: float = 0
) -> dict[RequestKey, Verdict]:
    """Have a worker end that ran some requests; return what is held of them then."""
    released = verdicts(docket.ended(end, death, now_s))
    return released | verdicts(docket.suspect(end, requests, now_s))


@pytest.mark.parametrize(
    ("ended_by", "shown", "cause"),
    [
        ("SIGKILL", {}, Cause.UNKNOWN),
        ("SIGTERM", {}, Cause.UNKNOWN),
        ("SIGTERM", {"oom_killed": True}, Cause.UNKNOWN),
        ("", {}, Cause.UNKNOWN),  # a debugger has taken the answer
        ("", {"exited": True}, Cause.INSIDE),
        ("SIGTERM", {"sent_by_itself": True}, Cause.INSIDE),
        ("SIGKILL", {"oom_killed": True}, Cause.INSIDE),
        *((f"SIG{name}", {}, Cause.INSIDE) for name in ("SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP", "SYS")),
    ],
)
def test_only_what_the_process_shows_is_held_against_a_request(
    ended_by: str, shown: dict[str, bool], cause: Cause
) -> None:
    """An exit, a fault, a signal to itself, its own memory; who has sent any other signal cannot be known."""
    assert not ended_by or ended_by in signal.Signals.__members__
    nothing = {"exited": False, "sent_by_itself": False, "oom_killed": False}
    assert cause_of(ended_by, **{**nothing, **shown}) is cause


def test_unexplained_signals_isolate_and_do_not_condemn() -> None:
    """However many there are, and though nothing else ran there, as long as it was not let in alone."""
    docket = Docket(2)
    for generation in range(1, 10):
        assert die(docket, (0, generation), STRUCK, [A]) == {A: Verdict.SUSPECTED}


def test_who_dies_alone_where_nothing_else_is_struck_is_condemned() -> None:
    """Nothing else speaks for it: the same signal comes whenever it runs, and at no other time."""
    docket = Docket(2)
    assert die(docket, (0, 1), STRUCK, [A]) == {A: Verdict.SUSPECTED}
    assert die(docket, (0, 2), STRUCK_ALONE, [A]) == {A: Verdict.SUSPECTED}
    assert die(docket, (0, 3), STRUCK_ALONE, [A]) == {A: Verdict.QUARANTINED}


@pytest.mark.parametrize("running", [0, 1, 5])
@pytest.mark.parametrize(("before_s", "verdict"), [(STRUCK_S, Verdict.QUARANTINED), (STRUCK_S - 1, Verdict.SUSPECTED)])
def test_a_signal_that_struck_another_worker_speaks_for_it(running: int, before_s: float, verdict: Verdict) -> None:
    """For a minute; whatever ran there, or nothing."""
    docket = Docket(2)
    docket.ended((1, 1), Death(running, cause=Cause.UNKNOWN), 0)
    assert die(docket, (0, 1), STRUCK_ALONE, [A], before_s) == {A: Verdict.SUSPECTED}
    assert die(docket, (0, 2), STRUCK_ALONE, [A], before_s) == {A: verdict}


def test_a_signal_that_strikes_another_worker_later_releases_it() -> None:
    """It is suspected as before, and forgotten as others are; the verdict of a proof stays."""
    docket = Docket(2)
    for generation in (1, 2):
        die(docket, (0, generation), STRUCK_ALONE, [A], 5)
        die(docket, (1, generation), Death(1), [B], 5)
    assert verdicts(docket.known()) == {A: Verdict.QUARANTINED, B: Verdict.QUARANTINED}
    assert verdicts(docket.ended((2, 1), Death(0, cause=Cause.SUPERVISOR), 6)) == {}
    assert verdicts(docket.ended((2, 2), Death(0, cause=Cause.UNKNOWN), 7)) == {A: Verdict.SUSPECTED}
    assert verdicts(docket.known()) == {A: Verdict.SUSPECTED, B: Verdict.QUARANTINED}
    assert verdicts(docket.expire(5 + SUSPECTED_S)) == {A: Verdict.CLEARED}


def test_after_a_minute_the_verdict_stays() -> None:
    """What strikes then has nothing to do with it."""
    docket = Docket(2)
    for generation in (1, 2):
        die(docket, (0, generation), STRUCK_ALONE, [A])
    assert docket.ended((1, 1), Death(0, cause=Cause.UNKNOWN), STRUCK_S) == []
    assert verdicts(docket.known()) == {A: Verdict.QUARANTINED}


def test_only_ends_from_inside_make_a_proof() -> None:
    """A signal that came before them is not one of so many; nor is what the supervisor did for a reason of its own."""
    docket = Docket(2)
    docket.ended((1, 1), Death(0, cause=Cause.UNKNOWN), 0)
    assert die(docket, (0, 1), STRUCK, [A]) == {A: Verdict.SUSPECTED}
    assert die(docket, (0, 2), Death(1, True), [A]) == {A: Verdict.SUSPECTED}
    assert die(docket, (0, 3), Death(1, True, Cause.SUPERVISOR), [A]) == {A: Verdict.SUSPECTED}
    assert die(docket, (0, 4), Death(1, True), [A]) == {A: Verdict.QUARANTINED}


class AnyWalk(RuleBasedStateMachine):
    """Ends, reports, acquittals and kills from outside in any order, with one poison among them."""

    def __init__(self) -> None:
        super().__init__()
        self.docket = Docket(2)
        self.told: dict[RequestKey, Verdict] = {}
        self.generation = 0
        self.now_s = 0.0
        self.ends_of_poison = 0

    def hear(self, changed: list[Suspicion]) -> None:
        """Take in what a client would hear."""
        for each in changed:
            if each.verdict is Verdict.CLEARED:
                self.ends_of_poison *= each.request != A
                self.told.pop(each.request, None)
            else:
                self.told[each.request] = each.verdict

    @rule(beside=st.sets(st.sampled_from([B, C])))
    def poison_runs(self, beside: set[RequestKey]) -> None:
        """The poison runs if it is admitted, alone if it is suspected, and ends its worker."""
        if self.told.get(A) is Verdict.QUARANTINED:
            return
        if A in self.told:
            beside = set()
        beside = {each for each in beside if each not in self.told}
        self.generation += 1
        self.hear(self.docket.ended((0, self.generation), Death(1 + len(beside)), self.now_s))
        self.ends_of_poison += 1
        for each in (A, *beside):
            self.hear(self.docket.suspect((0, self.generation), [each], self.now_s))

    @rule(request=st.sampled_from([B, C]))
    def innocent_runs(self, request: RequestKey) -> None:
        """An innocent runs; its worker lives."""
        assert self.told.get(request) is not Verdict.QUARANTINED
        if request in self.told:
            self.hear(self.docket.acquit(request))

    @rule(requests=st.sets(st.sampled_from([A, B, C])))
    def somebody_kills(self, requests: set[RequestKey]) -> None:
        """A worker is killed from outside whatever runs there, suspects alone; and an idle one too."""
        requests = {each for each in requests if self.told.get(each) is not Verdict.QUARANTINED}
        running = [each for each in (A, B, C) if each in requests]
        suspects = [each for each in running if each in self.told]
        self.generation += 1
        self.hear(self.docket.ended((1, self.generation), Death(0, cause=Cause.UNKNOWN), self.now_s))
        struck = suspects[:1] or running
        self.generation += 1
        death = Death(len(struck), bool(suspects), Cause.UNKNOWN)
        self.hear(self.docket.ended((0, self.generation), death, self.now_s))
        for each in struck:
            self.hear(self.docket.suspect((0, self.generation), [each], self.now_s))

    @rule(by_s=st.floats(0, 2 * SUSPECTED_S))
    def time_passes(self, by_s: float) -> None:
        """Suspicions grow old."""
        self.now_s += by_s
        self.hear(self.docket.expire(self.now_s))

    @invariant()
    def innocents_are_never_condemned(self) -> None:
        """Whatever they ran beside."""
        assert {self.told.get(each) for each in (B, C)} <= {None, Verdict.SUSPECTED}

    @invariant()
    def clients_know_what_is_held(self) -> None:
        """The sent verdicts add up to the known ones."""
        assert self.told == verdicts(self.docket.known())

    @invariant()
    def poison_is_condemned_by_its_second_end(self) -> None:
        """Whatever else has ended workers while it ran."""
        assert (self.told.get(A) is Verdict.QUARANTINED) == (self.ends_of_poison >= 2)


TestAnyWalk = AnyWalk.TestCase
