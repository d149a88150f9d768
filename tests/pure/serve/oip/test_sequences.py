"""Sequences without a server: their records, their turns, and the end of each request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections import Counter, deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.serve.oip.sequences.asked import AskedSequence
from atomr_mp.serve.oip.sequences.life import (
    AdmittedAt,
    SequenceOutcome,
    SequenceRecord,
    SequenceRefusal,
    SequenceState,
    admit,
    outcome_of,
    settle,
)
from atomr_mp.serve.oip.sequences.table import KEY_BYTES, SequenceTable, key_of, shared_bytes
from atomr_mp.serve.oip.sequences.turns import SequenceTurn, SequenceTurns
from atomr_mp.serve.problems import ClientLeft, Problem

EPOCH: Final = bytes(range(16))
OTHER_EPOCH: Final = bytes(16)
SLOTS: Final = 4


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("epoch", [EPOCH, OTHER_EPOCH])
@pytest.mark.parametrize("now_ns", [99, 100])
@pytest.mark.parametrize("state", [None, *SequenceState])
def test_a_request_runs_where_its_state_is_or_not_at_all(
    state: SequenceState | None, now_ns: int, epoch: bytes, *, starts: bool
) -> None:
    """Only one that starts runs anywhere."""
    record = None if state is None else SequenceRecord(state, EPOCH, 1, 7, 100)
    found = admit(record, starts=starts, epoch=epoch, now_ns=now_ns)
    if starts:
        assert found == AdmittedAt(None)
    elif state is SequenceState.OPEN and epoch == EPOCH and now_ns < 100:
        assert found == AdmittedAt((1, 7))
    else:
        assert isinstance(found, SequenceRefusal)
        assert (found is SequenceRefusal.UNKNOWN) == (state is None or now_ns >= 100)


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_a_sequence_is_open_only_if_its_state_is_known(*, starts: bool, ends: bool) -> None:
    """What did not run changes nothing, but a start that did not run leaves none open."""
    found = {each: settle(each, starts=starts, ends=ends) for each in SequenceOutcome}
    assert found == {
        SequenceOutcome.ANSWERED: None if ends else SequenceState.OPEN,
        SequenceOutcome.NOT_RUN: None if starts else SequenceState.OPEN,
        SequenceOutcome.LOST: SequenceState.LOST,
        SequenceOutcome.DOUBTFUL: SequenceState.DOUBTFUL,
    }


@pytest.mark.parametrize(
    ("error", "sent", "ran", "outcome"),
    [
        (errors.ActorFailed("x", maybe_executed=True), True, False, SequenceOutcome.ANSWERED),
        (errors.Unsupported("x", maybe_executed=True), True, False, SequenceOutcome.ANSWERED),
        (errors.InvalidRequest("x", maybe_executed=False), True, True, SequenceOutcome.NOT_RUN),
        (errors.Overloaded("x", maybe_executed=False), False, False, SequenceOutcome.NOT_RUN),
        (errors.DeviceUnavailable("x", maybe_executed=False), True, True, SequenceOutcome.NOT_RUN),
        (errors.DeadlineExceeded("x", maybe_executed=False), True, True, SequenceOutcome.NOT_RUN),
        (errors.DeadlineExceeded("x", maybe_executed=True), True, True, SequenceOutcome.DOUBTFUL),
        (errors.Cancelled("x", maybe_executed=True), True, True, SequenceOutcome.DOUBTFUL),
        (errors.ConnectionLost("x", maybe_executed=True), True, True, SequenceOutcome.DOUBTFUL),
        (errors.WorkerLost("x", maybe_executed=False), True, True, SequenceOutcome.LOST),
        (errors.WorkerHung("x", maybe_executed=True), True, True, SequenceOutcome.LOST),
        (errors.ContextPoisoned("x", maybe_executed=True), True, True, SequenceOutcome.LOST),
        (errors.StaleGeneration("x", maybe_executed=False), False, False, SequenceOutcome.LOST),
        (errors.PoolLost("x"), True, True, SequenceOutcome.LOST),
        (errors.PoisonRequest("x", maybe_executed=True), True, True, SequenceOutcome.LOST),
        (errors.PoisonRequest("x", maybe_executed=False), False, False, SequenceOutcome.NOT_RUN),
        (ClientLeft(), True, True, SequenceOutcome.DOUBTFUL),
        (ClientLeft(), True, False, SequenceOutcome.NOT_RUN),
        (asyncio.CancelledError(), True, True, SequenceOutcome.DOUBTFUL),
        (asyncio.CancelledError(), False, False, SequenceOutcome.NOT_RUN),
        (Problem(404, "not_found", "x"), False, False, SequenceOutcome.NOT_RUN),
        (ValueError(), True, True, SequenceOutcome.DOUBTFUL),
    ],
)
def test_an_outcome_follows_from_what_certainly_holds(
    error: BaseException, outcome: SequenceOutcome, *, sent: bool, ran: bool
) -> None:
    """What may have run, and was not seen to end, is in doubt."""
    assert outcome_of(error, sent=sent, ran=ran) is outcome


@pytest.fixture
def memory() -> Iterator[int]:
    """Give the descriptor of memory for a small table."""
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, shared_bytes(SLOTS))
    yield descriptor
    os.close(descriptor)


def record(device: int = 0, until_ns: int = 100, state: SequenceState = SequenceState.OPEN) -> SequenceRecord:
    """Return a record of a pool."""
    return SequenceRecord(state, EPOCH, device, 3, until_ns)


def test_keys_tell_models_numbers_and_texts_apart() -> None:
    """No two sequences have one."""
    models, names = ["m", "m1", "1:m", "mn"], list[int | str]([1, 11, "1", "11", "n1", "", "é", "\ud800"])
    keys = {key_of(model, name) for model, name in itertools.product(models, names)}
    assert len(keys) == len(models) * len(names)
    assert {len(each) for each in keys} == {KEY_BYTES}


def test_a_full_table_has_room_once_a_sequence_has_ended(memory: int) -> None:
    """By itself, or since its time is over; not one whose request runs."""
    table = SequenceTable(SLOTS, memory)
    keys = [key_of("m", each) for each in range(SLOTS + 3)]
    for at, key in enumerate(keys[:SLOTS]):
        assert table.lock(key)
        assert table.write(key, record(until_ns=100 + at), 0)
        if at:
            table.unlock(key)
    assert table.lock(keys[SLOTS])
    assert not table.write(keys[SLOTS], record(), 99)
    assert not table.write(keys[SLOTS], record(), 100), "its request runs"
    assert table.write(keys[SLOTS], record(until_ns=1000), 101)
    assert table.read(keys[1]) is None
    assert table.read(keys[0]) == record(until_ns=100)
    assert not table.write(keys[SLOTS + 1], record(), 101)
    table.forget(keys[SLOTS])
    assert table.write(keys[SLOTS + 1], record(), 101)


def test_a_record_that_is_half_written_is_of_no_open_sequence(memory: int) -> None:
    """Whichever of its bytes is another one; and its slot is free again."""
    table, key = SequenceTable(SLOTS, memory), key_of("m", 1)
    assert table.write(key, record(), 0)
    begin = SLOTS * KEY_BYTES
    whole = os.pread(memory, (shared_bytes(SLOTS) - begin) // SLOTS, begin)
    for at in range(len(whole)):
        os.pwrite(memory, bytes([whole[at] ^ 0xFF]), begin + at)
        found = table.read(key)
        assert isinstance(admit(found, starts=False, epoch=EPOCH, now_ns=0), SequenceRefusal)
        os.pwrite(memory, whole, begin)
    assert table.read(key) == record()
    os.pwrite(memory, b"c", begin)
    for each in range(2, SLOTS + 2):
        assert table.write(key_of("m", each), record(), 0)


def test_a_table_tells_how_many_sequences_a_device_has(memory: int) -> None:
    """Of this pool, and as long as they are open."""
    table = SequenceTable(SLOTS, memory)
    table.write(key_of("m", 1), record(0), 0)
    table.write(key_of("m", 2), record(1, 200, SequenceState.RUNNING), 0)
    table.write(key_of("m", 3), record(1, 200, SequenceState.LOST), 0)
    table.write(key_of("m", 4), record(1, 200), 0)
    assert table.load(EPOCH, 50) == Counter({0: 1, 1: 2})
    assert table.load(EPOCH, 150) == Counter({1: 2})
    assert not table.load(OTHER_EPOCH, 50)
    table.forget(key_of("m", 4))
    assert table.load(EPOCH, 50) == Counter({0: 1, 1: 1})


class Asked(NamedTuple):
    """A request of the state machine's."""

    number: int
    sequence: AskedSequence
    task: asyncio.Task[Any]


class Turns(RuleBasedStateMachine):
    """Requests of some sequences come and end in any order, and each is compared with a plain model of its sequence."""

    @initialize()
    def begin(self) -> None:
        """Begin without sequences, with two devices and room for three sequences."""
        self.runner = asyncio.Runner()
        self.pool: Any = SimpleNamespace(
            devices=[SimpleNamespace(index=each, generation=1) for each in (0, 1)],
            epoch=EPOCH,
            devices_for=lambda _method: [
                SimpleNamespace(index=each, admitted=True, state=DeviceState.READY) for each in (0, 1)
            ],
        )
        source: Any = SimpleNamespace(pool=self.pool)
        self.table = SequenceTable(SLOTS - 1)
        self.turns = SequenceTurns(source, self.table)
        self.model: Any = SimpleNamespace(name="m", method="A.b", setting=SimpleNamespace(idle_s=1000.0))
        self.served: Any = SimpleNamespace(watching=lambda _left: contextlib.nullcontext())
        self.queues: dict[int | str, deque[Asked]] = {}
        """Requests that have no outcome, in the order in which they came."""
        self.running: dict[int, tuple[SequenceTurn, asyncio.Future[BaseException | None]]] = {}
        self.known: dict[int | str, tuple[int, int] | str] = {}
        """The place of each open sequence, or why it has to begin anew."""
        self.generation = 1
        self.numbers = itertools.count()
        self.refused: dict[int, BaseException] = {}
        self.behind: set[int] = set()
        """Requests that stood behind a start that was refused."""

    async def _one(self, number: int, asked: AskedSequence) -> None:
        try:
            async with self.turns.turn(self.served, self.model, asked, None) as turn:
                ends = asyncio.get_running_loop().create_future()
                self.running[number] = turn, ends
                error = await ends
                if error is not None:
                    raise error
                turn.outcome = SequenceOutcome.ANSWERED
        except (Problem, errors.AtomrError, ClientLeft) as error:
            self.refused[number] = error

    def _settle(self) -> None:
        """Let all tasks go as far as they can, and note those that were refused."""

        async def turn_over() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        running, records = set(self.running), self._records()
        self.runner.run(turn_over())
        for queue in list(self.queues.values()):
            while queue and queue[0].number in self.refused and queue[0].number not in self.running:
                asked = queue.popleft()
                self._check_refused(asked)
                if asked.sequence.starts:
                    behind = itertools.takewhile(lambda each: not each.sequence.starts, queue)
                    self.behind.update(each.number for each in behind)
        for number in self.running.keys() - running:
            begun = next(queue[0].sequence for queue in self.queues.values() if queue and queue[0].number == number)
            if begun.id not in records and len(records) >= SLOTS - 1:
                self._give_way()

    def _records(self) -> set[int | str]:
        """Return the sequences that hold places."""
        return self.known.keys() | {
            name for name, queue in self.queues.items() if queue and queue[0].number in self.running
        }

    def _lost(self) -> set[int | str]:
        """Return the sequences whose state is lost and that have no request."""
        return {
            name
            for name, known in self.known.items()
            if (isinstance(known, str) or known[1] < self.generation) and not self.queues.get(name)
        }

    def _give_way(self) -> None:
        """Forget all of those: there was no other room."""
        lost = self._lost()
        assert lost
        for name in lost:
            del self.known[name]

    def _check_refused(self, asked: Asked) -> None:
        error, known = self.refused[asked.number], self.known.get(asked.sequence.id, "unknown")
        assert isinstance(error, Problem)
        if error.code == "sequences_full":
            assert asked.sequence.starts
            assert len(self._records()) >= SLOTS - 1
            assert not self._lost()
            assert asked.sequence.id not in self.known
            return
        assert not asked.sequence.starts
        assert error.status == 400
        if asked.number in self.behind:
            assert "the request that was to begin it anew was refused" in error.message
            return
        if asked.sequence.ends:
            self.known.pop(asked.sequence.id, None)
        assert isinstance(known, str)
        assert (error.code == "sequence_unknown") == (known == "unknown")

    @rule(sequence=st.sampled_from([1, 2, "1", "two", 5]), starts=st.booleans(), ends=st.booleans())
    def ask(self, sequence: int | str, *, starts: bool, ends: bool) -> None:
        """A request comes."""
        number, asked = next(self.numbers), AskedSequence(sequence, starts, ends)
        task = self.runner.get_loop().create_task(self._one(number, asked))
        self.queues.setdefault(sequence, deque()).append(Asked(number, asked, task))
        self._settle()

    @rule()
    def replace_the_workers(self) -> None:
        """From now on calls run in the next incarnations."""
        self.generation += 1
        self.pool.devices = [SimpleNamespace(index=each, generation=self.generation) for each in (0, 1)]

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(), how=st.sampled_from(["answered", "answered", "answered", "failed", "unsent", "lost", "doubt"])
    )
    def end(self, data: st.DataObject, how: str) -> None:
        """A request that runs ends."""
        number = data.draw(st.sampled_from(sorted(self.running)))
        turn, ends = self.running.pop(number)
        asked = next(queue.popleft() for queue in self.queues.values() if queue and queue[0].number == number)
        is_stale = turn.at is not None and turn.at[1] not in (0, self.generation)
        error: BaseException | None = {
            "failed": errors.ActorFailed("x", maybe_executed=True),
            "unsent": errors.Overloaded("x", maybe_executed=False),
            "lost": errors.WorkerLost("x", maybe_executed=True),
            "doubt": errors.DeadlineExceeded("x", maybe_executed=True),
        }.get(how)
        if is_stale:
            how, error = "lost", errors.StaleGeneration("x", maybe_executed=False)
        device = 0 if turn.at is None else turn.at[0]
        if how != "unsent" and not is_stale:
            reply: Any = SimpleNamespace(device=device, generation=self.generation, maybe_executed=True)
            turn.reply = reply
        sequence, starts, over = asked.sequence
        if how in {"lost", "doubt"}:
            self.known[sequence] = how
        elif how == "unsent":
            if starts:
                self.known.pop(sequence, None)
        elif over:
            self.known.pop(sequence, None)
        else:
            self.known[sequence] = device, self.generation
        ends.set_result(error)
        self._settle()

    @invariant()
    def one_runs_at_a_time_in_the_order_of_coming(self) -> None:
        """The first of each queue, where the state is."""
        for queue in self.queues.values():
            for asked in list(queue)[1:]:
                assert asked.number not in self.running
            if queue:
                turn, _ = self.running[queue[0].number]
                known = self.known.get(queue[0].sequence.id)
                if queue[0].sequence.starts:
                    assert turn.at is None or not turn.at[1]
                else:
                    assert turn.at == known

    def teardown(self) -> None:
        """End what runs."""
        if hasattr(self, "runner"):
            for queue in self.queues.values():
                for each in queue:
                    each.task.cancel()
            self.runner.close()


TestTurns = Turns.TestCase


class Waiting:
    """A request's client, that may leave."""

    def __init__(self) -> None:
        self.left: asyncio.Future[None] | None = None
        """Resolved once the client has left; None between the watches."""

    @contextlib.contextmanager
    def watching(self, left: asyncio.Future[None]) -> Iterator[None]:
        """Keep the future."""
        self.left = left
        yield
        self.left = None


@pytest.mark.parametrize("how", ["cancelled", "left", "late"])
def test_a_turn_of_who_waits_no_more_goes_on_to_the_next(how: str) -> None:
    """Also if it comes in the moment in which its request gives up."""
    pool: Any = SimpleNamespace(epoch=EPOCH, devices=[], devices_for=lambda _method: [])
    source: Any = SimpleNamespace(pool=pool)
    turns = SequenceTurns(source, SequenceTable(SLOTS))
    model: Any = SimpleNamespace(name="m", method="A.b", setting=SimpleNamespace(idle_s=1000.0))
    ran: list[str] = []

    async def one(name: str, client: Any, go: asyncio.Event, deadline_s: float | None = None) -> None:
        async with turns.turn(client, model, AskedSequence(1, True, False), deadline_s) as turn:
            ran.append(name)
            await go.wait()
            turn.outcome = SequenceOutcome.ANSWERED

    async def use() -> BaseException | None:
        go, second_client = asyncio.Event(), Waiting()
        first = asyncio.create_task(one("first", Waiting(), go))
        await asyncio.sleep(0)
        second = asyncio.create_task(one("second", second_client, go, 0.01 if how == "late" else None))
        third = asyncio.create_task(one("third", Waiting(), go))
        await asyncio.sleep(0)
        if how == "cancelled":
            first.add_done_callback(lambda _: second.cancel())
        else:
            if how == "left":
                assert second_client.left is not None
                second_client.left.set_result(None)
            await asyncio.wait({second})
        go.set()
        await asyncio.wait_for(third, 30)
        return (await asyncio.gather(second, return_exceptions=True))[0]

    error = asyncio.run(use())
    assert ran == ["first", "third"]
    expected = {"cancelled": asyncio.CancelledError, "left": ClientLeft, "late": errors.DeadlineExceeded}
    assert isinstance(error, expected[how])
    assert not turns._queues
