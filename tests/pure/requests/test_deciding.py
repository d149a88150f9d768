"""Requests that the data decide: whether there is a result, how large it is, and what is undefined if there is none."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atomr_mp import errors
from atomr_mp.libraries.program import Program
from atomr_mp.protocol.libraries import blas
from atomr_mp_workers.libraries.program import preparation, running
from atomr_mp_workers.libraries.program.base import ProgramLibrary
from atomr_mp_workers.libraries.program.graphs import GraphTable
from atomr_mp_workers.requests.peers import Peer
from atomr_mp_workers.requests.request import Later, Next
from tests.actor_libraries import have
from tests.deciding import NAME, DecidingWorker, Invert, Measure, Nonzero, Normalize
from tests.pure.worker.test_dispatch import DEADLINE_S, outcomes


@pytest.fixture
def worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[DecidingWorker]:
    """A worker that has the library; a test may say where it runs."""
    worker = DecidingWorker(monkeypatch, getattr(request, "param", "loop"))
    yield worker
    assert not worker.dispatcher.busy
    assert not worker.dispatcher._ahead.total()
    worker.close()


@pytest.mark.parametrize("named", ["out", "out, zeros", "", "nothing of this name"])
def test_only_outputs_that_an_error_names_are_undefined(worker: DecidingWorker, named: str) -> None:
    """All outputs are, if it names none, or names an unknown one."""
    peer = worker.client(1)
    x, out, zeros = worker.array(peer, [4.0, 0.0, 2.0]), worker.array(peer, [0.0] * 3), worker.array(peer, [0.0])
    worker.library.names = named
    failed = worker.request(peer, Invert(x, out, zeros))
    readers = [worker.request(peer, blas.Nrm2(each), "blas") for each in (x, out, zeros)]
    worker.run()
    ended = worker.until_ended(peer, *readers)
    told = ended[failed]
    assert isinstance(told, errors.NumericalError)
    assert (told.library, told.batch, told.row, told.undefined) == ("deciding", -1, 1, named)
    assert told.message == "deciding.invert: x is 0"
    assert told.maybe_executed
    refused = [isinstance(ended[each], errors.GpuRefUndefined) for each in readers]
    assert refused == [False, True, named != "out"]


def test_outputs_that_are_well_again_are_read(worker: DecidingWorker) -> None:
    """An output that the error does not name was written: what was undefined there before is defined now."""
    peer = worker.client(1)
    x, out, zeros = worker.array(peer, [1.0, 0.0]), worker.array(peer, [0.0] * 2), worker.array(peer, [0.0])
    worker.library.names = ""
    worker.request(peer, Invert(worker.array(peer, [0.0]), worker.array(peer, [0.0]), zeros))
    worker.run()
    worker.library.names = "out"
    worker.request(peer, Invert(x, out, zeros))
    assert readable(worker, peer, zeros)
    assert not readable(worker, peer, out)
    worker.request(peer, Invert(worker.array(peer, [4.0, 2.0]), out, zeros))
    assert readable(worker, peer, out)


def readable(worker: DecidingWorker, peer: Peer, array: Any) -> bool:
    """Return whether a request may read an array."""
    worker.run()
    reader = worker.request(peer, blas.Nrm2(array), "blas")
    worker.run()
    return worker.until_ended(peer, reader)[reader] is None


def end(worker: DecidingWorker, peer: Peer, *ids: int) -> dict[int, errors.AtomrError | None]:
    """Let every part end until these requests are answered; return all outcomes."""
    worker.run()
    while not set(ids) <= set(outcomes(peer)):
        worker.stream.go_all()
        worker.take_back()
        worker.run()
    return outcomes(peer)


@pytest.mark.parametrize("worker", ["loop", "thread", "deferring"], indirect=True)
def test_the_data_decide_how_large_a_result_is(worker: DecidingWorker) -> None:
    """It is allocated when that is known, in memory of the caller's; each part sees what the one before it has done."""
    peer = worker.client(1)
    found = worker.request(peer, Nonzero(worker.array(peer, [0.0, 3.0, 0.0, 5.0])))
    nothing = worker.request(peer, Nonzero(worker.array(peer, [0.0])))
    assert end(worker, peer, found, nothing) == {found: None, nothing: None}
    assert sorted(worker.library.log) == ["count", "count", "find", "find", "take", "take"]
    assert worker.library.holders == [peer.session.holder] * 2
    assert [len(reply.leases) for reply in peer.replies] == [2, 2]
    assert worker.library.found == [[], []]


@pytest.mark.parametrize("worker", ["loop", "thread", "deferring"], indirect=True)
@pytest.mark.parametrize("left_out", [False, True])
def test_the_data_decide_whether_there_is_a_result(worker: DecidingWorker, *, left_out: bool) -> None:
    """A later part may raise; what comes after it is well, and so is what was read."""
    peer = worker.client(1)
    x: Any = worker.array(peer, [0.0, 0.0])
    out: Any = None if left_out else worker.array(peer, [1.0, 1.0])
    failed = worker.request(peer, Normalize(x, out))
    told = end(worker, peer, failed)[failed]
    assert isinstance(told, errors.NumericalError)
    assert told.message == "deciding.normalize: the largest element is 0"
    assert left_out or not readable(worker, peer, out)
    assert readable(worker, peer, x)
    x.array[...] = [2.0, 4.0]
    again = worker.request(peer, Normalize(x, out))
    assert end(worker, peer, again)[again] is None
    assert left_out or (out.array.tolist() == [0.5, 1.0] and readable(worker, peer, out))


@pytest.mark.parametrize("worker", ["deferring"], indirect=True)
def test_between_two_parts_others_run_unless_they_need_the_memory(worker: DecidingWorker) -> None:
    """What writes it waits for the last part, not for the first; what does not may run in between."""
    peer = worker.client(1)
    x, y = worker.array(peer, [1.0, 2.0]), worker.array(peer, [3.0])
    first = worker.request(peer, Normalize(x))
    writer = worker.request(peer, Normalize(y, x[:1]))
    other = worker.request(peer, Nonzero(y))
    worker.run()
    assert worker.library.log == ["largest", "count"]
    worker.stream.go()
    worker.take_back()
    assert worker.library.log == ["largest", "count", "divide", "largest"]
    assert end(worker, peer, first, writer, other) == {first: None, writer: None, other: None}


@pytest.mark.parametrize("worker", ["deferring"], indirect=True)
def test_a_request_between_two_parts_ends_with_its_worker(worker: DecidingWorker) -> None:
    """No request waits for a part that never comes."""
    peer = worker.client(1)
    waiting = worker.request(peer, Nonzero(worker.array(peer, [1.0])))
    worker.run()
    worker.dispatcher.fail_all(errors.ContextPoisoned("gone"))
    assert isinstance(outcomes(peer)[waiting], errors.ContextPoisoned)
    worker.stream.go()  # too late
    worker.dispatcher._ahead.clear()


@pytest.mark.parametrize("worker", ["deferring"], indirect=True)
@pytest.mark.parametrize("left_out", [False, True])
def test_others_go_on_while_work_is_done_elsewhere(worker: DecidingWorker, *, left_out: bool) -> None:
    """What uses its memory waits; that its deadline passes meanwhile ends it no more, for it has run."""
    peer = worker.client(1)
    x, y = worker.array(peer, [1.0, 3.0]), worker.array(peer, [1.0, 0.0])
    out = None if left_out else worker.array(peer, [0.0, 0.0])
    waiting = worker.request(peer, Measure(x, out))
    worker.run()
    worker.stream.go()
    worker.take_back()
    assert worker.library.begun.acquire(timeout=DEADLINE_S)
    behind, other = worker.request(peer, Measure(y, x)), worker.request(peer, Nonzero(y))
    assert set(end(worker, peer, other)) == {other}
    assert worker.dispatcher.busy
    for request in worker.dispatcher._parked:
        request.deadline_ns = 0
    worker.library.go.release(2)
    assert end(worker, peer, waiting, behind) == {other: None, waiting: None, behind: None}
    assert out is None or out.array.tolist() == [0.25, 0.75]
    assert x.array.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("worker", ["loop", "thread", "deferring"], indirect=True)
def test_what_fails_elsewhere_fails_alone(worker: DecidingWorker) -> None:
    """With its own error; all it has borrowed is free, and the next one is done."""
    peer = worker.client(1)
    x = worker.array(peer, [1.0, 3.0])
    worker.library.go.release(2)
    worker.library.fails = errors.OutOfMemory("too large", maybe_executed=False)
    failed = worker.request(peer, Measure(x))
    assert isinstance(end(worker, peer, failed)[failed], errors.OutOfMemory)
    worker.library.fails = None
    again = worker.request(peer, Measure(x))
    assert end(worker, peer, again)[again] is None


@pytest.mark.parametrize("worker", ["deferring"], indirect=True)
def test_a_request_whose_work_is_elsewhere_ends_with_its_worker(worker: DecidingWorker) -> None:
    """It is not waited for; that it comes to an end later harms nothing."""
    peer = worker.client(1)
    waiting = worker.request(peer, Measure(worker.array(peer, [1.0])))
    worker.run()
    worker.stream.go()
    worker.take_back()
    assert worker.library.begun.acquire(timeout=DEADLINE_S)
    worker.stream.go()
    worker.take_back()
    worker.dispatcher.fail_all(errors.ContextPoisoned("gone"))
    assert isinstance(outcomes(peer)[waiting], errors.ContextPoisoned)
    worker.library.go.release()
    worker.take_back()
    assert worker.library.log == []


@pytest.mark.parametrize("worker", ["loop", "deferring"], indirect=True)
def test_a_step_of_a_program_may_have_several_parts(worker: DecidingWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later steps come after its last one; what fails there names it."""
    monkeypatch.setattr(preparation, "STEPS", (NAME,))
    library = ProgramLibrary(worker.context, worker.library.stream)
    have(worker.libraries, "program", library)
    steps = type(worker.library)(worker.context, worker.library.stream)
    have(library._libraries, NAME, steps)
    peer = worker.client(1)
    x, out = worker.array(peer, [2.0, 4.0]), worker.array(peer, [0.0, 0.0])
    device: Any = SimpleNamespace(request=lambda library, request, _: worker.request(peer, request, library))
    with Program(device) as p:
        given = p.input("given", (2,), "float32")
        between = p._recording.request(NAME, Normalize(given), None)
        p._recording.request(NAME, Normalize(between, out), None)
    run: Any = p.run(given=x)
    assert end(worker, peer, run)[run] is None
    assert (steps.log, out.array.tolist()) == (["largest", "divide"] * 2, [0.5, 1.0])
    run = p.run(given=worker.array(peer, [0.0, 0.0]))
    told = end(worker, peer, run)[run]
    assert isinstance(told, errors.NumericalError)
    assert told.message == "step 0 (deciding.normalize): the largest element is 0"
    assert steps.log == ["largest", "divide"] * 3
    assert not readable(worker, peer, out)


def test_a_long_program_does_not_hold_up_the_loop(worker: DecidingWorker) -> None:
    """Its steps are done on the stream's thread, those of a short one at once."""
    stream = worker.device.make_stream("program", inline_bytes=2**14)
    have(worker.libraries, "program", ProgramLibrary(worker.context, stream))
    peer = worker.client(1)
    device: Any = SimpleNamespace(request=lambda library, request, _: worker.request(peer, request, library))
    threads: list[bool] = []
    for steps in (1, 200):
        with Program(device) as p:
            given = p.input("given", (2,), "float32")
            for _ in range(steps):
                p.blas.copy(given)
        run: Any = p.run(given=worker.array(peer, [2.0, 4.0]))
        worker.run()
        assert end(worker, peer, run)[run] is None
        threads.append(cast("Any", stream)._thread is not None)
    assert threads == [False, True]


def test_steps_are_put_on_a_stream_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a device works by itself others have the loop in between, but in a first run, which is measured."""
    monkeypatch.setattr(running, "TURN_NS", -1)
    done: list[int] = []
    step: Any = SimpleNamespace(name="step", actual=lambda slots: slots, run=lambda _slots: done.append(1))
    plan: Any = SimpleNamespace(steps=[step] * 3, returns=[], frames=[], clears=[], blocks=[], instructions=[*range(3)])
    result = running.started(plan, [])
    parts = 0
    while isinstance(result, Next):
        parts, result = parts + 1, result.enqueue()
    assert (parts, len(done), result) == (3, 3, None)
    assert running.started(plan, [], around=running.Surroundings(in_turns=False)) is None
    assert len(done) == 6


def test_a_run_that_fails_reads_what_its_steps_before_have_found(worker: DecidingWorker) -> None:
    """They may have something to give back; the first failure is reported."""
    read: list[int] = []

    def step(number: int, *, ends_with: BaseException | None = None, raises: BaseException | None = None) -> Any:
        def find() -> None:
            read.append(number)
            if ends_with is not None:
                raise ends_with

        def function(*_: object) -> Later:
            if raises is not None:
                raise raises
            return Later(find)

        return preparation.PreparedStep(f"deciding.{number}", function, Nonzero(cast("Any", None)), {}, [])

    def told(*steps: Any) -> str:
        read.clear()
        way: Any = [*range(len(steps))]
        plan = preparation.Prepared(list(steps), [], 0, frozenset(), [], 0, {}, GraphTable(), [], [], way, [], 0)
        later = running.started(plan, [])
        with pytest.raises(errors.AtomrError) as raised:
            later.read()
        return str(raised.value)

    del worker
    refused, wrong = errors.Unsupported("no"), errors.NumericalError("0")
    assert told(step(0), step(1), step(2, raises=refused)) == "step 2 (deciding.2): no"
    assert sorted(read) == [0, 1]
    assert told(step(0), step(1, ends_with=wrong), step(2, ends_with=errors.NumericalError("1"))).startswith("step 1")
    assert sorted(read) == [0, 1, 2]
