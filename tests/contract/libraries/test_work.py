"""A pool's status has the rates that libraries achieve: declared operations and bytes by the time of execution."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.pool_status import WorkFigures
from tests.support import BACKEND, DEADLINE_S, Ledger

pytestmark = pytest.mark.skipif(
    BACKEND != "host", reason="a GPU's time is known in traces: tests/gpu/test_trace_cuda.py"
)

N = 200


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool that the tests share."""
    with Ledger() as ledger, ledger.start() as started:
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
