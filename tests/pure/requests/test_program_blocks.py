"""Programs with branches and loops against the same done by NumPy, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import atomr_mp_workers.libraries
from atomr_mp import errors
from atomr_mp.libraries.program import Program
from atomr_mp.libraries.program_blocks import While
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.libraries.kernels import KernelOf
from atomr_mp_workers import host_kernel
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.libraries.kernels.images import KernelImage
from atomr_mp_workers.libraries.kernels.modules import LoadedModule
from atomr_mp_workers.libraries.program import preparation
from atomr_mp_workers.libraries.program.base import ProgramLibrary
from tests.actor_libraries import have, libraries_on
from tests.deciding import NAME, DecidingWorker, Invert, Nonzero, Normalize
from tests.pure.worker.test_dispatch import outcomes

N: Final = 3
REFS: Final = 2
TEMPORARIES: Final = 2
MINUS_ONE: Final = np.full(N, -1)


class Add(NamedTuple):
    """Add two variables to a third, or only their first elements."""

    a: int
    b: int
    out: int
    length: int


class Made(NamedTuple):
    """Add two variables, into an array that the step makes, and that to a variable."""

    a: int
    out: int


class Lower(NamedTuple):
    """Subtract 1 from a variable."""

    out: int


class Kept(NamedTuple):
    """Have an array in the body that only a branch writes, so that it keeps what it had."""

    condition: tuple[int, int]
    a: int
    out: int


@host_kernel("blocks_mix")
def mix(a: Any, number: Any, out: Any, n: Any, *, grid: Any, block: Any) -> None:
    """Stand for the kernel of `Mix`."""
    assert (grid, block) == ((1, 1, 1), (32, 1, 1))
    assert not a.flags.writeable
    out[:n] += a[:n] + number


@host_kernel("blocks_shift")
def shift(a: Any, out: Any, *, grid: Any, block: Any) -> None:
    """Stand for the kernel of `Shift`."""
    del grid, block
    out[:] = a[::-1]


class Body(NamedTuple):
    """A branch, or a loop of some rounds."""

    condition: tuple[int, int]
    """A variable and its element."""
    most: int
    """0 for a branch."""
    nodes: list[Any]
    others: list[Any]
    """A branch's second body; empty for none."""


class Mix(NamedTuple):
    """Launch a kernel: to the first elements of a variable add another, and a number."""

    a: int
    number: int
    out: int
    length: int


class Shift(NamedTuple):
    """Launch a kernel: write another variable's elements, in the opposite order."""

    a: int
    out: int


@st.composite
def programs(draw: st.DrawFn, most_depth: int = 3) -> list[Any]:
    """Draw a program on `REFS` refs and some temporaries, which are read only where a step may have written them."""
    known = dict.fromkeys(range(REFS + 1), N)
    """How many elements of a variable may have been written."""

    def nodes(depth: int) -> list[Any]:
        found: list[Any] = []
        for _ in range(draw(st.integers(1, 3))):
            kind = draw(st.sampled_from(["step"] * 2 + ["if", "while"] * (depth < most_depth)))
            if kind == "step":
                node = draw(steps_on(known, draw(st.integers(0, REFS + TEMPORARIES - 1))))
                known[node.out] = max(node.length if isinstance(node, Add) else N, known.get(node.out, 0))
                found.append(node)
                continue
            condition = draw(elements(known))
            inner, others = nodes(depth + 1), []
            if kind == "while":
                added = Add(condition[0], draw(st.sampled_from(sorted(known))), condition[0], N)
                inner.append(draw(st.sampled_from([Lower(condition[0]), added])))
            elif draw(st.booleans()):
                others = nodes(depth + 1)
            found.append(Body(condition, draw(st.integers(1, 3)) if kind == "while" else 0, inner, others))
        return found

    return nodes(0)


def elements(known: dict[int, int]) -> st.SearchStrategy[tuple[int, int]]:
    """Draw a variable, and an element of it that may have been written."""
    return st.sampled_from([(each, element) for each in sorted(known) for element in range(known[each])])


def steps_on(known: dict[int, int], out: int) -> st.SearchStrategy[Any]:
    """Draw a step that writes a variable, given those that may have been written."""
    to, length = st.just(out), st.integers(1, N)
    any_one, other = st.sampled_from(sorted(known)), st.sampled_from(sorted(known.keys() - {out}))
    found = [
        st.builds(Add, any_one, any_one, to, length),
        st.builds(Made, any_one, to),
        st.builds(Kept, elements(known), any_one, to),
        st.builds(Shift, other, to),
    ]
    if out in known:
        found.append(st.builds(Mix, other, st.integers(-2, 2), to, length))
    return st.one_of(found)


def element(variables: list[Any], place: tuple[int, int]) -> Any:
    """Return a view of an element, as a condition."""
    return variables[place[0]][place[1] : place[1] + 1]


def record(p: Any, kernels: Kernels, variables: list[Any], nodes: list[Any]) -> Iterator[While]:
    """Record nodes; yield the loops that are in no other body."""
    for node in nodes:
        match node:
            case Add(a, b, out, count):
                p.elementwise.add(variables[a][:count], variables[b][:count], variables[out][:count])
            case Made(a, out):
                made = p.elementwise.add(variables[a], variables[a])
                p.elementwise.add(made, variables[a], variables[out])
            case Lower(out):
                p.elementwise.add(variables[out], MINUS_ONE, variables[out])
            case Kept(condition, a, out):
                kept = p.empty((N,), "int64")
                with p.if_(element(variables, condition)):
                    p.elementwise.add(variables[a], variables[a], kept)
                p.elementwise.add(kept, variables[a], variables[out])
            case Mix() | Shift():
                launch(p, kernels, variables, node)
            case Body(condition, 0, inner, others):
                with p.if_(element(variables, condition)):
                    list(record(p, kernels, variables, inner))
                if others:
                    with p.else_():
                        list(record(p, kernels, variables, others))
            case Body(condition, most, inner):
                with p.while_(element(variables, condition), most=most) as loop:
                    list(record(p, kernels, variables, inner))
                yield loop


def launch(p: Any, kernels: Kernels, variables: list[Any], node: Mix | Shift) -> None:
    """Record a launch."""
    a, out = variables[node.a], variables[node.out]
    if isinstance(node, Mix):
        p.kernels.launch(kernels.mix, a, node.number, out, node.length, grid=1, block=32, inout=out)
    else:
        p.kernels.launch(kernels.shift, a, out, grid=1, block=32, out=out)


def interpret(variables: list[Any], nodes: list[Any], kept: dict[int, Any]) -> list[tuple[int, bool]]:
    """Do nodes with NumPy; return what the loops tell."""
    told: list[tuple[int, bool]] = []
    for node in nodes:
        if not isinstance(node, Body):
            compute(variables, node, kept)
            continue
        place, element = node.condition
        rounds, most = 0, node.most or 1
        while variables[place][element] and rounds < most:
            interpret(variables, node.nodes, kept)
            rounds += 1
        if not rounds and not node.most:
            interpret(variables, node.others, kept)
        if node.most:
            told.append((rounds, bool(variables[place][element])))
    return told


def compute(variables: list[Any], node: Any, kept: dict[int, Any]) -> None:
    """Do one node that is no body."""
    match node:
        case Add(a, b, out, count):
            variables[out][:count] = variables[a][:count] + variables[b][:count]
        case Made(a, out):
            variables[out][:] = 3 * variables[a]
        case Mix(a, number, out, count):
            variables[out][:count] += variables[a][:count] + number
        case Shift(a, out):
            variables[out][:] = variables[a][::-1]
        case Lower(out):
            variables[out] -= 1
        case Kept(condition, a, out):
            content = kept.setdefault(id(node), np.zeros(N, "int64"))
            if variables[condition[0]][condition[1]]:
                content[:] = 2 * variables[a]
            variables[out][:] = content + variables[a]


class Kernels(NamedTuple):
    """Kernels that are loaded."""

    mix: Any
    shift: Any


def kernels_on(libraries: Any) -> Kernels:
    """Return the kernels of `Mix` and `Shift`, loaded by hand: nothing is compiled."""
    parameters = {"mix": ((0, 8), (8, 8), (16, 8), (24, 4)), "shift": ((0, 8), (8, 8))}
    images = {f"blocks_{name}": KernelImage(f"blocks_{name}", sizes, 0) for name, sizes in parameters.items()}
    context = libraries._context
    naming = context.store.buffers.allocate(context.holder(), "uint8", (1,))
    naming.attached = LoadedModule(bytes(32), images, {}, {}, {}, None)
    return Kernels(*(KernelOf(naming, each.name, bytes(32), each.parameters) for each in images.values()))


def recorded(libraries: Any, kernels: Kernels, refs: list[Any], nodes: list[Any], *, wraps: bool) -> Any:
    """Record a program, in a branch if it `wraps`; return it."""
    program = libraries.program()
    with program as p:
        x = p.input("x", (N,), "int64")
        variables = [refs[0], x, *(p.empty((N,), "int64") for _ in range(TEMPORARIES))]
        p.elementwise.add(variables[0], variables[1], variables[2])
        if wraps:
            with p.if_(x[0]):
                list(record(p, kernels, variables, nodes))
            loops: list[Any] = []
        else:
            loops = list(record(p, kernels, variables, nodes))
        told = [array for loop in loops for array in (loop.rounds, loop.reached_most)]
        p.returns(variables[2], *told)
    return program


@pytest.fixture(scope="module")
def libraries() -> Any:
    """Libraries on the host, without a worker."""
    return libraries_on(HostDevice(), "host")


def test_any_program_gives_what_numpy_gives(libraries: Any) -> None:
    """What it writes, what it returns, and how many rounds its loops tell; run after run."""
    ways: set[Any] = set()
    kernels = kernels_on(libraries)
    twice = [0] * N + [2] + [0] * (N - 1)  # x[0] is 2

    @example(nodes=[Body((1, 0), 5, [Lower(1)], [])], values=twice, wraps=False)
    @example(nodes=[Body((1, 0), 1, [Lower(1)], [])], values=twice, wraps=False)
    @example(nodes=[Body((1, 1), 1, [Lower(1)], [])], values=twice, wraps=False)
    @given(
        nodes=programs(),
        values=st.lists(st.integers(-2, 2), min_size=2 * N, max_size=2 * N),
        wraps=st.booleans(),
    )
    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(*, nodes: list[Any], values: list[int], wraps: bool) -> None:
        first, x = np.array(values[:N], "int64"), np.array(values[N:], "int64")
        ref = first.copy()
        program = recorded(libraries, kernels, [ref], nodes, wraps=wraps)
        for _ in range(2):
            given = x.copy()
            variables: list[Any] = [ref.copy(), x.copy(), *(np.zeros(N, "int64") for _ in range(TEMPORARIES))]
            variables[2][:] = variables[0] + variables[1]
            told = [] if wraps and not x[0] else interpret(variables, nodes, {})
            result = program.run(x=given)
            results = result if isinstance(result, list) else [result]
            np.testing.assert_array_equal(ref, variables[0])
            np.testing.assert_array_equal(given, variables[1])
            np.testing.assert_array_equal(results[0].array, variables[2])
            found = [(int(a.array), bool(b.array)) for a, b in zip(results[1::2], results[2::2], strict=True)]
            assert found == ([] if wraps else told)
            ways.update(found)

    agrees()
    assert ways >= {(2, False), (1, True), (0, False)}


def steps(libraries: Any) -> tuple[Any, Any, Any]:
    """Return a program that is recorded, an input of it, and an array of another."""
    program = libraries.program()
    other = libraries.program()
    return program, program.input("x", (N,), "int64"), other.input("y", (), "bool")


def test_mistakes_are_told_where_they_are_made(libraries: Any) -> None:
    """Conditions and bounds that are none; nothing is recorded then."""
    p, x, other = steps(libraries)
    floating, unwritten = p.input("f", (1,), "float64"), p.empty((), "bool")
    wrong = [
        (x, 5, r"the condition of while_ has the shape \(3,\); it must have one element"),
        (floating, 5, "is float64; it must be bool or an integer: a comparison gives bool"),
        (3, 5, "the condition of while_ is 3; it must be a ref or an array of the program"),
        (True, 5, "is True; it must be"),
        (other, 5, "an array of another program"),
        (unwritten, 5, "a temporary that no earlier step has written"),
        (x[0], 0, "most is 0; it must be a whole number from 1"),
        (x[0], True, "most is True"),
        (x[0], 2.5, "most is 2.5"),
        (x[0], 2**63, "from 1 to"),
    ]
    for condition, most, words in wrong:
        with pytest.raises(errors.InvalidRequest, match=words):
            p.while_(condition, most=most)
    with pytest.raises(errors.InvalidRequest, match=r"the condition of if_ has the shape"):
        p.if_(x)
    with pytest.raises(TypeError, match="most"):
        p.while_(x[0])
    loop = p.while_(x[0], most=2)
    with pytest.raises(errors.InvalidRequest, match="has not begun"):
        _ = loop.rounds
    with loop:
        p.elementwise.add(x, x, x)
    with pytest.raises(errors.InvalidRequest, match="has its body already"), loop:
        pass


def test_an_array_of_another_program_is_told(libraries: Any) -> None:
    """Where a step uses it: its outputs, its inputs, and what a kernel or a tensor map has of it."""
    kernels = kernels_on(libraries)
    with libraries.program() as other:
        foreign_input = other.input("x", (N,), "int64")
        foreign = other.elementwise.add(foreign_input, foreign_input)
        other.returns(foreign)
    p = libraries.program()
    x = p.input("x", (N,), "int64")
    for each in (foreign, foreign_input, foreign[::-1]):
        uses: list[Callable[[Any], Any]] = [
            lambda y: p.elementwise.add(y, y),
            lambda y: p.elementwise.add(x, x, y),
            lambda y: p.kernels.launch(kernels.shift, y, x, grid=1, block=1, inout=x),
        ]
        for use in uses:
            with pytest.raises(errors.InvalidRequest, match=r"uses \w+(\[0\])?, an array of another program"):
                use(each)
    assert p._recording.steps == []


def test_a_body_says_what_it_has_in_place_of_programs(libraries: Any) -> None:
    """Their attribute is missing, in words."""
    p = libraries.program()
    with pytest.raises(AttributeError, match=r"no 'program': its bodies are branches and loops \(`if_`, `while_`\)"):
        _ = p.program
    assert not hasattr(p, "program")


def test_what_a_body_makes_does_not_leave_it(libraries: Any) -> None:
    """Not to a step, a condition, or as a result; nor are a loop's rounds known in it."""
    p, x, _ = steps(libraries)
    with p.while_(x[0], most=2) as loop:
        made, flag = p.elementwise.add(x, x, x) or p.elementwise.add(x, x), p.elementwise.greater(x[:1], x[1:2])
        with pytest.raises(errors.InvalidRequest, match="a temporary that no earlier step has written"):
            p.elementwise.add(loop.rounds, loop.rounds)
        with pytest.raises(errors.InvalidRequest, match="was made in the body of a while_"):
            p.returns(made)
        with p.if_(flag):
            p.elementwise.add(made, x, x)
    with pytest.raises(errors.InvalidRequest, match=r"elementwise.add uses .*made in the body of a while_.*p.empty"):
        p.elementwise.add(made, x, x)
    with pytest.raises(errors.InvalidRequest, match="if_ depends on its condition, an array that was made"):
        p.if_(flag)
    p.elementwise.add(loop.rounds, loop.rounds)
    p.returns(loop.rounds)
    p._finish()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda _p, _x: None, "the body of while_ has no steps"),
        (lambda p, x: p.elementwise.add(x[1:], x[1:]), "no step in the body of while_ writes its condition"),
        (lambda p, x: p.elementwise.add(x[1:], x[1:], x[1:]), "no step in the body of while_ writes its condition"),
        (lambda _p, _x: 1 / 0, "an exception has ended the body of its while_"),
        (lambda p, x: other_body(p, x, lambda: None), "the body of else_ has no steps"),
        (lambda p, x: other_body(p, x, lambda: 1 / 0), "an exception has ended the body of its else_"),
    ],
)
def test_a_program_with_a_bad_body_is_not_run(libraries: Any, body: Any, words: str) -> None:
    """Even if the error was caught."""
    p, x, _ = steps(libraries)
    with pytest.raises((errors.InvalidRequest, ZeroDivisionError)), p.while_(x[0], most=2):
        body(p, x)
    with pytest.raises(errors.InvalidRequest, match=f"has a mistake, record it anew: .*{words}"):
        p.__exit__(None, None, None)
    with pytest.raises(errors.InvalidRequest, match="not recorded yet"):
        p.run(x=np.zeros(N, "int64"))


def test_a_body_that_is_not_ended_or_begun_is_told(libraries: Any) -> None:
    """Both are for `with`."""
    p, x, _ = steps(libraries)
    p.if_(x[0]).__enter__()
    p.elementwise.add(x, x, x)
    with pytest.raises(errors.InvalidRequest, match="the body of its if_ has not ended"):
        p.__exit__(None, None, None)
    p, x, _ = steps(libraries)
    p.if_(x[0])
    with pytest.raises(errors.InvalidRequest, match="are for `with`"):
        p.__exit__(None, None, None)
    p, x, _ = steps(libraries)
    other_body(p, x, lambda: p.elementwise.add(x, x, x))
    with p.if_(x[0]):
        p.elementwise.add(x, x, x)
    p.else_()
    with pytest.raises(errors.InvalidRequest, match="are for `with`"):
        p.__exit__(None, None, None)


def other_body(p: Any, x: Any, record_steps: Callable[[], Any]) -> None:
    """Record a branch whose second body is what a function records."""
    with p.if_(x[0]):
        p.elementwise.add(x, x, x)
    with p.else_():
        record_steps()


def test_else_follows_its_if_at_once(libraries: Any) -> None:
    """It is refused anywhere else, and the program can be finished; it is that of the branch that has ended last."""
    p, x, _ = steps(libraries)
    refused = pytest.raises(errors.InvalidRequest, match="else_ follows the body of an if_ at once")
    with refused:
        p.else_()
    with p.if_(x[0]):
        with refused:
            p.else_()
        with p.if_(x[1]):
            p.elementwise.add(x, x, x)
        with p.else_():  # of the inner one
            p.elementwise.subtract(x, x, x)
        with refused:
            p.else_()
    late = p.else_()
    with late:
        made = p.elementwise.add(x, x)
        with p.if_(x[2]):
            p.elementwise.add(made, x, x)
    with refused:
        p.else_()
    with pytest.raises(errors.InvalidRequest, match="this else_ has its body already"), late:
        pass
    with pytest.raises(errors.InvalidRequest, match="made in the body of an else_"):
        p.elementwise.add(made, x, x)
    with p.while_(x[0], most=1):
        p.elementwise.subtract(x, x, x)
    with refused:
        p.else_()
    with p.if_(x[0]):
        made = p.elementwise.add(x, x)
    with p.else_():
        p.elementwise.add(x, x, x)
        with pytest.raises(errors.InvalidRequest, match="made in the body of an if_"):
            p.elementwise.add(made, x, x)
    with p.if_(x[0]):
        p.elementwise.add(x, x, x)
    p.elementwise.add(x, x, x)
    with refused:
        p.else_()
    with p.if_(x[0]):
        p.elementwise.add(x, x, x)
    late = p.else_()
    with p.if_(x[0]):
        p.elementwise.add(x, x, x)
    with pytest.raises(errors.InvalidRequest, match="another one has come since"), late:
        pass


def test_a_branch_asks_once(libraries: Any) -> None:
    """A first body that makes its own condition false does not have the second one done."""
    p = libraries.program()
    with p:
        x = p.input("x", (), "int64")
        with p.if_(x):
            p.elementwise.subtract(x, x, x)
        with p.else_():
            p.elementwise.subtract(x, np.array(7), x)
    for number, expected in ((3, 0), (0, -7)):
        place = np.array(number)
        p.run(x=place)
        assert place == expected


class Deferred:
    """A client's program on a stream whose work ends when the test lets it, as a GPU's.

    Args:
        worker: Its worker.
        monkeypatch: Makes the library of steps known that the data decide.
    """

    def __init__(self, worker: DecidingWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(preparation, "STEPS", (NAME, "elementwise"))
        monkeypatch.setattr(atomr_mp_workers.libraries, "LIBRARIES", (NAME, "blas", "elementwise", "program"))
        self.worker: Final = worker
        self.library: Final = ProgramLibrary(worker.context, worker.stream)
        have(worker.libraries, "program", self.library)
        self.steps: Final = type(worker.library)(worker.context, worker.stream)
        have(self.library._libraries, NAME, self.steps)
        self.peer: Final = worker.client(1)
        device: Any = SimpleNamespace(request=lambda library, request, _: worker.request(self.peer, request, library))
        self.program: Final = Program(device)

    def array(self, values: Any, dtype: str = "float32") -> Any:
        """Return an array of the client."""
        content = np.asarray(values, dtype)
        buffers, holder = self.worker.store.buffers, self.peer.session.holder
        array = buffers.allocate(holder, dtype, content.shape)
        array.array[...] = content
        self.worker.store.lease(holder, array)
        return array

    def step(self, request: Any) -> Any:
        """Record a step that the data decide."""
        return self.program._recording.request(NAME, request, None)

    def end(self, *ids: int) -> None:
        """Let parts end until these are answered."""
        for _ in range(30):
            if set(ids) <= set(outcomes(self.peer)):
                return
            self.part()
        raise AssertionError(f"of {ids} only {[*outcomes(self.peer)]} were answered")

    def part(self) -> None:
        """Let what is on the stream end, and what follows begin."""
        self.worker.stream.go_all()
        self.worker.take_back()
        self.worker.run()


@pytest.fixture
def deferred(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deferred]:
    """A worker whose stream defers its work, and a program."""
    worker = DecidingWorker(monkeypatch, "deferring")
    yield Deferred(worker, monkeypatch)
    assert not worker.dispatcher.busy
    assert not worker.dispatcher._ahead.total()
    worker.close()


def inverting(deferred: Deferred, most: int = 5) -> tuple[int, Any, Any]:
    """Run a loop of inversions, whose condition their input is; return its id, that input, and their output."""
    condition = deferred.array([1], "int64")
    x, out, zeros = (deferred.array(each) for each in ([1.0, 2.0], [0.0, 0.0], [0.0]))
    with deferred.program as p:
        n = p.input("n", (1,), "int64")
        with p.while_(condition, most=most) as loop:
            deferred.step(Invert(x, out, zeros))
            p.elementwise.maximum(n, n, condition)
        p.returns(loop.rounds)
    run: Any = p.run(n=deferred.array([1], "int64"))
    deferred.worker.run()
    while not deferred.worker.stream.pending and run not in outcomes(deferred.peer):
        deferred.worker.take_back()  # its library, and its plan
    return run, x, condition


def test_a_condition_is_read_when_the_work_before_it_has_ended(deferred: Deferred) -> None:
    """A part for each round, and others run in between; what is written in one is seen by the next condition."""
    run, x, condition = inverting(deferred)
    for _ in range(3):
        assert run not in outcomes(deferred.peer)
        deferred.part()
    other = deferred.worker.request(deferred.peer, Nonzero(deferred.array([1.0])))
    reader = deferred.worker.request(deferred.peer, Normalize(x))
    deferred.worker.run()
    deferred.end(other)
    assert run not in outcomes(deferred.peer)
    deferred.end(run, reader)
    assert outcomes(deferred.peer) == {other: None, run: None, reader: None}
    assert condition.array.tolist() == [1]


def test_a_verdict_of_a_round_ends_the_run_before_the_next_one(deferred: Deferred) -> None:
    """It names its step, and what is verdict upon verdict is not kept for the end."""
    run, x, _ = inverting(deferred, most=10**12)
    for _ in range(4):
        deferred.part()
    x.array[1] = 0.0
    deferred.end(run)
    error = outcomes(deferred.peer)[run]
    assert isinstance(error, errors.NumericalError)
    assert error.message.startswith("step 0 (deciding.invert): x is 0")


@pytest.mark.parametrize("way", ["cancel", "deadline", "client"])
def test_a_run_that_nobody_waits_for_ends_with_its_round(deferred: Deferred, way: str) -> None:
    """All that it has borrowed is free then, and what it was to write is undefined."""
    run, x, condition = inverting(deferred, most=10**12)
    deferred.part()
    worker, peer = deferred.worker, deferred.peer
    if way == "cancel":
        worker.dispatcher.cancel(peer, [run + 1, run])
    elif way == "deadline":
        for request in worker.completions.in_progress.requests.values():
            request.deadline_ns = 1  # type: ignore[attr-defined]
    else:
        worker.dispatcher.leave([peer])
    for _ in range(2):  # the end of the round, and that of the part that has refused to go on
        deferred.part()
    error = outcomes(peer)[run]
    assert isinstance(error, errors.DeadlineExceeded if way == "deadline" else errors.Cancelled)
    assert error.maybe_executed
    assert not error.message.startswith("step")
    reader = worker.request(peer, Normalize(x))
    refused = worker.request(peer, blas.Nrm2(condition.of_layout(Layout.contiguous("float32", (2,)))), "blas")
    worker.run()
    deferred.end(reader, refused)
    assert outcomes(peer)[reader] is None
    assert isinstance(outcomes(peer)[refused], errors.GpuRefUndefined)
