"""When the parts of a stream leave that its turn has yielded so far, by a clock and a thread that the test moves.

A generator may yield, and then wait for long inside of `next()`, so that its turn does not come back. Its thread may
also get no processor, and yield later than anybody looked.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.messages import data
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.kinds.stream import GO_ON, MadePart, StreamRequest
from atomr_mp_workers.requests.kinds.stream_life import StreamState
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.streams.open_streams import (
    LATE_LOOKS,
    LONGEST_LOOK_NS,
    LOOK_NS,
    READER_NS,
    RELAYED_NS,
    OpenStreams,
)

BEGIN_NS = 10**9
NEVER_NS = 2**62


class Session:
    """Of the client whose streams they are."""

    number, ended, place, is_away, is_relayed = 1, False, None, False, False


class Client:
    """A connection of it."""

    session = Session()


class Board:
    """Takes what is shown."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args: 0


class Worker:
    """The open streams, what they have sent, and a clock."""

    def __init__(self, *, is_asynchronous: bool = False, stall_ns: int = NEVER_NS) -> None:
        self.now_ns = BEGIN_NS
        self.sent: list[tuple[int, int, int]] = []
        """(stream, part, when)."""
        self.answers = SimpleNamespace(streams=set(), give_part=self._give)
        self.runner = SimpleNamespace(put=lambda _stream: None)
        self.streams = OpenStreams(
            cast("Envelope", SimpleNamespace(answers=self.answers)),
            cast("Any", Board()),
            {"A.tell": cast("Any", self.runner)},
            lambda: False,
            stall_ns,
            is_asynchronous=is_asynchronous,
        )

    def _give(self, stream: StreamRequest, number: int, _encoded: object, _nbytes: int) -> None:
        self.sent.append((stream.id, number, self.now_ns - BEGIN_NS))

    def open(self, number: int) -> StreamRequest:
        """Return a stream that has taken its first step."""
        method = SimpleNamespace(name="A.tell", watched=0, took=lambda _ns: None, resumes=None)
        call = data.StreamCall(number, "A.tell", NEVER_NS, 0, b"", 4000, NEVER_NS, NEVER_NS, NEVER_NS)
        stream = StreamRequest(cast("Any", Client()), call, cast("Method", method))
        self.answers.streams.add(stream)
        stream.place = number
        return stream

    def begin(self, stream: StreamRequest) -> None:
        """Give a stream to its thread."""
        self.streams.begin_turn(stream, self.now_ns)

    def end(self, stream: StreamRequest) -> None:
        """Take it back."""
        stream.next = GO_ON
        self.streams.rest(stream)

    def look(self) -> None:
        """Move the clock to when the loop is to look, and have it look."""
        due_ns = self.streams.due_ns
        assert due_ns is not None
        assert due_ns > self.now_ns
        self.now_ns = due_ns
        self.streams.look_at_turns(self.now_ns)

    def wait(self, ns: int) -> Iterator[None]:
        """Move the clock on, looking when the loop would; yield after each look."""
        until_ns = self.now_ns + ns
        while (due_ns := self.streams.due_ns) is not None and due_ns <= until_ns:
            self.now_ns = due_ns
            self.streams.look_at_turns(due_ns)
            yield
        self.now_ns = until_ns

    def has_sent(self, made: dict[tuple[int, int], int]) -> bool:
        """Return whether each part was sent that should have been by now."""
        sent = set(self.numbers)
        return all(part in sent or self.now_ns <= until_ns for part, until_ns in made.items())

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """Which parts were sent, each with its stream."""
        return [(stream, part) for stream, part, _ in self.sent]


def test_what_was_yielded_before_a_long_step_leaves_when_it_is_looked_at() -> None:
    """Two milliseconds after the turn has begun, and what it yields then when the turn is over."""
    worker = Worker()
    stream = worker.open(1)
    worker.begin(stream)
    for part in "ab":
        stream.keep(part)
    assert worker.sent == []
    worker.look()
    assert worker.sent == [(1, 0, LOOK_NS), (1, 1, LOOK_NS)]
    stream.keep("c")
    worker.end(stream)
    assert worker.numbers == [(1, 0), (1, 1), (1, 2)]


def test_what_a_thread_yields_after_it_was_looked_at_leaves_too() -> None:
    """It got no processor until then, and the step after that goes on for long."""
    worker = Worker()
    stream = worker.open(1)
    worker.begin(stream)
    worker.look()
    assert worker.sent == []
    stream.keep("a")
    worker.look()
    assert worker.sent == [(1, 0, 3 * LOOK_NS)]
    for _ in range(20):
        before_ns = worker.now_ns
        worker.look()
        assert worker.now_ns - before_ns <= LONGEST_LOOK_NS
    stream.keep("b")
    worker.look()
    assert worker.numbers == [(1, 0), (1, 1)]


def test_a_look_is_of_its_own_turn_only() -> None:
    """Nothing is looked at in a later turn for the sake of an earlier one; nor is kept what has ended."""
    worker = Worker()
    stream, other = worker.open(1), worker.open(2)
    worker.begin(stream)
    worker.look()
    worker.end(stream)
    worker.now_ns += LOOK_NS // 2
    worker.begin(stream)
    begun_ns = worker.now_ns
    stream.keep("a")
    while not worker.sent:
        worker.look()
    assert worker.now_ns == begun_ns + LOOK_NS
    worker.begin(other)
    worker.look()
    stream.next = None
    assert not worker.streams.rest(stream)
    kept = weakref.ref(stream)
    worker.answers.streams.discard(stream)
    del stream
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_what_lies_on_a_device_that_works_by_itself_waits_for_the_turn_s_end(is_asynchronous: bool) -> None:  # noqa: FBT001 - pytest's
    """The device may not have made it before."""
    worker = Worker(is_asynchronous=is_asynchronous)
    stream = worker.open(1)
    worker.begin(stream)
    stream.made.append(MadePart(0, (b"", [], [cast("Any", object())]), 1))
    worker.look()
    assert bool(worker.sent) != is_asynchronous
    worker.end(stream)
    assert worker.numbers == [(1, 0)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("part"), st.integers(1, 3)),
            st.tuples(st.sampled_from(["begin", "end"]), st.integers(1, 3)),
            st.tuples(st.just("wait"), st.integers(0, 40_000_000)),
        ),
        max_size=80,
    )
)
def test_each_part_leaves_in_order_once_and_soon(acts: list[tuple[str, int]]) -> None:
    """By the turn's end, or in as much time again as its turn had taken when it was yielded, and two milliseconds."""
    worker = Worker()
    streams = {number: worker.open(number) for number in (1, 2, 3)}
    begun: dict[int, int] = {}
    made: dict[tuple[int, int], int] = {}
    counts = dict.fromkeys(streams, 0)

    for what, number in acts:
        if what == "wait":
            for _ in worker.wait(number):
                assert worker.has_sent(made)
        elif what == "begin" and number not in begun:
            worker.now_ns += 1  # no two turns of a stream begin at a time
            begun[number] = worker.now_ns
            worker.begin(streams[number])
        elif what == "end" and number in begun:
            del begun[number]
            worker.end(streams[number])
            streams[number].started_ns = 0
        elif what == "part" and number in begun:
            streams[number].keep(counts[number])
            took_ns = worker.now_ns - begun[number]
            made[number, counts[number]] = worker.now_ns + min(2 * took_ns + 2 * LOOK_NS, LONGEST_LOOK_NS)
            counts[number] += 1
        assert worker.has_sent(made)
    for number in list(begun):
        worker.end(streams[number])
    for number, count in counts.items():
        assert [part for stream, part in worker.numbers if stream == number] == list(range(count))


STALL_NS = 3 * 10**9


def _unread(worker: Worker, *, relayed: bool = False) -> StreamRequest:
    """Return a stream whose reader takes nothing from now on."""
    stream = worker.open(1)
    stream.credit.sent, stream.state = 4000, StreamState.PARKED
    peer: Any = stream.peer
    peer.session = SimpleNamespace(number=1, ended=False, is_away=False, is_relayed=relayed)
    worker.streams.watch(stream)
    worker.now_ns = stream.parked_ns
    return stream


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("relayed", [False, True])
def test_a_reader_has_its_time_to_the_nanosecond_where_nobody_was_paused(*, relayed: bool, planned: bool) -> None:
    """By `stall_s`, or by two seconds where a planned end waits; and as long as a relay may stand still."""
    worker = Worker(stall_ns=STALL_NS)
    stream = _unread(worker, relayed=relayed)
    if planned:
        worker.streams.end_unread()
        worker.streams.end_late(worker.now_ns)
    while stream.closing is None:
        due_ns = worker.streams.due_ns
        assert due_ns is not None
        worker.now_ns = due_ns
        worker.streams.end_late(due_ns)
    assert worker.now_ns - stream.parked_ns == (READER_NS if planned else STALL_NS) + (RELAYED_NS if relayed else 0)


@pytest.mark.parametrize("pauses", range(1, LATE_LOOKS + 2))
def test_a_reader_is_not_judged_by_a_look_that_came_late(pauses: int) -> None:
    """What it has sent during a pause of this process lies in the socket, and is taken in before the next look."""
    worker = Worker(stall_ns=STALL_NS)
    stream = _unread(worker)
    for _ in range(pauses):
        due_ns = worker.streams.due_ns
        assert due_ns is not None
        worker.now_ns = due_ns + 10 * STALL_NS
        worker.streams.end_late(worker.now_ns)
        assert stream.closing is None
    worker.now_ns = worker.streams.due_ns or 0
    worker.streams.end_late(worker.now_ns)
    assert isinstance(stream.closing, errors.DeadlineExceeded)


def test_a_process_that_is_always_late_judges_in_the_end() -> None:
    """It has long steps of its own, and is not paused."""
    worker = Worker(stall_ns=STALL_NS)
    stream = _unread(worker)
    for _ in range(LATE_LOOKS + 2):
        worker.now_ns = (worker.streams.due_ns or 0) + STALL_NS
        worker.streams.end_late(worker.now_ns)
    assert stream.closing is not None
