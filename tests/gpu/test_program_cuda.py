"""Programs as CUDA graphs, through a pool."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.pool_status import GraphFigures
from tests.gpu import on_device
from tests.support import Ledger, wait_generation
from tests.tolerances import assert_close

pytestmark = on_device.NEEDS_CUPY

N: Final = 64
PLANS: Final = 256
"""Programs that a worker keeps."""

KINDS: Final = ("philox4_32_10", "xorwow", "mrg32k3a", "sobol32", "scrambled_sobol64")


@pytest.fixture
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool on the GPU, whose worker has done nothing yet."""
    with Ledger() as ledger, ledger.start(backend="cuda") as pool:
        yield pool


def counted(pool: atomr_mp.Pool) -> GraphFigures:
    """Return the counts of graphs."""
    nothing = GraphFigures(**dict.fromkeys(GraphFigures.__struct_fields__, 0))
    return pool.status().devices[0].graphs or nothing


def told(pool: atomr_mp.Pool) -> tuple[GraphFigures, list[str]]:
    """Return the counts of graphs, and why some could not be recorded, for whoever reads of a failure."""
    logs = [path.read_text(encoding="utf-8", errors="replace") for path in Path(pool.run_dir).rglob("*.log")]
    refused = [line for log in logs for line in log.splitlines() if "not captured" in line or "Error" in line]
    return counted(pool), refused


def network(device: atomr_mp.Device, random: np.random.Generator, steps: int = 20) -> Any:
    """Return a program of products, sums, a transform and random numbers that cuRAND does not generate."""
    weights = device.put(random.uniform(-0.2, 0.2, (N, N)).astype(np.float32))
    bias, zero = device.put(random.uniform(-1, 1, N).astype(np.float32)), device.full((), 0.0)
    with device.program() as p:
        x = p.input("x", (4, N), "float32")
        noise = p.rng.generator(seed=3).gamma(shape=2.0, size=(4, N))
        hidden = p.elementwise.add(x, noise)
        for _ in range(steps):
            hidden = p.elementwise.maximum(p.elementwise.add(p.blas.gemm(hidden, weights.T), bias), zero)
        p.returns(hidden, p.fft.rfft(hidden)[:, 1:5])
    return p


def one_by_one(device: atomr_mp.Device, p: Any, x: Any) -> list[Any]:
    """Return the results of a program's steps as single requests."""
    from atomr_mp.libraries.recording import ProgramArray
    from atomr_mp.protocol.declaration.arguments import with_arrays

    ref = device.put(x)
    slots: dict[int, Any] = {
        number: device.empty(each.shape, each.dtype) for number, each in enumerate(p._recording.temporaries)
    }
    slots |= {-1 - number: ref for number in range(len(p._recording.inputs))}

    def actual(operand: Any) -> Any:
        if not isinstance(operand, ProgramArray):
            return operand
        layout, of = operand.layout, slots[operand.slot]
        return of.as_strided(layout.shape, layout.strides, layout.offset) if layout.size else of

    for library, request in p._recording.steps:
        device.request(library, with_arrays(request, actual)).result()
    return [actual(each).numpy() for each in p._returns]


def test_graphs_give_bit_for_bit_what_the_steps_give(pool: atomr_mp.Pool) -> None:
    """From the second run on, with inputs by value and by ref, and results that are read late."""
    device, random = pool.device(0), np.random.default_rng(7)
    p = network(device, random)
    values = [random.uniform(-1, 1, (4, N)).astype(np.float32) for _ in range(8)]
    results = [p.run(x=device.put(each) if turn % 2 else each).result() for turn, each in enumerate(values)]
    for value, result in zip(values, results, strict=True):
        for made, expected in zip(result, one_by_one(device, p, value), strict=True):
            np.testing.assert_array_equal(made.numpy(), expected)
    found = counted(pool)
    assert found.captured in {1, 2}, told(pool)  # by value and by ref may lie differently beside an aligned address
    assert found.replayed >= len(values) - 2 * found.captured
    assert not found.capture_failed, told(pool)


@pytest.mark.parametrize("kind", KINDS)
def test_random_numbers_are_the_programs_in_each_run(pool: atomr_mp.Pool, kind: Any) -> None:
    """Even if other requests and programs use a generator of the same seed in between."""
    device = pool.device(0)
    dimensions = 2 if "sobol" in kind else 1
    seed = None if "sobol" in kind else 9

    def generator(of: Any, offset: int) -> Any:
        return of.rng.generator(seed, kind, offset=offset, dimensions=dimensions)

    with device.program() as first:
        first.returns(generator(first, 0).uniform(size=(600, dimensions)))
    with device.program() as second:
        drawing = generator(second, 600)
        second.returns(drawing.uniform(size=(100, dimensions)), drawing.uniform(size=(100, dimensions)))
    whole = generator(device, 0).uniform(size=(800, dimensions)).result().numpy()
    for turn in range(5):
        np.testing.assert_array_equal(first.run().result().numpy(), whole[:600])
        if turn % 2:
            generator(device, 17).uniform(size=(5, dimensions)).result()
        one, two = second.run().result()
        np.testing.assert_array_equal(one.numpy(), whole[600:700])
        np.testing.assert_array_equal(two.numpy(), whole[700:])
        np.testing.assert_array_equal(first.run().result().numpy(), whole[:600])
    found = counted(pool)
    assert (found.captured, found.capture_failed, found.not_capturable) == (0, 0, 2), told(pool)


def test_runs_overlap_and_share_nothing(pool: atomr_mp.Pool) -> None:
    """Many in flight, from several threads, each with its own input and result."""
    device = pool.device(0)
    with device.program() as p:
        x = p.input("x", (N, N), "float32")
        total = p.elementwise.add(x, x)
        for _ in range(30):
            total = p.elementwise.add(total, x)
        p.returns(total)
    wrong: list[float] = []

    def run(number: float) -> None:
        for _ in range(5):
            replies = [p.run(x=np.full((N, N), number + turn, np.float32)) for turn in range(20)]
            for turn, reply in enumerate(replies):
                if not (reply.result().numpy() == 32 * (number + turn)).all():
                    wrong.append(number + turn)

    threads = [threading.Thread(target=run, args=(100.0 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    found = counted(pool)
    assert found.captured == 1, told(pool)
    assert found.replayed == 399


def test_verdicts_of_overlapping_runs_are_each_its_own(pool: atomr_mp.Pool) -> None:
    """A run behind one whose verdict is unread is done step by step."""
    device = pool.device(0)
    with device.program() as p:
        factor = p.elementwise.copy(p.input("a", (N, N), "float64"))
        p.solver.potrf(factor)
        p.returns(factor)
    good, bad = 4 * np.eye(N), -np.eye(N)
    for _ in range(5):
        replies = [p.run(a=bad if turn % 3 else good) for turn in range(30)]
        for turn, reply in enumerate(replies):
            if turn % 3:
                with pytest.raises(errors.NumericalError, match=r"step 1 \(solver\.potrf\)"):
                    reply.result()
            else:
                np.testing.assert_allclose(np.tril(reply.result().numpy()), 2 * np.eye(N), rtol=1e-14, atol=1e-14)
    found = counted(pool)
    assert found.captured == 1, told(pool)
    assert found.replayed + found.busy == 149


def test_a_graph_outlives_what_it_was_made_with(pool: atomr_mp.Pool) -> None:
    """Larger temporaries of other requests, the plans of its steps dropped, and its refs' neighbours freed."""
    device, random = pool.device(0), np.random.default_rng(3)
    p = network(device, random, steps=3)
    value = random.uniform(-1, 1, (4, N)).astype(np.float32)
    expected = [each.numpy() for each in p.run(x=value).result()]

    def check() -> None:
        for made, wanted in zip(p.run(x=value).result(), expected, strict=True):
            np.testing.assert_array_equal(made.numpy(), wanted)

    check()
    check()
    big = device.put(random.uniform(-1, 1, (2**22,)).astype(np.complex64))
    taken = device.statistics()["workspace_bytes"]
    for n in (2**12 + 1, 2**16 + 3, 2**21 + 9):  # primes and the like: cuFFT needs more workspace with each
        device.fft.fft(big[:n]).result()
        with device.program() as larger:  # on the stream of all programs
            larger.returns(larger.fft.fft(larger.input("x", (n,), "complex64")))
        for _ in range(3):
            made, wanted = larger.run(x=big[:n]).result(), device.fft.fft(big[:n]).result()
            assert_close(made.numpy(), wanted.numpy(), "complex64", 64, 1000.0)
            check()
    assert device.statistics()["workspace_bytes"] > taken
    del big
    for n in range(1, PLANS // 2):  # plans of its products are dropped, and in the end that of the program itself
        for m in (n, n + PLANS):
            with device.program() as other:
                x = other.input("x", (1, m), "float32")
                other.returns(other.blas.gemm(x, x.T))
            assert other.run(x=np.ones((1, m), np.float32)).result().numpy() == m
        if n == 3 * PLANS // 8:
            check()
    for n in range(PLANS):
        with device.program() as other:
            other.returns(other.elementwise.negative(other.input("x", (n,), "float32")))
        other.run(x=np.ones(n, np.float32)).result()
    before = counted(pool).captured
    for _ in range(3):
        check()
    assert counted(pool).captured == before + 1


def test_what_is_large_or_written_has_a_graph_for_each_place(pool: atomr_mp.Pool) -> None:
    """A few are kept; others are done step by step, or recorded anew."""
    device = pool.device(0)
    big = 2**19
    one = device.full((), 1.0)
    with device.program() as p:
        x = p.input("x", (big,), "float32")
        p.elementwise.add(x, one, x)
        p.returns(p.elementwise.add(x[-N:], x[-N:]))
    places = [device.zeros((big,)) for _ in range(6)]
    for turn in range(1, 5):
        for place in places:
            result = p.run(x=place).result()
            assert (result.numpy() == 2 * turn).all()
            assert (place.numpy() == turn).all()
    for turn in range(5, 9):
        assert (p.run(x=places[0]).result().numpy() == 2 * turn).all()
    found = counted(pool)
    assert found.captured == 3 * len(places) + 1  # each is dropped before it comes again
    assert found.dropped == found.captured - 4
    assert found.replayed == found.captured + 3


def test_branches_and_loops_are_done_step_by_step(pool: atomr_mp.Pool) -> None:
    """Each condition sees what the device has computed for it: a run gives what Python's does, and is no graph."""
    device = pool.device(0)
    one, limit = device.full((), 1, "int64"), device.full((), 1e-6)
    with device.program() as p:
        x, n = p.input("x", (N, N), "float32"), p.input("n", (), "int64")
        left, turn = p.elementwise.maximum(n, n), p.blas.gemm(x, x)
        large = p.empty((), "bool")
        with p.while_(left, most=40) as loop:
            product = p.blas.gemm(turn, x)
            p.elementwise.greater(p.blas.inner(product.reshape(-1), product.reshape(-1)), limit, large)
            with p.if_(large):
                p.blas.copy(product.reshape(-1), turn.reshape(-1))
            p.elementwise.subtract(left, one, left)
        p.returns(turn, large, loop.rounds, loop.reached_most)
    value = (np.eye(N) / 2).astype(np.float32)
    for rounds in (0, 1, 5, 39, 40, 41):
        expected, was_large = value @ value, False
        for _ in range(min(rounds, 40)):
            product = expected @ value
            was_large = bool((product**2).sum() > 1e-6)
            expected = product if was_large else expected
        found = [each.numpy() for each in p.run(x=value, n=np.int64(rounds)).result()]
        np.testing.assert_array_equal(found[0], expected)  # powers of two
        assert [each.item() for each in found[1:]] == [was_large, min(rounds, 40), rounds > 40]
    figures = counted(pool)
    assert (figures.captured, figures.not_capturable) == (0, 1), told(pool)


def test_after_a_restart_it_is_recorded_anew(pool: atomr_mp.Pool) -> None:
    """The worker is lost between two runs, also by a kill."""
    device = pool.device(0)
    with device.program() as p:
        x = p.input("x", (N, N), "float32")
        p.returns(p.blas.gemm(x, x))
    value = np.eye(N, dtype=np.float32) * 2
    for turn in range(2):
        for _ in range(4):
            np.testing.assert_array_equal(p.run(x=value).result().numpy(), value * 2)
        assert counted(pool).replayed == 3
        if turn == 0:
            pool.restart(0)
            wait_generation(pool, 2)


def test_what_a_step_allocates_is_the_graphs_own(pool: atomr_mp.Pool) -> None:
    """Copies and workspace, which other requests could otherwise get in between."""
    device = pool.device(0)
    with device.program() as p:
        x = p.input("x", (N, 2 * N), "complex64")
        p.returns(p.fft.fft2(p.blas.gemm(x.T, x, conj_a=True)))  # a copy of the conjugated array, in the graph's memory
    random = np.random.default_rng(5)
    for _ in range(4):
        value = (random.uniform(-1, 1, (N, 2 * N)) + 1j).astype(np.complex64)
        expected = np.fft.fft2(value.astype(np.complex128).conj().T @ value)
        made = p.run(x=value).result().numpy()
        assert np.abs(made - expected).max() < 1e-5 * np.abs(expected).max()
        device.fft.fft2(device.put(value)).result()
        device.blas.gemm(device.put(value), device.put(value.T), conj_b=True).result()
    found = counted(pool)
    assert (found.captured, found.capture_failed) == (1, 0), told(pool)
