"""`maybe_executed` is False only if no part of the request can have run, wherever its life has led it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.client.reply import Reply, StreamReply
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.flow.stream_credit import ReaderCredit
from atomr_mp.protocol.messages import data, devices, session
from atomr_mp.protocol.messages.devices import DeviceState, Resumes
from tests.pure.client.test_replay import FakeClient, FakeConnection, FakeLane, info

ENDS = ("lost", "closed", "cancelled", "expired", "forked", "refused")
STEPS = ("part", "start", "hand over", "kill", "cut", "mark")


@dataclass
class Life:
    """One request, its workers, one after the other, and what they have done of it."""

    streams: bool
    late: bool
    """Whether the report of a worker's end is faster than its connection's end."""
    device: devices.DeviceInfo
    generation: int = 1
    started: bool = False
    """Whether the present worker has started it."""
    ran: bool = False
    """Whether any worker may have, as far as anybody can know at the end."""

    def __post_init__(self) -> None:
        """Send it."""
        self.dead: set[int] = set()
        """Workers whose end was reported."""
        self.lane = FakeLane(FakeClient(), [self.device])
        self.lane.late = self.late
        self.lane.take(session.DeviceChanged(self.device))
        deadline_ns = time.monotonic_ns() + 10**12
        self.reply: Reply
        if self.streams:
            stream = self.reply = StreamReply(self.lane, 1, "A.again", deadline_ns, b"", until_ns=deadline_ns)
            stream.credit, stream.resumes, stream.between_ns = ReaderCredit(100, 2**20), Resumes.START, 10**12
            self.lane.submit_stream(stream, 0, (1,))
        else:
            self.reply = self.lane.submit(1, 0, "A.again", (1,), deadline_ns)

    @property
    def worker(self) -> FakeConnection | None:
        """The present worker's end of its connection, None while there is no worker."""
        made = self.lane.made.get(("0", self.generation))
        return None if made is None or made.closed or self.generation in self.dead else made

    def over(self) -> bool:
        """Whether the request has its outcome."""
        return self.reply.is_over

    @property
    def is_there(self) -> bool:
        """Whether the present worker has it."""
        worker = self.worker
        return worker is not None and 1 in worker.calls and 1 not in worker.cancelled

    def next(self) -> None:
        """Let the next worker come."""
        self.generation, self.started = self.generation + 1, False
        self.lane.take(session.DeviceChanged(info(0, self.generation)))

    def step(self, step: str) -> None:
        """Let something happen that does not end it, if it can."""
        if self.reply.is_over:
            return
        generation, worker = self.generation, self.worker
        if worker is None:
            self.next()
            return
        match step:
            case "start" if self.is_there:
                self.started = True
            case "part" if self.is_there and isinstance(self.reply, StreamReply):
                self.started = True
                part = data.Part(1, self.reply.credit.received, 0, b"\x01", 1)
                worker.answers.append(data.FROM_WORKER.encode(data.Parts(b"", [part])))
                self.lane.receive(0)
            case "hand over" if not self.started or self.streams:
                self.ran |= self.started
                self.lane.take(session.DeviceChanged(info(0, generation, DeviceState.DRAINING)))
                self.ended(planned=True)
            case "kill":
                self.ran |= self.started
                self.lane.take(session.DeviceChanged(info(0, generation, DeviceState.LOST)))
                self.ended(planned=False)
            case "mark":
                self.mark()
            case "cut" if self.is_there:
                self.ran |= self.started
                worker.ended = True
                self.lane.receive(0)

    def mark(self) -> None:
        """The ends of the connections to workers that have ended arrive."""
        for connection in self.lane.made.values():
            connection.ended = connection.ended or connection.generation in self.dead
        self.lane.receive(0)

    def ended(self, *, planned: bool) -> None:
        """The supervisor reports that the present worker has ended."""
        started = [1] if self.started else []
        self.dead.add(self.generation)
        lost = ErrorInfo.of(errors.WorkerLost("gone"))
        self.lane.take(session.IncarnationEnded(0, self.generation, planned, lost, started, 0, started, []))

    def end(self, how: str) -> None:
        """End it in one of the ways in which no worker answers it."""
        self.ran |= self.started or (self.is_there and how != "refused")  # where the board tells
        lane, reply = self.lane, self.reply
        match how:
            case "lost":
                lane.take(errors.PoolLost("killed"))
            case "closed" if isinstance(reply, StreamReply):
                lane.close_stream(reply)
            case "expired":
                reply.deadline_ns = 0
                lane._expire(reply)
            case "forked":
                lane.forget_in_child()
            case "refused":
                lane.take(session.DeviceChanged(info(0, self.generation, DeviceState.STOPPED)))
                self.ended(planned=False)
            case _:
                lane.cancel(reply)
        if not reply.is_over:
            lane.take(errors.PoolLost("killed"))


@given(
    streams=st.booleans(),
    late=st.booleans(),
    steps=st.lists(st.sampled_from(STEPS), max_size=6),
    how=st.sampled_from(ENDS),
)
def test_no_walk_ends_in_a_denial_of_what_has_run(*, streams: bool, late: bool, steps: list[str], how: str) -> None:
    """Handed over, put back, lost, sent again; then ended as it waits, or where it runs."""
    life = Life(streams, late, info(0, 1))
    for step in steps:
        life.step(step)
    life.end(how)
    error: Any = life.reply.error
    assert life.reply.is_over
    assert isinstance(error, errors.RequestError)
    assert error.maybe_executed or not life.ran, f"{error!r}, though it has run"
    received = life.reply.credit.received if isinstance(life.reply, StreamReply) else 0
    assert error.maybe_executed or not received


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("how", ENDS)
def test_what_no_worker_has_had_is_told_as_not_run(how: str, *, streams: bool) -> None:
    """So that it can be sent again: not everything is in doubt."""
    life = Life(streams, False, info(0, 1, DeviceState.STARTING))
    assert not life.is_there
    life.end(how)
    error: Any = life.reply.error
    assert not error.maybe_executed


@given(between=st.lists(st.sampled_from(["next", "again", "mark of another", "lost"]), max_size=4), comes=st.booleans())
def test_an_answer_that_comes_after_the_report_of_its_worker_s_end_counts(*, between: list[str], comes: bool) -> None:
    """On a connection that is carried: until that has ended, whatever is heard meanwhile; then the request is lost."""
    life = Life(False, True, info(0, 1))
    worker = life.worker
    assert worker is not None
    life.started = True
    lost = ErrorInfo.of(errors.WorkerLost("gone"))
    life.dead.add(1)
    life.lane.take(session.IncarnationEnded(0, 1, False, lost, [1], 0, [], []))
    assert not life.over()
    for step in between:
        if life.over():
            break
        match step:
            case "next":
                life.next()
            case "again":
                life.lane.take(session.IncarnationEnded(0, 1, False, lost, [1], 0, [], []))
            case "lost":
                life.lane.take(session.DeviceChanged(info(0, life.generation, DeviceState.LOST)))
            case _:
                life.lane.receive(0)
    former = life.lane._links[0].former
    if comes and not worker.closed and (life.generation < 3 or former is None or former.generation == 1):
        worker.answer(1)
        life.lane.receive(0)
        assert life.over()
        assert life.reply.error is None
    life.mark()
    assert life.over() or life.reply.generation != 1 or life.lane._links[0].parked or life.lane._links[0].held
    assert not life.lane._links[0].awaited
