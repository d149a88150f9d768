"""Which requests are held to end workers, on any walk of ends and reports."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atomr_mp.protocol.suspects import Request, Suspicion, Verdict
from atomr_mp.supervision.suspicion import SUSPECTED_S, Docket

A, B, C = (Request("A.run", bytes([n]) * 16) for n in range(3))


def verdicts(changed: Iterable[Suspicion]) -> dict[Request, Verdict]:
    """Return what was told of each request."""
    return {each.request: each.verdict for each in changed}


def test_what_runs_alone_at_the_second_end_is_condemned_and_nothing_else() -> None:
    """Two ran at the first end; each is tried by itself."""
    docket = Docket(2)
    docket.ended((0, 1), 2)
    assert verdicts(docket.suspect((0, 1), [A, B], 0)) == {A: Verdict.SUSPECTED, B: Verdict.SUSPECTED}
    assert verdicts(docket.acquit(A)) == {A: Verdict.CLEARED}
    docket.ended((0, 2), 1)
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
        docket.ended((0, generation), 1)
        assert docket.admit(A) == []
        docket.suspect((0, generation), [A], now_s)
    assert docket.quarantined() == [(A, 7.0, [(0, 1), (0, 2)])]
    assert docket.admit(B) == []
    assert verdicts(docket.admit(A)) == {A: Verdict.CLEARED}
    assert docket.quarantined() == []
    assert docket.known() == []
    docket.ended((0, 3), 1)
    assert verdicts(docket.suspect((0, 3), [A], 9)) == {A: Verdict.SUSPECTED}


def test_whoever_is_always_beside_others_is_never_condemned() -> None:
    """However many ends it was part of."""
    docket = Docket(2)
    for generation in range(1, 10):
        docket.ended((0, generation), 2)
        assert verdicts(docket.suspect((0, generation), [A], 0)) == {A: Verdict.SUSPECTED}


def test_one_end_counts_once() -> None:
    """Also if several clients report the same request of it, or one client several times."""
    docket = Docket(2)
    docket.ended((0, 1), 1)
    for _ in range(3):
        assert verdicts(docket.suspect((0, 1), [A, A], 0)) == {A: Verdict.SUSPECTED}


def test_old_suspicions_are_forgotten() -> None:
    """After a minute in which nothing was heard of them."""
    docket = Docket(2)
    docket.ended((0, 1), 2)
    docket.suspect((0, 1), [A], 0)
    docket.suspect((0, 1), [B], 30)
    assert verdicts(docket.expire(SUSPECTED_S)) == {A: Verdict.CLEARED}
    assert docket.acquit(A) == []


def test_only_so_much_is_remembered_and_what_is_forgotten_is_told() -> None:
    """So memory is bounded, here and in the clients."""
    docket = Docket(2, kept=2)
    docket.ended((0, 1), 3)
    assert verdicts(docket.suspect((0, 1), [A, B, C], 0))[A] is Verdict.CLEARED
    assert verdicts(docket.known()).keys() == {B, C}


def test_without_a_limit_nothing_is_held_of_anything() -> None:
    """Nor of an end of which nothing is known, or that was nobody's."""
    docket = Docket(0)
    docket.ended((0, 1), 1)
    assert docket.suspect((0, 1), [A], 0) == []
    docket = Docket(2)
    docket.ended((0, 1), 0)
    assert docket.suspect((0, 1), [A], 0) == []
    assert docket.suspect((0, 2), [A], 0) == []


class AnyWalk(RuleBasedStateMachine):
    """Ends, reports and acquittals in any order, with one poison among them."""

    def __init__(self) -> None:
        super().__init__()
        self.docket = Docket(2)
        self.told: dict[Request, Verdict] = {}
        self.generation = 0
        self.now_s = 0.0

    def hear(self, changed: list[Suspicion]) -> None:
        """Take in what a client would be told."""
        for each in changed:
            if each.verdict is Verdict.CLEARED:
                self.told.pop(each.request, None)
            else:
                self.told[each.request] = each.verdict

    @rule(beside=st.sets(st.sampled_from([B, C])))
    def poison_runs(self, beside: set[Request]) -> None:
        """The poison runs if it is admitted, alone if it is suspected, and ends its worker."""
        if self.told.get(A) is Verdict.QUARANTINED:
            return
        if A in self.told:
            beside = set()
        beside = {each for each in beside if each not in self.told}
        self.generation += 1
        self.docket.ended((0, self.generation), 1 + len(beside))
        for each in (A, *beside):
            self.hear(self.docket.suspect((0, self.generation), [each], self.now_s))

    @rule(request=st.sampled_from([B, C]))
    def innocent_runs(self, request: Request) -> None:
        """An innocent runs; its worker lives."""
        assert self.told.get(request) is not Verdict.QUARANTINED
        if request in self.told:
            self.hear(self.docket.acquit(request))

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
        """What was told adds up to what is known."""
        assert self.told == verdicts(self.docket.known())

    @invariant()
    def poison_ends_two_workers_while_it_is_suspected(self) -> None:
        """And is condemned by the second."""
        if A in self.told:
            assert (len(self.docket.ends(A)) >= 2) == (self.told[A] is Verdict.QUARANTINED)


TestAnyWalk = AnyWalk.TestCase
