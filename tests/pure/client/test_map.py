from __future__ import annotations

from collections import Counter
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atomr_mp import errors
from atomr_mp.mapping.schedule import MAX_DEPTH, QUEUE_S, WINDOW_FACTOR, Depth, Failure, Job

CURABLE: Final = (
    errors.WorkerLost,
    errors.ConnectionLost,
    errors.ContextPoisoned,
    errors.DeviceUnavailable,
    errors.CollectiveAborted,
)
FINAL: Final = (errors.ActorFailed, errors.DeadlineExceeded, errors.PoolLost, errors.Cancelled, errors.Unrecoverable)

errors_of_requests = st.builds(
    lambda cls, maybe_executed: cls("for a test", maybe_executed=maybe_executed),
    st.sampled_from(CURABLE + FINAL),
    st.booleans(),
)


class AnyWalk(RuleBasedStateMachine):
    """A job under every order of events that its shell can bring about, beside a model of what it promises."""

    @initialize(
        idempotent=st.booleans(),
        attempts=st.integers(1, 4),
        in_flight=st.none() | st.integers(1, 8),
        devices=st.integers(0, 3),
        items=st.integers(0, 60),
    )
    def begin(self, *, idempotent: bool, attempts: int, in_flight: int | None, devices: int, items: int) -> None:
        """Begin a map of so many items."""
        self.job: Job[str] = Job(idempotent=idempotent, attempts=attempts, in_flight=in_flight, devices=devices)
        self.idempotent, self.attempts, self.items = idempotent, attempts, items
        self.in_flight = in_flight
        self.window = WINDOW_FACTOR * (in_flight or MAX_DEPTH * devices or MAX_DEPTH)
        self.taken = 0
        self.flying: set[int] = set()
        self.sent: Counter[int] = Counter()
        self.may_have_run: Counter[int] = Counter()
        self.due: set[int] = set()
        """To be sent again."""
        self.expected: dict[int, str | errors.AtomrError] = {}
        self.out: list[int] = []

    @rule()
    def take(self) -> None:
        """Send what the job wants sent."""
        index = self.job.take()
        if index is None:
            return
        if index == self.taken:
            if self.taken == self.items:
                self.job.exhausted()
                return
            self.taken += 1
        else:
            self.due.remove(index)
        assert index not in self.flying
        assert index not in self.expected
        self.flying.add(index)
        self.sent[index] += 1
        self.may_have_run[index] += 1

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), took_s=st.floats(0, 10))
    def answer(self, data: st.DataObject, took_s: float) -> None:
        """Answer an item."""
        index = self.land(data)
        self.job.answered(index, f"result {index}", took_s)
        self.expected[index] = f"result {index}"

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), error=errors_of_requests)
    def fail(self, data: st.DataObject, error: errors.RequestError) -> None:
        """Let an item fail."""
        index = self.land(data)
        self.may_have_run[index] -= not error.maybe_executed
        maybe_executed = error.maybe_executed
        again = self.job.failed(index, error)
        may = isinstance(error, CURABLE) and (
            not maybe_executed or (self.idempotent and self.may_have_run[index] < self.attempts)
        )
        assert again == may
        if again:
            self.due.add(index)
        else:
            self.expected[index] = error
            assert error.maybe_executed == (self.may_have_run[index] > 0)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """Let an item meet a full window."""
        index = self.land(data)
        self.sent[index] -= 1
        self.may_have_run[index] -= 1
        error = errors.Overloaded("for a test")
        if self.job.refused(index, error):
            assert self.flying, "something is in flight whose answer makes room"
            assert self.job.take() is None
            self.due.add(index)
        else:
            assert not self.flying
            self.expected[index] = error

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def find_the_queue_full(self, data: st.DataObject) -> None:
        """Let a worker refuse an item: it is sent when something of ours has landed, or after a time."""
        index = self.land(data)
        self.sent[index] -= 1
        self.may_have_run[index] -= 1
        assert self.job.postponed(index) == (not self.flying)
        assert self.job.take() is None
        if not self.flying:
            self.job.retry()
        self.due.add(index)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def cannot_send(self, data: st.DataObject) -> None:
        """Let an item be refused by all devices."""
        index = self.land(data)
        self.sent[index] -= 1
        self.may_have_run[index] -= 1
        error = errors.DeviceUnavailable("for a test")
        self.job.unsendable(index, error)
        self.expected[index] = error

    @rule(devices=st.integers(0, 3))
    def lose_or_gain_devices(self, devices: int) -> None:
        """Have another number of devices."""
        self.job.devices = devices

    @rule()
    def pop(self) -> None:
        """Read one outcome."""
        ready = self.job.ready
        popped = self.job.pop()
        assert ready == (popped is not None)
        if popped is None:
            return
        index, outcome = popped
        expected = self.expected.pop(index)
        if isinstance(outcome, Failure):
            assert (outcome.index, outcome.error) == (index, expected)
            assert outcome.attempts == self.sent[index]
        else:
            assert outcome == expected
        self.out.append(index)

    @invariant()
    def keeps_its_promises(self) -> None:
        """Whatever happens: in order, each once, bounded, and run no more often than allowed."""
        job = self.job
        assert self.out == list(range(len(self.out)))
        assert job.in_flight == len(self.flying)
        assert job.in_flight <= (self.in_flight or MAX_DEPTH * 3)
        assert self.taken <= len(self.out) + self.window
        assert job.done == len(self.out) + len(self.expected)
        assert all(runs <= (self.attempts if self.idempotent else 1) for runs in self.may_have_run.values())

    def teardown(self) -> None:
        """From here on all goes well: then everything comes out, and the job is over."""
        if not hasattr(self, "job"):
            return
        for _ in range(2 * self.items + 2):
            self.take()
            for index in sorted(self.flying):
                self.flying.remove(index)
                self.job.answered(index, f"result {index}", 0.0)
                self.expected[index] = f"result {index}"
            self.pop()
        assert self.job.over
        assert self.out == list(range(self.items))
        assert not self.expected

    def land(self, data: st.DataObject) -> int:
        """Choose one that is in flight."""
        index = data.draw(st.sampled_from(sorted(self.flying)))
        self.flying.remove(index)
        return index


AnyWalk.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestEveryOrderOfEvents = AnyWalk.TestCase


def test_item_that_ends_workers_is_run_at_most_so_often() -> None:
    """An idempotent item that kills its worker each time fails after `attempts` runs, with what that cost noted."""
    job: Job[str] = Job(idempotent=True, attempts=3, in_flight=1, devices=1)
    sent = 0
    while not job.ready:
        index = job.take()
        assert index == 0
        sent += 1
        job.failed(0, errors.WorkerLost("killed", maybe_executed=True))
    assert sent == 3
    popped = job.pop()
    assert popped is not None
    assert isinstance(popped[1], Failure)
    assert popped[1].attempts == 3
    assert job.resubmitted == 2


def test_bystander_outlives_any_number_of_deaths() -> None:
    """An item that was only queued behind what killed its worker is never charged for it."""
    job: Job[str] = Job(idempotent=False, attempts=1, in_flight=1, devices=1)
    for _ in range(50):
        assert job.take() == 0
        assert job.failed(0, errors.WorkerLost("killed", maybe_executed=False))
    assert job.take() == 0
    job.answered(0, "well", 0.1)
    assert job.pop() == (0, "well")


def test_an_item_whose_answer_was_lost_with_others_is_not_blamed() -> None:
    """It had ended: sent again for any number of deaths if it may run twice, and never if it may not."""
    lost = errors.WorkerLost("dead", maybe_executed=True, was_running=False)
    job: Job[str] = Job(idempotent=True, attempts=1, in_flight=1, devices=1)
    for _ in range(10):
        assert job.take() == 0
        assert job.failed(0, lost)
    job = Job(idempotent=False, attempts=3, in_flight=1, devices=1)
    assert job.take() == 0
    assert not job.failed(0, lost)


def test_an_item_whose_ranks_part_is_not_sent_again() -> None:
    """They would part again."""
    job: Job[str] = Job(idempotent=True, attempts=3, in_flight=1, devices=1)
    assert job.take() == 0
    assert not job.failed(0, errors.CollectiveAborted("rank 0 has ended the call", diverged=True))
    assert isinstance(job.failure(0).error, errors.CollectiveAborted)


def test_item_that_may_have_run_is_not_sent_again_unless_idempotent() -> None:
    """A method that is not idempotent runs at most once, and its error says that it may have run."""
    job: Job[str] = Job(idempotent=False, attempts=3, in_flight=1, devices=1)
    assert job.take() == 0
    assert not job.failed(0, errors.WorkerLost("killed", maybe_executed=True))


def test_last_error_remembers_that_an_earlier_attempt_may_have_run() -> None:
    """If the retry of an item that may have run cannot be sent, its error does not claim that nothing ran."""
    job: Job[str] = Job(idempotent=True, attempts=3, in_flight=1, devices=1)
    job.take()
    assert job.failed(0, errors.WorkerLost("killed", maybe_executed=True))
    assert job.take() == 0
    error = errors.DeviceUnavailable("all are stopped")
    job.unsendable(0, error)
    assert error.maybe_executed


def test_oldest_item_is_sent_again_first() -> None:
    """An item that holds up all others comes before any new item."""
    job: Job[str] = Job(idempotent=True, attempts=3, in_flight=4, devices=1)
    assert [job.take() for _ in range(4)] == [0, 1, 2, 3]
    for index in (2, 0, 3):
        job.failed(index, errors.WorkerLost("killed"))
    assert [job.take() for _ in range(3)] == [0, 2, 3]


@pytest.mark.parametrize(("took_s", "items"), [(0.001, MAX_DEPTH), (0.4, MAX_DEPTH), (60.0, 1)])
def test_depth_suits_how_long_items_take(took_s: float, items: int) -> None:
    """Short items are queued deeply, and one that takes a minute never waits behind another."""
    depth = Depth()
    for _ in range(100):
        depth.answered(took_s)
    assert depth.items == items


@pytest.mark.parametrize(("took_s", "items"), [(0.4, 256), (0.6, 128)])
def test_depth_stays_within_what_is_told(took_s: float, items: int) -> None:
    """There are always `depth` full batches, and more of them if they are quick."""
    depth = Depth(128, 256)
    for _ in range(1000):
        depth.answered(took_s)
    assert depth.items == items


@given(st.floats(0.001, 100))
def test_depth_settles_where_items_wait_no_longer_than_meant(service_s: float) -> None:
    """On a device that takes a fixed time for each item, at most one item more waits than fit into `QUEUE_S`."""
    depth = Depth()
    for _ in range(200):
        depth.answered(depth.items * service_s)
    assert 1 <= depth.items <= min(MAX_DEPTH, QUEUE_S / service_s + 1)
