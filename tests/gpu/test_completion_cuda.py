"""Every strategy by which the loop learns of the end of a GPU's work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp_workers.requests.off_loop.completions import STRATEGIES
from tests.support import ACTORS, DEADLINE_S, PROBE, Ledger, wait_generation
from tests.tolerances import tolerance

pytestmark = pytest.mark.gpu

FAULTY: Final = f"{ACTORS}/faulty.py:Faulty"
N: Final = 256


@pytest.fixture(params=STRATEGIES)
def pool(request: pytest.FixtureRequest, ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """A pool of one GPU that uses one of them."""
    with ledger.start(FAULTY, PROBE, backend="cuda", completion=request.param) as started:
        yield started


def close(found: Any, expected: Any, length: int) -> bool:
    """Return whether numbers in float32 are as they should be."""
    magnitude = float(np.abs(expected).max())
    return np.allclose(found, expected, *tolerance("float32", length, magnitude))


def test_each_answer_comes_when_it_is_right(pool: atomr_mp.Pool) -> None:
    """Products by the dozen, each behind the last, scalars, and results of actors; no thread waits for the device."""
    device, rng = pool.device(), np.random.default_rng(5)
    left, right = (rng.uniform(-1, 1, (N, N)).astype("float32") / 8 for _ in range(2))
    a, b = device.put(left), device.put(right)
    poisoned = np.full((N, N), np.nan, "float32")
    outs = [device.put(poisoned) for _ in range(24)]
    replies = [device.blas.gemm(a, b, out) for out in outs]
    chained = [device.put(poisoned) for _ in range(3)]
    replies += [device.blas.gemm(x, b, y) for x, y in zip([a, *chained], chained, strict=False)]
    norm = device.blas.nrm2(a.reshape(N * N))
    doubled = pool.call("Faulty.double", a)
    for reply in replies:
        reply.result(DEADLINE_S)
    exact = left.astype("float64") @ right.astype("float64")
    assert all(close(out.numpy(), exact, N) for out in outs)
    assert close(chained[2].numpy(), exact @ right.astype("float64") @ right.astype("float64"), 3 * N)
    assert close(norm.result(), np.linalg.norm(left.astype("float64")), N * N)
    assert np.array_equal(doubled.result().numpy(), 2 * left)


def test_a_fault_is_found_and_the_next_worker_works(pool: atomr_mp.Pool) -> None:
    """Even where the loop does not poll, and the faulty request had returned."""
    assert type(pool.call("Faulty.fault", "illegal").exception(DEADLINE_S)) is errors.ContextPoisoned
    wait_generation(pool, 2)
    assert pool.call("Faulty.total", np.ones(10)).result(DEADLINE_S) == 10
    x = pool.device().full((64, 64), 0.5)
    y = pool.device().full((64, 64), float("nan"))
    pool.device().blas.gemm(x, x, y).result(DEADLINE_S)
    assert (y.numpy() == 16).all()


def test_what_takes_long_keeps_nobody_waiting(pool: atomr_mp.Pool, request: pytest.FixtureRequest) -> None:
    """Unless the loop has to wait for each piece of work."""
    pool.call("Faulty.spin", 1).result(DEADLINE_S)
    slow = pool.call("Faulty.spin", 1_000_000_000)
    assert pool.call("Probe.echo", 7).result(DEADLINE_S) == 7
    assert slow.done == (request.node.callspec.params["pool"] == "synchronous")
    assert slow.result(DEADLINE_S).numpy()[3] == 6
