from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, cycle, repeat
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp.protocol.board import (
    BOARD_BYTES,
    OFF_BOARD,
    STACK_AT,
    WORKED,
    BoardReader,
    BoardWriter,
    Counter,
    Entry,
    Gauge,
    PlaceKind,
    Watched,
    check,
    page,
)
from atomr_mp.protocol.board import reader as reading
from atomr_mp.protocol.board import writer as writing
from atomr_mp.protocol.libraries import requests_of
from atomr_mp.protocol.library_names import LIBRARIES
from atomr_mp_workers.libraries.base import ENGINE_WORD
from atomr_mp_workers.libraries.plans import LibraryPlan, LibraryPlans
from tests.stores import Stores

FEW: Final = 4
"""Slots of the boards here, so that they are soon used again."""


@pytest.fixture(autouse=True, scope="module")
def few_slots() -> Iterator[None]:
    """Make the ring short."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (page, reading, writing):
            patch.setattr(module, "SLOTS", FEW)
        yield


class Board(RuleBasedStateMachine):
    """A worker that starts and ends requests in any order, and a reader that looks after each step."""

    def __init__(self) -> None:
        super().__init__()
        memory = memoryview(bytearray(BOARD_BYTES))
        self.writer = BoardWriter(memory)
        self.reader = BoardReader(memory)
        self.now_ns = 1
        self.started: list[Entry] = []
        self.running: dict[int, int] = {}
        """Slot by place in `started`."""
        self.discarded = 0

    @rule(
        session=st.integers(0, 2**32 - 1),
        deadline_ns=st.integers(0, 2**63 - 1),
        passed_ns=st.integers(0, 10**9),
    )
    def start(self, session: int, deadline_ns: int, passed_ns: int) -> None:
        """Receive a request and start it; time may stand still in between."""
        self.now_ns += passed_ns
        request_id = len(self.started)
        self.writer.receive(1)
        slot = self.writer.start(session, request_id, self.now_ns, deadline_ns)
        assert (slot == OFF_BOARD) == (sum(taken != OFF_BOARD for taken in self.running.values()) == FEW)
        self.running[request_id] = slot
        self.started.append(Entry(session, request_id, self.now_ns, deadline_ns, 0))

    @precondition(lambda self: self.running)
    @rule(drawn=st.data())
    def end(self, drawn: st.DataObject) -> None:
        """End any of them."""
        request_id = drawn.draw(st.sampled_from(sorted(self.running)))
        self.now_ns += 1
        self.writer.end(self.running.pop(request_id), self.now_ns)
        self.started[request_id] = self.started[request_id]._replace(ended_ns=self.now_ns)

    @rule(by=st.integers(1, 5))
    def discard(self, by: int) -> None:
        """Receive some and drop them."""
        self.writer.receive(by)
        self.writer.count(Counter.DISCARDED, by)
        self.discarded += by

    @invariant()
    def entries_are_what_was_started(self) -> None:
        """Nothing is invented or mixed up, and what runs is there unless all slots were taken."""
        entries = self.reader.entries()
        assert set(entries) <= set(self.started)
        assert [entry.started_ns for entry in entries] == sorted(entry.started_ns for entry in entries)
        left = [(entry.started_ns, entry.session, entry.request_id, entry.ended_ns) for entry in entries]
        assert self.reader.left() == sorted(left)
        shown = {request_id for request_id, slot in self.running.items() if slot != OFF_BOARD}
        assert {entry.request_id for entry in self.reader.running()} == shown
        running, ended = self.reader.look()
        assert running == self.reader.running()
        assert not self.running or not ended or max(ended.values()) <= self.now_ns

    @invariant()
    def all_started_since_then_are_among_the_entries(self) -> None:
        """A request that is not listed and was sent later was certainly not started."""
        known_since_ns = self.reader.known_since_ns()
        entries = set(self.reader.entries())
        assert all(entry in entries for entry in self.started if entry.started_ns > known_since_ns)
        assert known_since_ns == 0 or len(self.started) > FEW

    @invariant()
    def counters_are_right(self) -> None:
        """Also for what found no slot."""
        assert self.reader.read(Counter.STARTED) == len(self.started)
        assert self.reader.read(Counter.COMPLETED) == len(self.started) - len(self.running)
        assert self.reader.queue_depth == len(self.running)


TestBoard = Board.TestCase


class Racing:
    """Stands for the same memory as a reader sees it: before each load, some more of the stores arrive."""

    def __init__(self, words: list[int], stores: list[tuple[int, int]], arrive: Iterator[int]) -> None:
        self.words = words.copy()
        self.stores = iter(stores)
        self.arrive = arrive

    def cast(self, _format: str) -> Racing:
        """Be the words themselves."""
        return self

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self.words)))]
        if count := next(self.arrive):
            self.advance(count)
        return self.words[at]

    def advance(self, count: int) -> None:
        """Let so many stores arrive."""
        for _, (at, value) in zip(range(count), self.stores, strict=False):
            self.words[at] = value


class Past:
    """The history of a worker, as its stores and as their meaning."""

    def __init__(self, steps: list[bool], choose: Callable[[list[int]], int]) -> None:
        """Start a request where a step says so, else end the one that `choose` picks from those that run."""
        memory = Stores.zeros(BOARD_BYTES // 8)
        writer = BoardWriter(cast("memoryview", memory))
        self.prepared = memory.words.copy()
        """The words before the first request."""
        memory.stores.clear()
        self.stores = memory.stores
        self.requests: dict[int, Entry] = {}
        """By request id, as they were in the end."""
        self.stores_until_started: dict[int, int] = {}
        running: dict[int, int] = {}
        for now_ns, starts in enumerate(steps, start=1):
            if starts or not running:
                request_id = 1000 + now_ns
                running[request_id] = writer.start(7 * now_ns, request_id, now_ns, 100 * now_ns, 3 * now_ns)
                self.requests[request_id] = Entry(7 * now_ns, request_id, now_ns, 100 * now_ns, 0, 3 * now_ns)
                self.stores_until_started[request_id] = len(self.stores)
            else:
                request_id = choose(sorted(running))
                writer.end(running.pop(request_id), now_ns)
                self.requests[request_id] = self.requests[request_id]._replace(ended_ns=now_ns)

    def check_read(self, ahead: int, arrive: Iterator[int]) -> None:
        """Read while the stores arrive, `ahead` of them before; check that no entry is torn and none missed."""
        racing = Racing(self.prepared, self.stores, arrive)
        racing.advance(ahead)
        reader = BoardReader(cast("memoryview", racing))
        entries = reader.entries()
        known_since_ns = reader.known_since_ns()
        for entry in entries:
            request = self.requests[entry.request_id]
            assert entry in {request, request._replace(ended_ns=0)}, "torn"
        seen = {entry.request_id for entry in entries}
        for request_id, stores in self.stores_until_started.items():
            if stores <= ahead and self.requests[request_id].started_ns > known_since_ns:
                assert request_id in seen, "missed"


def test_a_writer_that_overtakes_the_reader_anywhere_tears_no_entry() -> None:
    """All ways in which one pause of the reader can fall into a ring that is being used again."""
    past = Past([True] * FEW + [False] * FEW + [True] * FEW, min)
    loads = FEW * 8 + 1
    for ahead in range(len(past.stores)):
        for load in range(loads):
            for jump in range(1, 16):
                past.check_read(ahead, chain(repeat(0, load), [jump], repeat(0)))


@given(
    steps=st.lists(st.booleans(), min_size=1, max_size=40),
    arrive=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    drawn=st.data(),
)
def test_no_entry_is_torn_and_none_is_missed_however_reads_and_writes_interleave(
    steps: list[bool], arrive: list[int], drawn: st.DataObject
) -> None:
    """A reader beside a running worker sees whole entries, and knows since when it sees all of them."""
    past = Past(steps, lambda running: drawn.draw(st.sampled_from(running)))
    past.check_read(drawn.draw(st.integers(0, len(past.stores)), label="ahead"), cycle(arrive))


def test_an_entry_that_death_left_half_written_is_left_out() -> None:
    """The others can be read; the half-written request had not been started."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer = BoardWriter(memory)
    writer.start(1, 10, 100, 1000)
    slot = writer.start(1, 11, 200, 1000)
    memory.cast("Q")[page.FIRST_SLOT + page.SLOT_WORDS * slot] += 1
    reader = BoardReader(memory)
    assert [entry.request_id for entry in reader.entries()] == [10]


def test_a_fresh_board_says_nothing_and_shows_its_mark() -> None:
    """A board is empty before its worker has written anything to it."""
    memory = memoryview(bytearray(BOARD_BYTES))
    page.prepare(memory)
    reader = BoardReader(memory)
    assert reader.entries() == []
    assert reader.known_since_ns() == 0
    assert reader.queue_depth == 0
    BoardWriter(memory)
    assert memory.cast("Q")[0] == page.MAGIC
    assert reader.entries() == []


@given(
    st.binary(
        min_size=8 * (page.FIRST_SLOT + page.SLOT_WORDS * FEW),
        max_size=8 * (page.FIRST_SLOT + page.SLOT_WORDS * FEW),
    )
)
def test_any_memory_can_be_read(content: bytes) -> None:
    """A worker whose code writes where it should not harms itself only."""
    memory = memoryview(bytearray(content.ljust(BOARD_BYTES, b"\0")))
    reader = BoardReader(memory)
    assert len(reader.entries()) <= FEW
    assert len(reader.look()[0]) <= FEW
    assert reader.stack() == ""
    assert reader.queue_depth >= 0
    assert reader.known_since_ns() >= 0


def test_the_figures_of_batches_are_kept_by_method() -> None:
    """They lie beside the ring and leave it alone. Methods for which there is no room are passed over."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer, reader = BoardWriter(memory), BoardReader(memory)
    writer.start(1, 2, 3, 4)
    for size in (1, 2, 3, 4, 5, 1024):
        writer.batch(page.BATCHED - 1, [size], [size])
    writer.batch(page.BATCHED - 1, [2**14 - 1, 2**14, 2**60], [1, 2, 4])
    writer.batch(page.BATCHED, [1], [1])
    assert reader.batches(page.BATCHED - 1) == page.Batches(
        7,
        1046,
        1 + 4 + 9 + 16 + 25 + 1024**2 + 2**14 - 1 + 2 * 2**14 + 4 * 2**60,
        2**60,
        [1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 1],
        [1040, 2, *[0] * 21, 4],
    )
    assert reader.batches(0) == page.Batches(0, 0, 0, 0, [0] * 11, [0] * 24)
    assert reader.batches(page.BATCHED) is None
    assert reader.entries() == [Entry(1, 2, 3, 4, 0)]


def test_the_figures_of_plans_are_kept_by_library() -> None:
    """Where its plans are counted; every library has room, and one that had none would be passed over."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer, reader = BoardWriter(memory), BoardReader(memory)
    plans = LibraryPlans(kept=1, figures=writer.plans(page.PLANNED - 1))
    failed = LibraryPlan()
    failed.fail(ValueError())
    for key, plan in (("a", failed), ("a", LibraryPlan()), ("b", LibraryPlan())):
        assert plans.find(key) is None
        plans.keep(key, plan)
        assert check.defect(memory.cast("Q"), 0) == ""
    assert plans.find("b") is not None
    writer.plans(page.PLANNED - 1)[ENGINE_WORD] = 1
    assert check.defect(memory.cast("Q"), 0) == ""
    assert reader.plans(page.PLANNED - 1) == page.PlanCounts(misses=3, hits=1, dropped=1, kept=1, engine=1)
    writer.plans(1)[ENGINE_WORD] = 99
    assert "library 1" in check.defect(memory.cast("Q"), 0)
    writer.plans(1)[ENGINE_WORD] = 0
    assert reader.plans(0) == page.PlanCounts()
    assert len(LIBRARIES) <= page.PLANNED
    writer.plans(page.PLANNED)[0] += 1
    assert reader.plans(page.PLANNED) is None
    assert bytes(memory[STACK_AT:]) == bytes(page.STACK_BYTES)


def test_the_figures_of_work_are_kept_by_name() -> None:
    """Each method of each library has room, and one that had none would be passed over."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer, reader = BoardWriter(memory), BoardReader(memory)
    names = [f"{library}.{name}" for library in LIBRARIES for name in requests_of(library)]
    words = {name: writer.work(name) for name in names}
    assert reader.work() == {}
    for number, counts in enumerate(words.values(), 1):
        for place in (1, 2, 3, 0):
            counts[place] = 10 * number + place
            assert check.defect(memory.cast("Q"), 0) == ""
    assert reader.work() == {
        name: page.WorkCounts(10 * number, 10 * number + 1, 10 * number + 2, 10 * number + 3)
        for number, name in enumerate(names, 1)
    }
    for further in ("x" * 8 * page.NAME_WORDS + "y", *(f"more.m{each}" for each in range(page.WORKED))):
        writer.work(further)[0] = 1
    assert len(reader.work()) == page.WORKED
    assert bytes(memory[STACK_AT:]) == bytes(page.STACK_BYTES)


@given(st.binary(min_size=8 * page.WORK_WORDS, max_size=8 * page.WORK_WORDS))
def test_any_figures_of_work_can_be_read(content: bytes) -> None:
    """Figures under a name that no method has are left out, and their board is not believed."""
    memory = memoryview(bytearray(BOARD_BYTES))
    BoardWriter(memory)
    memory[8 * page.FIRST_WORK : 8 * (page.FIRST_WORK + page.WORK_WORDS)] = content
    found, defect = BoardReader(memory).work(), check.defect(memory.cast("Q"), 0)
    assert all(name.isascii() and name.count(".") == 1 for name in found)
    assert found or defect or not any(content[8 * page.NAME_WORDS : 8 * page.NAME_WORDS + 8])


@given(st.lists(st.integers(0, 2**57), max_size=50))
def test_latencies_are_counted_by_powers_of_two(latencies: list[int]) -> None:
    """Their sum is kept too. A request that was never received as a call is left out."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer, reader = BoardWriter(memory), BoardReader(memory)
    for latency_ns in latencies:
        writer.end(writer.start(1, 2, 3, 4), 7 + latency_ns, 7)
    writer.end(writer.start(1, 2, 3, 4), 5)
    counted = reader.latencies()
    assert sum(counted) == len(latencies)
    for bucket, count in enumerate(counted):
        assert count == sum(2**bucket // 2 <= latency_ns < 2**bucket for latency_ns in latencies)
    assert reader.read(Counter.LATENCY_NS) == sum(latencies)


def test_gauges_show_what_was_written_last() -> None:
    """They fall as they rise."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer, reader = BoardWriter(memory), BoardReader(memory)
    for value in (5, 3):
        writer.show(Gauge.LEASES, value)
        assert reader.read(Gauge.LEASES) == value


@given(
    st.builds(
        Watched,
        limit_ns=st.integers(0, 2**28 - 1).map(lambda limit_ms: limit_ms * 1_000_000),
        from_deadline=st.booleans(),
        kind=st.sampled_from(PlaceKind),
        number=st.integers(0, 2**12 - 1),
        waits=st.booleans(),
        width=st.integers(1, 2**8),
        method=st.integers(0, 1023),
    )
)
def test_how_a_request_is_watched_survives_its_word(watched: Watched) -> None:
    """The limit is kept in milliseconds; the last end in a place is found."""
    assert Watched.unpack(watched.pack()) == watched
    memory = memoryview(bytearray(BOARD_BYTES))
    writer, reader = BoardWriter(memory), BoardReader(memory)
    first, other = (writer.start(1, number, 5, 50, watched.pack()) for number in (1, 2))
    writer.end(first, 9)
    assert reader.look()[1] == {watched.place: 9}
    writer.watch(other, 0)
    assert reader.look()[0] == [Entry(1, 2, 5, 50, 0)]


@given(st.integers(2**28 - 1, 2**40 - 1))
def test_a_limit_of_days_is_kept_as_well_as_anybody_can_tell(limit_ms: int) -> None:
    """It is not shortened, and the other facts of its word stay."""
    watched = Watched(limit_ms * 1_000_000, number=2**12 - 1, width=2**8, method=1023)
    kept = Watched.unpack(watched.pack())
    assert kept._replace(limit_ns=0) == watched._replace(limit_ns=0)
    assert limit_ms <= kept.limit_ns // 1_000_000 <= limit_ms * (1 + 2**-19)


def test_a_request_tells_its_method() -> None:
    """Of a library, of an actor, or none that has a number; whatever a worker has written there."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer, reader = BoardWriter(memory), BoardReader(memory)
    for name in ("blas.gemm", "dnn.conv"):
        writer.work(name)
    assert writer.worked == 2

    def told(number: int) -> str:
        entry = Entry(1, 1, 5, 50, 0, Watched(method=number).pack())
        return reader.method_of(entry, ["A.first", "A.second"])

    names = {1: "blas.gemm", 2: "dnn.conv", WORKED + 1: "A.first", WORKED + 2: "A.second"}
    assert {number: told(number) for number in range(2000) if told(number)} == names


@given(st.integers(0, 2**64 - 1))
def test_any_word_says_something(word: int) -> None:
    """A worker whose code writes where it should not does not end its supervisor."""
    assert Watched.unpack(word).kind in PlaceKind


def test_stacks_are_text_behind_the_words() -> None:
    """Up to a zero byte; forgotten when they are asked for anew."""
    memory = memoryview(bytearray(BOARD_BYTES))
    reader = BoardReader(memory)
    memory[STACK_AT : STACK_AT + 5] = b"File\xff"
    assert reader.stack() == "File\ufffd"
    memory[STACK_AT:] = b"x" * page.STACK_BYTES
    assert reader.stack() == "x" * page.STACK_BYTES
    reader.clear_stack()
    assert reader.stack() == ""
    BoardWriter(memory).answer(7)
    assert reader.answered_ns == 7


def test_the_board_says_what_runs_alone() -> None:
    """It also says that nothing does."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer, reader = BoardWriter(memory), BoardReader(memory)
    assert reader.alone() is None
    writer.alone(3, 2**60)
    assert reader.alone() == (3, 2**60)
    writer.alone(0, 0)
    assert reader.alone() is None
