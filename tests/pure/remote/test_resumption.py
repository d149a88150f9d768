"""Calls of a remote session: one outcome and at most one run each, whatever is cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

import hypothesis
import pytest
from hypothesis import strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp.remote import link_life, resumption
from atomr_mp.remote.link_life import RemoteLinkEvent, RemoteLinkState
from atomr_mp.remote.releases import SentReleases
from atomr_mp.remote.resumption import CallAction, CallEvent, CallState, CallTable, IdRanges, OpenCalls

MOST: Final = 6


def test_every_pair_that_can_be_is_in_the_table() -> None:
    """The pool answers only what runs, and once: those two pairs are errors of ours."""
    absent = set(itertools.product(CallState, CallEvent)) - set(resumption.CALLS)
    assert absent == {(CallState.UNSEEN, CallEvent.ANSWER), (CallState.ANSWERED, CallEvent.ANSWER)}


@hypothesis.given(strategies.lists(strategies.integers(1, 40)), strategies.data())
def test_ranges_are_the_set_that_they_stand_for(numbers: list[int], data: strategies.DataObject) -> None:
    """In any order, with repetitions, and after a resumption; and they take no more room than there are gaps."""
    ranges, model = IdRanges(), set[int]()
    for number in numbers:
        ranges.add(number)
        model.add(number)
    upto = data.draw(strategies.integers(1, 45))
    without = data.draw(strategies.lists(strategies.integers(1, 44)))
    ranges.all_below_but(upto, without)
    model = {each for each in model if each >= upto} | (set(range(1, upto)) - set(without))
    assert {each for each in range(1, 60) if each in ranges} == model
    runs = sum(1 for each in model if each + 1 not in model)
    assert len(ranges) <= runs + 1
    assert ranges.below == min(set(range(1, 61)) - model)


def test_one_slow_call_costs_no_room() -> None:
    """However many others come and go beside it."""
    table: CallTable[str] = CallTable(MOST)
    table.offer(1, 0)
    for number in range(2, 10_000):
        table.offer(number, 0)
        table.answer(number, "answer", 1)
        table.settle(number)
    assert len(table._settled) == 2
    assert len(table) == 1


def test_gaps_without_end_are_refused() -> None:
    """What a client would have to be mad, or hostile, to send takes no memory."""
    table: CallTable[str] = CallTable(MOST)
    for number in range(2, 2 + 2 * MOST, 2):
        table.settle(number)
    with pytest.raises(ValueError, match="gaps"):
        table.settle(1000)
    for number in range(2000, 2000 + MOST):
        table.offer(number, 0)
    with pytest.raises(ValueError, match="open"):
        table.offer(3000, 0)


class TwoEnds(RuleBasedStateMachine):
    """A client and a gateway, between which messages are lost at every cut, and calls that the pool runs in any order.

    Within a connection messages arrive in order, as TCP has it; a cut loses what is on the way, in both directions.
    Each answer brings a lease.
    """

    def __init__(self) -> None:
        super().__init__()
        self.client: OpenCalls[int] = OpenCalls()
        self.table: CallTable[int] = CallTable(MOST)
        self.sent: set[int] = set()
        self.to_gateway: list[tuple[str, list[int]]] = []
        self.to_client: list[tuple[str, list[int]]] = []
        self.connected = self.open = self.ready = False
        self.runs: dict[int, int] = {}
        self.outcomes: dict[int, int] = {}
        self.releases = SentReleases()
        self.serial = 0
        self.counted: set[int] = set()
        """Calls whose answer's lease the gateway counts for the client."""
        self.leased: set[int] = set()
        """Calls whose answer's lease the client has."""

    @precondition(lambda self: len(self.client.unanswered) < MOST)
    @rule()
    def call(self) -> None:
        """Make a call."""
        number = self.client.add(0)
        if self.open:
            self._send([number])

    @precondition(lambda self: not self.connected)
    @rule()
    def connect(self) -> None:
        """Connect, and say what is unanswered."""
        self.connected = True
        unanswered = [number for number in self.client.resume() if number in self.sent]
        unsent = [number for number in self.client.unanswered if number not in self.sent]
        self.to_gateway.append(("given up", [each.id for each in self.releases.given_up()]))
        self.to_gateway.append(("resume", [min(unsent, default=self.client.next_id), *unanswered]))

    @precondition(lambda self: self.connected)
    @rule(lost=strategies.integers(0, 3))
    def cut(self, lost: int) -> None:
        """Cut the connection: what is on the way arrives in part."""
        for _ in range(lost):
            self.gateway_hears()
        self.connected = self.open = self.ready = False
        self.to_gateway.clear()
        self.to_client.clear()

    @precondition(lambda self: self.to_gateway)
    @rule()
    def gateway_hears(self) -> None:
        """The gateway takes the next message."""
        if not self.to_gateway:
            return
        kind, numbers = self.to_gateway.pop(0)
        if kind == "resume":
            self._resume(*numbers)
        elif kind == "settled":
            for number in numbers:
                self.table.settle(number)
        elif kind == "given up":
            self._free(numbers)
        elif kind == "release":
            self._take_release(*numbers)
        else:
            for number in numbers:
                action = self.table.offer(number, 1)
                if action is CallAction.RUN:
                    self.runs[number] = self.runs.get(number, 0) + 1
                elif action is CallAction.SEND:
                    self.to_client.append(("answer", [number]))

    @precondition(lambda self: self.to_client)
    @rule()
    def client_hears(self) -> None:
        """The client takes the next message."""
        kind, numbers = self.to_client.pop(0)
        if kind == "released":
            self.releases.acknowledge(*numbers)
        elif kind == "resumed":
            self.open = True
            for release in self.releases.unacknowledged():
                self.to_gateway.append(("release", [release.serial, *(each.id for each in release.given_up)]))
            self._send([each for each in self.client.unanswered if each not in numbers])
        else:
            for number in numbers:
                if self.client.settle(number) is not None:
                    self.outcomes[number] = self.outcomes.get(number, 0) + 1
                    self.leased.add(number)

    @precondition(lambda self: self.sent & self.client.unanswered.keys())
    @rule(data=strategies.data(), tells=strategies.booleans())
    def give_up(self, data: strategies.DataObject, *, tells: bool) -> None:
        """The client wants an answer no more."""
        number = data.draw(strategies.sampled_from(sorted(self.sent & self.client.unanswered.keys())))
        self.client.give_up(number)
        self.releases.give_up(number, 0)
        if tells and self.open:
            self._give_back()

    @precondition(lambda self: self.table.running)
    @rule(data=strategies.data())
    def pool_answers(self, data: strategies.DataObject) -> None:
        """The pool ends any of the calls, connected or not."""
        number = data.draw(strategies.sampled_from(self.table.running))
        self._answer(number)

    @precondition(lambda self: self.open and self.client.untold)
    @rule()
    def tell_settled(self) -> None:
        """The client says what it has."""
        self.to_gateway.append(("settled", self.client.take_settled(100)))

    @invariant()
    def one_run_and_one_outcome(self) -> None:
        """No call runs twice, none has two outcomes, and none has one without having run."""
        assert all(count == 1 for count in self.runs.values())
        assert all(count == 1 for count in self.outcomes.values())
        assert self.outcomes.keys() <= self.runs.keys()

    @invariant()
    def no_lease_is_freed_that_the_client_has(self) -> None:
        """Whatever was lost, repeated or late."""
        assert self.leased <= self.counted

    @invariant()
    def nothing_grows(self) -> None:
        """What is kept is bounded by what the client may have open."""
        assert len(self.table) <= MOST
        assert len(self.table._settled) <= MOST + 2

    def teardown(self) -> None:
        """With a connection that holds, all calls end."""
        for _ in range(200):
            if not self.connected:
                self.connect()
            while self.to_gateway or self.to_client:
                while self.to_gateway:
                    self.gateway_hears()
                while self.to_client:
                    self.client_hears()
                self._give_back()
            for number in self.table.running:
                self._answer(number)
            if not self.client.unanswered:
                break
        assert not self.client.unanswered
        assert not self.releases.unacknowledged()
        assert self.leased == self.counted
        self.one_run_and_one_outcome()

    def _answer(self, number: int) -> None:
        if self.table.answer(number, number, 1) is CallAction.KEEP:
            self.counted.add(number)
            if self.ready:
                self.to_client.append(("answer", [number]))

    def _give_back(self) -> None:
        while (release := self.releases.next([])) is not None:
            self.to_gateway.append(("release", [release.serial, *(each.id for each in release.given_up)]))

    def _resume(self, next_id: int, *unanswered: int) -> None:
        known, _ = self.table.resume(unanswered, next_id)
        self.ready = True
        self.to_client.append(("released", [self.serial]))
        self.to_client.append(("resumed", known))
        self.to_client += [("answer", [each]) for each in known if self.table.kept(each) is not None]

    def _take_release(self, serial: int, *given_up: int) -> None:
        if serial > self.serial:
            assert serial == self.serial + 1
            self.serial = serial
            self._free(given_up)
            self.to_client.append(("released", [serial]))

    def _free(self, given_up: Iterable[int]) -> None:
        for number in given_up:
            if self.table.kept(number) is not None:
                self.counted.remove(number)
            self.table.settle(number)

    def _send(self, numbers: list[int]) -> None:
        self._give_back()
        if self.client.untold:
            self.to_gateway.append(("settled", self.client.take_settled(100)))
        self.sent.update(numbers)
        self.to_gateway.append(("calls", numbers))


TestTwoEnds = TwoEnds.TestCase
TestTwoEnds.settings = hypothesis.settings(max_examples=60, stateful_step_count=40, deadline=None)


@hypothesis.given(strategies.lists(strategies.sampled_from(list(RemoteLinkEvent))))
def test_calls_are_sent_only_after_a_resumption_on_the_same_connection(events: list[RemoteLinkEvent]) -> None:
    """Whatever happens, and in whatever order; and what is over stays so."""
    state, resumed, over = RemoteLinkState.DOWN, False, False
    for event in events:
        before = state
        state, _ = link_life.step(state, event)
        if event in {RemoteLinkEvent.HANDSHAKE, RemoteLinkEvent.CUT}:
            resumed = False
        if before is RemoteLinkState.RESUMING and event is RemoteLinkEvent.RESUMED:
            resumed = True
        over = over or event is RemoteLinkEvent.ENDED
        assert state is not RemoteLinkState.OPEN or resumed
        assert (state is RemoteLinkState.OVER) is over
