"""A pool's status has the rates that libraries achieve: declared operations and bytes by the time of execution."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.pool_status import WorkFigures
from tests.actors.kerneled import NAMES, SOURCE
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger

pytestmark = pytest.mark.skipif(
    BACKEND != "host", reason="a GPU's time is known in traces: tests/gpu/test_trace_cuda.py"
)

N = 200


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool that the tests share."""
    with Ledger() as ledger, ledger.start(f"{ACTORS}/kerneled.py:Kerneled") as started:
        yield started


def work(pool: atomr_mp.Pool) -> dict[str, WorkFigures]:
    """Return the figures of the first device, by method."""
    return {each.method: each for each in pool.status().devices[0].work}


def test_products_and_copies_have_their_rates(pool: atomr_mp.Pool) -> None:
    """A product of n by n matrices is 2 n³ operations, and reads and writes 3 n² elements at least."""
    device = pool.device(0)
    a = device.put(np.ones((N, N)))
    for _ in range(3):
        device.blas.gemm(a, a).result()
    a.fill(2.0)
    with pytest.raises(errors.NumericalError):
        device.solver.cholesky(device.put(np.zeros((4, 4)))).result()
    found = work(pool)
    product = found["blas.gemm"]
    assert product.requests == 3
    assert 0 < product.mean_s < DEADLINE_S
    assert product.gflops == pytest.approx(2 * N**3 / product.mean_s / 1e9, rel=1e-3)
    assert product.gbytes_per_s is not None
    assert product.gbytes_per_s >= 0.999 * 3 * 8 * N**2 / product.mean_s / 1e9
    fill = found["memory.fill"]
    assert (fill.requests, fill.gflops) == (1, None)
    assert fill.gbytes_per_s == pytest.approx(8 * N**2 / fill.mean_s / 1e9, rel=1e-3)
    assert not {"solver.cholesky", "memory.empty", "memory.borrow"} & found.keys()


def test_runs_of_programs_have_the_rates_of_their_steps(pool: atomr_mp.Pool) -> None:
    """Those of each round of a loop, too; and a run whose steps declare nothing has its time alone."""
    device = pool.device(0)
    a, one = device.put(np.ones((N, N))), device.full((), 1, "int64")
    with device.program() as p:
        n = p.input("n", (), "int64")
        left = p.elementwise.maximum(n, n)
        with p.while_(left, most=10):
            p.blas.gemm(a, a)
            p.elementwise.subtract(left, one, left)
    rounds = 0
    for n_of_run in (1, 3):
        p.run(n=np.int64(n_of_run)).result(DEADLINE_S)
        rounds += n_of_run
    found = work(pool)["program.run"]
    assert found.requests == 2
    assert 0 < found.mean_s < DEADLINE_S
    assert found.gflops is not None
    assert found.gflops * found.mean_s * 2 == pytest.approx(rounds * 2 * N**3 / 1e9, rel=0.01)


def test_launches_of_kernels_have_their_time(pool: atomr_mp.Pool) -> None:
    """They declare no work, so there are no rates."""
    device = pool.device(0)
    module = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
    x = device.put(np.ones(8, np.float32))
    for _ in range(2):
        module["scale<float>"](x, 3.0, 5, grid=1, block=8, inout=x).result(DEADLINE_S)
    found = work(pool)["kernels.launch"]
    assert (found.requests, found.gflops, found.gbytes_per_s) == (2, None, None)
    assert 0 < found.mean_s < DEADLINE_S
