from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.libraries import STEPS, rng
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.libraries.actor_libraries import InProcessLibraries
from atomr_mp_workers.memory.arrays import DeviceArray
from tests.actor_libraries import directly, in_a_program, libraries_on
from tests.cases.library_cases import CASES, Case, arrays_in, call
from tests.declared import breakages
from tests.tolerances import assert_close

HERE: Final = libraries_on(HostDevice(), "host")

WAYS: Final[dict[str, Callable[[InProcessLibraries, str, Any], Any]]] = {
    "directly": directly,
    "in a program": in_a_program,
}


@pytest.mark.parametrize(
    ("case", "way"),
    [
        pytest.param(case, way, id=f"{case.name} {way}")
        for case in CASES
        for way in WAYS
        if way == "directly" or not case.request.answers  # with a number, which no step can
    ],
)
def test_every_request_gives_in_an_actor_what_it_gives_by_message(case: Case, way: str) -> None:
    """On arrays, however they lie; nothing else is written."""

    @given(case.drawn().filter(lambda request: not request.is_idle()), st.integers(0, 2**32 - 1))
    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(request: Any, seed: int) -> None:
        case.assert_agrees(request, np.random.default_rng(seed), lambda made: WAYS[way](HERE, case.library, made))

    agrees()


IDLE: Final = [case for case in CASES if case.request.rest is not None and case.library != "blas_lt"]
"""Requests among whose drawn ones some are idle; those of `blas_lt` all have elements."""


@pytest.mark.parametrize("case", IDLE, ids=lambda case: case.name)
def test_sizes_and_factors_of_0_never_reach_an_actor(case: Case) -> None:
    """The results are those of the definition, on each way that requests take."""
    method: Any = HERE._here()._libraries.find_here(case.name)

    def unreachable(*_: object) -> None:
        pytest.fail("an idle request has reached its actor")

    ways = [
        method.run_here,
        lambda request: method._call(request, method._checked(request)),
        *([] if case.request.answers else [lambda request: method.step(request)(request)]),
    ]

    @given(case.drawn().filter(lambda request: request.is_idle()), st.sampled_from(ways), st.integers(0, 2**32 - 1))
    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(request: Any, way: Callable[[Any], Any], seed: int) -> None:
        case.assert_agrees(request, np.random.default_rng(seed), way)

    run, method._run = method._run, unreachable
    try:
        agrees()
    finally:
        method._run = run


def test_a_message_is_checked_once_also_if_its_offset_moves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another buffer, another shape in it or another parameter is checked; an offset out of range stays refused."""
    libraries = libraries_on(HostDevice(), "host")
    method = libraries._here()._libraries.find_here("rng.uniform")
    assert method is not None
    store, check = libraries._context.store, rng.Uniform.check
    checked: list[object] = []

    def noted(request: rng.Uniform) -> None:
        checked.append(request)
        check(request)

    monkeypatch.setattr(rng.Uniform, "check", noted)
    outs = [store.buffers.allocate(store.buffers.ours, "float32", (8,)) for _ in range(2)]

    def arrive(out: DeviceArray, offset: int = 0, **changes: Any) -> Any:
        body = values.encode(rng.Uniform(out, source=rng.Source(offset=offset), **changes))[0]
        return method.arguments(body, (), lambda wire: out.of_layout(wire.layout))

    (first, known), (second, again) = arrive(outs[0], 3), arrive(outs[0], 2**40)
    assert (first.source.offset, second.source.offset, len(checked)) == (3, 2**40, 1)
    assert again is known
    for count, (out, changes) in enumerate(((outs[1], {}), (outs[0][:4], {}), (outs[0], {"low": -1.0})), 2):
        arrive(out, 5, **changes)
        assert len(checked) == count
    for _ in range(2):
        with pytest.raises(errors.InvalidRequest):
            arrive(outs[0], 9, size=(5,))
        with pytest.raises(errors.InvalidRequest):
            arrive(outs[0], -1)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_breakage_is_a_typed_error(case: Case) -> None:
    """As it is where a message would be sent; nothing is computed."""

    @given(case.drawn())
    @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
    def refused(request: Any) -> None:
        for what, broken in breakages(request):
            if what.startswith(case.request.held) or "an array, no ref" in what:
                continue  # an array is what is taken here
            try:
                call(HERE, case.library, broken, arrays_in)
            except (errors.InvalidRequest, errors.BorrowConflict):
                continue
            pytest.fail(f"{case.name} was done with {what}")

    refused()


def test_an_output_that_is_left_out_is_a_device_array() -> None:
    """As `Context.empty` makes it, and an operand as any other: also of a view, and by name."""
    random = np.random.default_rng(3)
    a, b = random.uniform(-1, 1, (2, 5, 5))
    product = HERE.blas.gemm(a, b.T)
    assert isinstance(product, DeviceArray)
    assert_close(product.array, a @ b.T, "float64", 5)
    total = HERE.elementwise.add(product[1:3], b[1:3])
    assert_close(total.array, (a @ b.T + b)[1:3], "float64", 6)
    assert HERE.blas.asum(total[0]) == pytest.approx(np.abs(total.array[0]).sum())
    assert HERE.rng.generator(seed=1).normal(size=3).array.tolist() == (
        HERE.rng.generator(seed=1).normal(size=3).array.tolist()
    )


def test_arrays_over_the_same_memory_are_known_as_such() -> None:
    """Whether they are NumPy's or a DeviceArray's."""
    whole = np.zeros((8, 8))
    with pytest.raises(errors.BorrowConflict, match="overlaps"):
        HERE.blas.gemm(whole, whole, whole)
    with pytest.raises(errors.BorrowConflict, match="overlaps"):
        HERE.blas.gemm(whole[:4, :4], whole[4:, :4], whole[2:6, :4])
    HERE.blas.gemm(whole[:4, :4], whole[:4, 4:], whole[4:, :4])
    made = HERE.blas.gemm(np.eye(4), np.eye(4))
    with pytest.raises(errors.BorrowConflict, match="overlaps"):
        HERE.blas.gemm(made, np.eye(4), made.array)


def test_what_may_only_be_read_is_not_written() -> None:
    """An argument of an actor's method, say, which its `writes` does not name."""
    fixed, other = np.zeros(4), np.ones(4)
    fixed.flags.writeable = False
    HERE.blas.copy(fixed, other)
    with pytest.raises(errors.InvalidRequest, match=r"blas\.copy: y is written.*name it in `writes`"):
        HERE.blas.copy(other, fixed)
    with HERE.program() as p:
        x = p.input("x", (4,), "float64")
        p.elementwise.add(x, x, x)
    with pytest.raises(errors.InvalidRequest, match=r"program\.run: an input or a ref is written"):
        p.run(x=fixed)
    assert not fixed.any()


def test_a_program_runs_on_arrays_where_they_lie() -> None:
    """Its inputs and constants are not copied; it is prepared once, wherever the inputs lie."""
    weights, state = np.full(3, 2.0), np.zeros(3)
    with HERE.program() as p:
        x = p.input("x", (3,), "float64")
        scaled = p.elementwise.multiply(x, weights)
        p.elementwise.add(state, scaled, state)
        p.elementwise.add(x, x, x)
        p.returns(scaled)
    plans = HERE._threads.libraries._libraries.plans
    made = plans["program"].made if "program" in plans else 0
    inputs = [np.full(3, float(turn)) for turn in range(4)]
    for turn, given_ in enumerate(inputs):
        assert p.run(x=given_).array.tolist() == [2.0 * turn] * 3
        assert given_.tolist() == [2.0 * turn] * 3
    assert state.tolist() == [12.0] * 3
    alignments = {array.__array_interface__["data"][0] % 256 for array in inputs}
    assert plans["program"].made - made == len(alignments)


def test_mistakes_say_what_to_do() -> None:
    """In the words of an actor's author."""
    ones = np.ones((2, 2))
    with pytest.raises(errors.InvalidRequest, match="a list is given for an array; here it must be a DeviceArray"):
        HERE.blas.gemm([[1.0]], ones)
    with pytest.raises(errors.InvalidRequest, match="of numbers as this machine has them"):
        HERE.blas.gemm(ones.astype(">f8"), ones)
    with pytest.raises(errors.InvalidRequest, match="unknown element type 'str"):
        HERE.blas.asum(np.array(["a"]))
    with pytest.raises(errors.InvalidRequest, match="has no deadline"):
        HERE.blas.gemm(ones, ones, deadline_s=1.0)
    with pytest.raises(AttributeError, match=f"no library 'bals'.*its libraries are: {', '.join(STEPS)}"):
        _ = HERE.bals


def test_threads_have_libraries_of_their_own() -> None:
    """Each may use objects looked up in `setup`: random numbers from one generator are not drawn twice."""
    generator, blas = HERE.rng.generator(seed=5), HERE.blas
    drawn: list[float] = []

    def work() -> None:
        for _ in range(20):
            matrix = generator.uniform(size=(4, 4))
            product = blas.gemm(matrix, np.eye(4, dtype="float32")).array
            np.testing.assert_array_equal(product, matrix.array)
            drawn.extend(product.reshape(-1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(drawn) == sorted(HERE.rng.generator(seed=5).uniform(size=4 * 20 * 16).array.tolist())


def test_data_without_a_result_raise_what_a_reply_would() -> None:
    """With the library's name."""
    with pytest.raises(errors.NumericalError, match=r"rng\.choice: p has a weight") as told:
        HERE.rng.generator(seed=1).choice(np.array([1.0, -1.0]), size=3)
    assert told.value.library == "rng"


def test_an_array_of_another_kind_is_computed_with_as_an_array() -> None:
    """What a class of its own makes of an operator does not count."""

    class Backwards(np.ndarray[Any, Any]):
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError(index)

    mine, out = np.ones((2, 2)).view(Backwards), np.zeros((2, 2))
    HERE.elementwise.add(mine, mine, out)
    assert out.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    HERE.elementwise.add(out, out, mine)
    assert np.asarray(mine).tolist() == [[4.0, 4.0], [4.0, 4.0]]


def test_a_device_array_that_becomes_writable_is_written() -> None:
    """As one that a method names in `writes`, and that was read before."""
    made = HERE.blas.gemm(np.eye(2), np.eye(2))
    made.writable = False
    assert HERE.blas.asum(made[0]) == 1.0
    with pytest.raises(errors.InvalidRequest, match="may only be read"):
        HERE.elementwise.add(made, made, made)
    made.writable = True
    HERE.elementwise.add(made, made, made)
    assert made.array.tolist() == [[2.0, 0.0], [0.0, 2.0]]
