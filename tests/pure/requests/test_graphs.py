from __future__ import annotations

import contextvars
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol.board import GraphCounts
from atomr_mp.protocol.libraries import sparse
from atomr_mp.protocol.libraries.rng import Choice
from atomr_mp.protocol.messages import data
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.libraries.program.base import ProgramLibrary
from atomr_mp_workers.libraries.program.graphs import ATTEMPTS, COPIED_BYTES, KEPT, SEEN, GraphTable, Refusal, Way
from atomr_mp_workers.libraries.program.running import judged
from atomr_mp_workers.libraries.rng.host import Implementation as HostRng
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.request import Later, Request, TaskCell, in_task
from tests.actor_libraries import libraries_on
from tests.cases.sparse_cases import Named, of_mask, pattern_of

N: Final = 8


class Recorded:
    """A graph, as far as decisions go."""

    unread = False


class TestDecisions:
    """Pure: a table of keys."""

    def test_the_second_run_is_recorded_and_later_ones_launched(self) -> None:
        """With each key for itself."""
        table: GraphTable[Recorded] = GraphTable()
        for key in ("a", "b"):
            assert table.decide(key) is Way.FIRST
            table.measured(key, 7)
            assert table.decide(key) is Way.CAPTURE
            assert table.needs(key) == 7
            assert table.keep(key, Recorded()) == 0
            assert table.decide(key) is Way.REPLAY
        assert table.decide("a") is Way.REPLAY

    def test_the_graph_that_was_not_used_for_longest_makes_room(self) -> None:
        """But none whose verdict is unread: the device may still write it."""
        table: GraphTable[Recorded] = GraphTable()
        graphs = {key: Recorded() for key in range(KEPT + 2)}
        for key in range(KEPT):
            table.measured(key, 0)
            table.keep(key, graphs[key])
        assert table.decide(0) is Way.REPLAY
        graphs[1].unread = True
        assert table.keep(KEPT, graphs[KEPT]) == 1
        assert table.decide(1) is Way.BUSY
        assert table.decide(2) is Way.CAPTURE
        for key in range(1, KEPT + 1):
            graphs[key].unread = True
        graphs[0].unread = True
        assert table.keep(KEPT + 1, graphs[KEPT + 1]) == 0
        assert len(table) == KEPT + 1
        for graph in graphs.values():
            graph.unread = False
        assert table.keep(99, Recorded()) == 2
        assert len(table) == KEPT

    def test_keys_that_do_not_come_again_are_forgotten(self) -> None:
        """Each run on memory of its own is done step by step, and leaves nothing."""
        table: GraphTable[Recorded] = GraphTable()
        for key in range(10 * SEEN):
            assert table.decide(key) is Way.FIRST
            table.measured(key, 0)
        assert table.decide(0) is Way.FIRST
        assert table.decide(10 * SEEN - 1) is Way.CAPTURE
        assert not len(table)

    def test_what_cannot_be_recorded_is_tried_no_more(self) -> None:
        """After a second attempt: the first may have been disturbed."""
        table: GraphTable[Recorded] = GraphTable()
        table.measured("a", 0)
        assert not table.failed(Refusal.CAPTURE)
        assert table.decide("a") is Way.CAPTURE
        table.keep("a", Recorded())
        assert [table.failed(Refusal.CAPTURE) for _ in range(ATTEMPTS)] == [False, True]
        assert table.decide("a") is Way.PLAIN
        assert table.refusal is Refusal.CAPTURE
        assert GraphTable(Refusal.STEP).decide("a") is Way.PLAIN


class FakeGraph:
    """A run that is done again by running it again."""

    def __init__(self, enqueue: Callable[[], Any]) -> None:
        self.launch: Final = enqueue


class FakeRecorder:
    """Records what is done on the host: it is done, and undone."""

    def __init__(self) -> None:
        self.refused: Exception | None = None
        self.needed: list[int] = []
        self.checks = 0
        self.invalid_at = 0

    def measured(self, enqueue: Callable[[], Any]) -> tuple[Any, int]:
        """Do it."""
        return enqueue(), 123

    def check(self) -> None:
        """Be content, but where a test is not."""
        self.checks += 1
        if self.checks == self.invalid_at:
            raise RuntimeError("the capture is invalid")

    def record(self, enqueue: Callable[[], Any], nbytes: int) -> tuple[FakeGraph, Any]:
        """Remember it."""
        self.needed.append(nbytes)
        if self.refused is not None:
            raise self.refused
        slots: list[DeviceArray] = enqueue.args[1]  # type: ignore[attr-defined]
        before = [slot.array.copy() for slot in slots]
        result = enqueue()
        for slot, content in zip(slots, before, strict=True):
            if slot.writable:
                slot.array[...] = content
        return FakeGraph(enqueue), result


class Programs:
    """An actor's libraries on the host, with graphs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorder: Final = FakeRecorder()
        monkeypatch.setattr(ProgramLibrary, "_recorder", lambda _self: self.recorder)
        self.libraries: Final = libraries_on(HostDevice(), "host")

    @property
    def counts(self) -> GraphCounts:
        """The counts."""
        return GraphCounts(*self.libraries._context.graphs[:7])


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Libraries whose programs are recorded."""
    return Programs(monkeypatch)


def test_runs_give_the_same_whichever_way_they_are_done(programs: Programs) -> None:
    """Bit for bit, with inputs wherever they lie, views, and results that outlive later runs."""
    random = np.random.default_rng(3)
    weights = random.uniform(-1, 1, (N, N))
    here = programs.libraries
    with here.program() as p:
        x = p.input("x", (2, N), "float64")
        hidden = p.blas.gemm(x, weights)
        p.returns(p.elementwise.add(hidden, x), p.fft.rfft(hidden)[0, :3])
    results, expected = [], []
    value = np.empty((2, N))
    for _ in range(6):
        value[...] = random.uniform(-1, 1, (2, N))
        single = here.blas.gemm(value, weights)
        expected.append((here.elementwise.add(single, value).array, here.fft.rfft(single).array[0, :3]))
        results.append(p.run(x=value))
    for (total, spectrum), (total_, spectrum_) in zip(results, expected, strict=True):
        np.testing.assert_array_equal(total.array, total_)
        np.testing.assert_array_equal(spectrum.array, spectrum_)
    assert programs.counts == GraphCounts(captured=1, replayed=5)
    assert programs.recorder.needed == [123]


def test_what_is_written_is_written_where_it_lies(programs: Programs) -> None:
    """A step that writes an input or a constant has a graph for each set of addresses, and a few are kept."""
    state, one = np.zeros(N), np.ones(N)
    with programs.libraries.program() as p:
        x = p.input("x", (N,), "float64")
        p.elementwise.add(x, one, x)
        p.elementwise.add(state, one, state)
    buffer = np.zeros((KEPT + 2, 512 // 8))
    places = [buffer[row, :N] for row in range(KEPT + 2)]
    turns = 5
    for _ in range(turns):
        for place in places:
            p.run(x=place)
    assert all((place == turns).all() for place in places)
    assert (state == turns * len(places)).all()
    counts = programs.counts
    assert counts.captured == counts.replayed == (turns - 1) * len(places)  # each is dropped before it comes again
    assert counts.dropped == counts.captured - KEPT
    for _ in range(3):
        p.run(x=places[-1])
    assert programs.counts.captured == counts.captured
    assert programs.counts.replayed == counts.replayed + 3


def test_an_input_that_is_a_constants_memory_too_is_not_copied(programs: Programs) -> None:
    """What one step writes by the one name the next one reads by the other."""
    state = np.arange(float(N))
    with programs.libraries.program() as p:
        x = p.input("x", (N,), "float64")
        p.elementwise.add(state, state, state)
        p.returns(p.elementwise.add(x, x))
    for turn in range(1, 5):
        assert p.run(x=state).array.tolist() == (np.arange(float(N)) * 2**turn * 2).tolist()


def test_a_structure_at_the_address_of_another_is_not_taken_for_it(programs: Programs) -> None:
    """Its matrix has the same layout, and the buffer that names it lies where the other's did."""
    name, values, x = Named.of(np.zeros(1), "uint8"), np.ones(2), np.arange(1.0, 3.0)
    for mask in (np.eye(2, dtype=bool), np.eye(2, dtype=bool)[::-1]):
        name.attached = of_mask("csr", mask)
        pattern = pattern_of(name.attached)
        told: tuple[Any, ...] = (name.named(), *msgspec.structs.astuple(pattern)[1:], values)
        with programs.libraries.program() as p:
            given = p.input("x", (2,), "float64")
            p.returns(p.sparse.spmv(sparse.Matrix(*told), given))
        for _ in range(3):
            assert p.run(x=x).array.tolist() == (mask @ x).tolist()
    assert programs.counts == GraphCounts(captured=2, replayed=4)


def test_in_a_trace_a_launch_counts_what_its_steps_declare(programs: Programs) -> None:
    """As much as a run step by step does."""
    x, counted = np.ones((2, N)), list[tuple[int, int]]()
    with programs.libraries.program() as p:
        given = p.input("given", (2, N), "float64")
        p.returns(p.elementwise.add(given, given))
    call = data.Call(1, "program.run", 2**62, 0, b"")
    for _ in range(3):
        request = Request(cast("Any", None), call, cast("Any", SimpleNamespace(in_parts=None)))
        request.recorded = cast("Any", SimpleNamespace(add=lambda flops, nbytes: counted.append((flops, nbytes))))
        run = contextvars.copy_context()
        run.run(in_task.set, TaskCell(request))
        run.run(p.run, given=x)
    assert counted == [(2 * N, 3 * 8 * 2 * N)] * 3
    assert programs.counts == GraphCounts(captured=1, replayed=2)


def test_large_arrays_are_not_copied(programs: Programs) -> None:
    """Their addresses are the graph's: as long as they come again, it is launched again."""
    big = COPIED_BYTES // 8 + 1
    value = np.ones(big)
    with programs.libraries.program() as p:
        x = p.input("x", (big,), "float64")
        scratch = p.elementwise.add(x, x)
        p.returns(p.elementwise.add(scratch[:N], scratch[:N]))
    for turn in range(4):
        value[:] = turn
        assert p.run(x=value).array.tolist() == [4.0 * turn] * N
    assert programs.counts == GraphCounts(captured=1, replayed=3)
    for _ in range(3):
        assert p.run(x=np.ones(big)).array.tolist() == [4.0] * N


def test_a_verdict_that_is_unread_keeps_the_graph(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run is done step by step; both would be written to the same place."""
    verdicts: list[int] = []

    def choice(_self: Any, request: Any) -> Later:
        request.out.array[...] = len(verdicts)

        def read() -> None:
            verdicts.append(1)
            if request.p.array[0] < 0:
                raise errors.NumericalError("p is negative", undefined="out")

        return Later(read)

    monkeypatch.setattr(HostRng, "choice", choice)
    monkeypatch.setattr(Choice, "captured", True)  # with this stand-in, no generator is asked
    here = programs.libraries
    with here.program() as p:
        weights = p.input("weights", (2,), "float64")
        p.returns(p.rng.generator(seed=3).choice(weights, size=2))
    made: list[Any] = []
    run = here._threads.libraries.run

    def noted(library: str, request: Any) -> Any:
        made.append(request)
        return run(library, request)

    monkeypatch.setattr(here._threads.libraries, "run", noted)
    value = np.ones(2)
    for _ in range(3):
        p.run(weights=value)
    assert programs.counts == GraphCounts(captured=1, replayed=2)
    assert len(verdicts) == 3
    with pytest.raises(errors.NumericalError, match=r"step 0 \(rng\.choice\): p is negative"):
        p.run(weights=np.array([-1.0, 1.0]))
    method = here._threads.libraries._methods["program.run"]
    first = method.run_here(made[0])
    assert isinstance(first, Later)
    second = method.run_here(made[0])
    assert isinstance(second, Later)
    assert programs.counts.busy == 1
    first.read()
    third = method.run_here(made[0])
    assert programs.counts.busy == 1
    second.read()
    third.read()


def test_a_program_that_cannot_be_recorded_says_why(programs: Programs) -> None:
    """It runs step by step, once and for all."""
    with programs.libraries.program() as p:
        p.returns(p.elementwise.negative(p.input("x", (N,), "float64")))
    value = np.ones(N)
    programs.recorder.refused = RuntimeError("operation not permitted when stream is capturing")
    for _ in range(6):
        assert p.run(x=value).array.tolist() == [-1.0] * N
    assert programs.counts == GraphCounts(capture_failed=1)
    assert len(programs.recorder.needed) == ATTEMPTS
    programs.recorder.refused = errors.OutOfMemory("no room")
    with programs.libraries.program() as other:
        other.returns(other.elementwise.sqrt(other.input("x", (N,), "float64")))
    for _ in range(6):
        assert other.run(x=value).array.tolist() == [1.0] * N
    assert programs.counts == GraphCounts(capture_failed=1, no_memory=1)


def test_a_step_that_is_declared_so_is_not_recorded(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried then."""
    from atomr_mp.protocol.libraries.elementwise import Sqrt

    monkeypatch.setattr(Sqrt, "captured", False)
    with programs.libraries.program() as p:
        p.returns(p.elementwise.sqrt(p.input("x", (N,), "float64")))
    value = np.ones(N)
    for _ in range(4):
        assert p.run(x=value).array.tolist() == [1.0] * N
    assert programs.counts == GraphCounts(not_capturable=1)
    assert not programs.recorder.needed


def test_of_random_numbers_only_those_by_rejection_are_recorded(programs: Programs) -> None:
    """The others take cuRAND's generators, which cannot be; they give the same numbers in every run all the same."""
    with programs.libraries.program() as p:
        p.returns(p.rng.generator(seed=3).normal(size=(N,)))
    assert len({tuple(p.run().array.tolist()) for _ in range(4)}) == 1
    assert programs.counts == GraphCounts(not_capturable=1)
    assert not programs.recorder.needed
    for law in ("gamma", "beta"):
        with programs.libraries.program() as p:
            generator = p.rng.generator(seed=3)
            p.returns(
                generator.gamma(shape=2.0, size=(N,)) if law == "gamma" else generator.beta(a=2.0, b=3.0, size=(N,))
            )
        assert len({tuple(p.run().array.tolist()) for _ in range(4)}) == 1
    assert programs.counts == GraphCounts(captured=2, replayed=6, not_capturable=1)


@pytest.mark.parametrize("kind", ["a part is written", "a triangle is written", "a part is returned"])
def test_what_no_step_has_written_of_a_temporary_is_zero(programs: Programs, kind: str) -> None:
    """Step by step and as a graph, whatever was in its memory before."""
    here = programs.libraries
    with here.program() as p:
        x, scratch = p.input("x", (N, N), "float64"), p.empty((N, N), "float64")
        if kind == "a part is written":
            p.elementwise.copy(x[1:], scratch[1:])
            p.returns(p.elementwise.negative(scratch))
        elif kind == "a triangle is written":
            p.blas.syrk(x, scratch, uplo="L")
            p.returns(p.elementwise.negative(scratch))
        else:
            p.elementwise.copy(x[1:], scratch[1:])
            p.returns(scratch)
    expected = np.zeros((N, N))
    if kind == "a triangle is written":
        expected -= np.tril(np.full((N, N), float(N)))
    else:
        expected[1:] = -1 if kind == "a part is written" else 1
    value = np.ones((N, N))
    for _ in range(4):
        result = p.run(x=value)
        np.testing.assert_array_equal(result.array, expected)
        result.array[:] = 7.0
    (prepared,) = [each.get() for each in here._threads.libraries._libraries.plans["program"]._plans.values()]
    assert len(prepared.clears) == 1
    assert programs.counts == GraphCounts(captured=1, replayed=3)


def test_temporaries_that_are_overwritten_are_kept_between_runs(programs: Programs) -> None:
    """Those of a small program, as long as it is done step by step; a result never is."""
    programs.recorder.refused = RuntimeError("no")
    with programs.libraries.program() as p:
        x = p.input("x", (N,), "float64")
        p.returns(p.elementwise.add(p.elementwise.negative(x), x))
    value, results = np.ones(N), []
    for turn in range(5):
        value[:] = turn
        results.append(p.run(x=value))
        results[-1].array[:] = turn
    assert [result.array.tolist() for result in results] == [[float(turn)] * N for turn in range(5)]
    (prepared,) = [
        each.get() for each in programs.libraries._threads.libraries._libraries.plans["program"]._plans.values()
    ]
    assert not prepared.clears
    assert len(prepared.frames) == 1


def test_the_log_names_the_step_that_cannot_be_recorded(programs: Programs, caplog: pytest.LogCaptureFixture) -> None:
    """Not only that one cannot; and a first failure is not the last word."""
    with programs.libraries.program() as p:
        x = p.input("x", (N,), "float64")
        p.returns(p.elementwise.sqrt(p.elementwise.negative(x)))
    value = -np.ones(N)
    p.run(x=value)
    programs.recorder.invalid_at = 2
    for _ in range(2):
        programs.recorder.checks = 0
        assert not caplog.records
        assert p.run(x=value).array.tolist() == [1.0] * N
    assert programs.counts == GraphCounts()
    assert "step 1 (elementwise.sqrt) cannot be recorded: the capture is invalid" in caplog.text
    p.run(x=value)
    assert programs.counts == GraphCounts(capture_failed=1)


def test_a_run_that_fails_leaves_no_memory_to_the_collector() -> None:
    """A worker that is idle collects nothing: what the error's traceback kept would be held for ever."""

    class Step:
        """Stands for a step, which has its operands."""

    class FailedError(Exception):
        """Ends a run."""

    def run() -> weakref.ref[Step]:
        step = Step()
        steps: Any = [step]
        with pytest.raises(FailedError):
            judged(steps, [], FailedError(), None)
        return weakref.ref(step)

    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()
