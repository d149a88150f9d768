"""Which programs a client names by their digest: none that its worker may not know, however requests overtake."""

from __future__ import annotations

import gc
from collections import deque
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from atomr_mp import errors
from atomr_mp.client.fingerprint import RUN, fingerprint
from atomr_mp.client.programs import KnownPrograms, ProgramRun, say_whole
from atomr_mp.client.reply import Reply
from atomr_mp.protocol import values
from atomr_mp.protocol.libraries.program import KEPT_BYTES, RunProgram, digest

PLACES: Final = 2
LANES: Final = 3
PROGRAMS: Final = 5


def run_of(number: int) -> RunProgram:
    """Return a run as a program makes it."""
    definition = bytes([number]) * 9
    return RunProgram(definition, [], [], [], digest(definition))


def test_a_run_has_one_fingerprint_however_its_program_is_named() -> None:
    """Whole or by digest, from any place, as it was called and as it was sent."""
    whole = run_of(1)
    sent = RunProgram(whole.program, [], [], [], b"", 1)
    known = RunProgram(b"", [], [], [], whole.digest, 0)
    decoded = [msgspec.msgpack.decode(msgspec.msgpack.encode(each)) for each in (sent, known)]
    assert len({fingerprint(RUN, each) for each in (whole, sent, known, *decoded)}) == 1
    assert fingerprint(RUN, run_of(2)) != fingerprint(RUN, whole)
    assert len({fingerprint(RUN, each) for each in ([], ["x"], ["x", 1, 2, 3, 4, 5])}) == 3


class Sent:
    """A request under way."""

    def __init__(self, request: RunProgram, run: ProgramRun | None) -> None:
        self.request = request
        self.run = run


class Ways(RuleBasedStateMachine):
    """A worker with two places, three connections to it, and five programs; each connection is in order, no more."""

    def __init__(self) -> None:
        super().__init__()
        self.programs = KnownPrograms(PLACES)
        self.generation = 1
        self.lanes: list[deque[Sent]] = [deque() for _ in range(LANES)]
        self.worker: dict[int, bytes] = {}
        self.by_digest = 0

    @rule(number=st.integers(0, PROGRAMS - 1), lane=st.integers(0, LANES - 1))
    def send(self, number: int, lane: int) -> None:
        """A run is sent on a connection."""
        self.lanes[lane].append(Sent(*self.programs.shortened(run_of(number), self.generation)))

    @rule(lane=st.integers(0, LANES - 1), fails=st.booleans())
    def arrive(self, lane: int, fails: bool) -> None:  # noqa: FBT001 - drawn
        """The oldest request of a connection is done, and answered."""
        if not self.lanes[lane]:
            return
        sent = self.lanes[lane].popleft()
        request = sent.request
        if request.digest:
            self.by_digest += 1
            assert self.worker.get(request.place) == request.digest, "the worker does not know it"
            return
        if request.place >= 0:
            self.worker[request.place] = digest(request.program)
        if sent.run is not None and sent.run.tells:
            error = errors.OutOfMemory("none") if fails else None
            sent.run.answered(cast("Reply", SimpleNamespace(error=error, generation=self.generation)))

    @precondition(lambda self: not any(self.lanes))
    @rule()
    def repeat(self) -> None:
        """A program that was sent alone is named by its digest from then on."""
        for _ in range(2):
            self.send(0, 0)
            self.arrive(0, False)
        self.send(0, 1)
        assert self.lanes[1][0].request.digest

    @precondition(lambda self: not any(self.lanes))
    @rule()
    def end(self) -> None:
        """The worker ends; the next one knows nothing."""
        self.generation += 1
        self.worker.clear()


TestWays = Ways.TestCase


def test_a_request_says_the_whole_once_its_worker_does_not_know_it() -> None:
    """The next request tells it again, with all else as it was."""
    programs = KnownPrograms()
    given = RunProgram(b"definition", [1.5, "x"], [], [3], digest(b"definition"))
    told, run = programs.shortened(given, 7)
    assert told == msgspec.structs.replace(given, digest=b"", place=0)
    assert run is not None
    assert run.tells
    run.answered(cast("Reply", SimpleNamespace(error=None, generation=7)))
    short, run = programs.shortened(given, 7)
    assert short == msgspec.structs.replace(given, program=b"", place=0)
    reply = Reply(cast("Any", None), 1, "program.run", 0, values.encode(short)[0], kept=("other", run))
    assert say_whole(reply)
    assert msgspec.msgpack.decode(reply.body, type=RunProgram) == msgspec.structs.replace(given, digest=b"", place=-1)
    assert reply.kept == ("other",)
    assert not say_whole(reply)
    assert programs.shortened(given, 7)[0] == told


def test_what_is_not_kept_is_sent_whole() -> None:
    """Too long a program; one without a place, while requests refer to all; one of another incarnation."""
    programs = KnownPrograms(places=1)
    long = bytes(KEPT_BYTES + 1)
    for _ in range(2):
        sent, run = programs.shortened(RunProgram(long, [], [], [], digest(long)), 1)
        assert (sent.program, sent.digest, sent.place, run) == (long, b"", -1, None)
    first, holds = programs.shortened(run_of(1), 1)
    second, run = programs.shortened(run_of(2), 1)
    assert (first.place, second.place, run) == (0, -1, None)
    del holds
    gc.collect()
    third, run = programs.shortened(run_of(2), 1)
    assert third.place == 0
    assert run is not None
    run.answered(cast("Reply", SimpleNamespace(error=None, generation=2)))  # it was sent to the next incarnation
    assert not programs.shortened(run_of(2), 1)[0].digest
