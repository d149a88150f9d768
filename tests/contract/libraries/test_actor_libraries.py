"""Libraries that an actor calls itself; `tests/pure` proves each request's results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.actors.calculating import N
from tests.support import Ledger
from tests.tolerances import assert_close

TARGET: Final = f"{Path(__file__).parents[2] / 'actors' / 'calculating.py'}:Calculating"


@pytest.fixture(scope="module")
def pool(backend: str) -> Iterator[atomr_mp.Pool]:
    """A pool with the actor."""
    with Ledger() as ledger, ledger.start(TARGET, backend=backend) as pool:
        yield pool


def test_methods_of_the_loop_and_of_threads_get_the_same(pool: atomr_mp.Pool) -> None:
    """The results are those of requests by message, bit for bit; and results of `setup` are there."""
    device, actor = pool.device(0), pool.actor("Calculating")
    x = device.put(np.random.default_rng(3).uniform(-1, 1, (N, N)))
    weights = actor.weights().result()
    assert 0 < weights.numpy().min() < weights.numpy().max() <= 0.5
    expected = device.blas.gemm(x, weights).result().numpy()
    assert_close(expected, x.numpy() @ weights.numpy(), "float64", N)
    for _ in range(3):
        product = actor.product(x).result()
        name, on_thread = actor.product_on_thread(x).result()
        ran = actor.run(x).result()
        np.testing.assert_array_equal(product.numpy(), expected)
        np.testing.assert_array_equal(on_thread.numpy(), expected)
        assert name != "MainThread"
        np.testing.assert_array_equal(ran.numpy(), np.maximum(expected, 0.5))
        np.testing.assert_array_equal(device.blas.copy(ran[0]).result().numpy(), ran.numpy()[0])


def test_an_actor_reads_what_it_has_computed(pool: atomr_mp.Pool) -> None:
    """By the same code on each backend: a copy, the actor's own, of any view."""
    actor, x = pool.actor("Calculating"), pool.device(0).put(np.random.default_rng(5).uniform(-1, 1, (N, N)))
    expected = actor.product(x).result().numpy()
    changed, turned, nothing, one, unchanged = actor.numbers(x).result()
    np.testing.assert_array_equal(changed, expected + 1)
    np.testing.assert_array_equal(turned, expected[::-2].T)
    assert nothing.shape == (0, N)
    assert one.shape == ()
    assert one == expected[2, 3]
    np.testing.assert_array_equal(unchanged, expected)


def test_plans_are_counted_whoever_makes_them(pool: atomr_mp.Pool) -> None:
    """The loop and an actor's thread count separately; the status shows both like those of requests."""
    actor, x = pool.actor("Calculating"), pool.device(0).put(np.eye(N))

    def counted() -> tuple[int, int, int]:
        plans = {each.library: each for each in pool.status().devices[0].plans}
        found = plans.get("program")
        return (0, 0, 0) if found is None else (found.misses, found.hits, found.kept)

    actor.run(x).result()
    for run, new in ((actor.run, 0), (actor.run_on_thread, 1)):
        before = counted()
        for _ in range(3):
            run(x).result()
        misses, hits, kept = (now - then for now, then in zip(counted(), before, strict=True))
        assert (misses, hits, kept) == (new, 3 - new, new)


def test_what_is_written_is_what_the_method_names(pool: atomr_mp.Pool) -> None:
    """All other arrays are read-only, for every method."""
    x = pool.device(0).put(np.ones((2, 4)))
    actor = pool.actor("Calculating")
    actor.scale(x, 3.0)
    assert x.numpy().tolist() == [[3.0] * 4, [1.0] * 4]
    with pytest.raises(errors.InvalidRequest, match=r"blas\.scal: x is written, .* name it in `writes`"):
        actor.spoil(x).result()
    assert actor.norm(x).result() == pytest.approx(6.0)


def test_data_without_a_result_are_the_callers_error(pool: atomr_mp.Pool) -> None:
    """Even if only the device finds out."""
    actor, device = pool.actor("Calculating"), pool.device(0)
    assert actor.choose(device.put(np.array([0.0, 1.0]))).result().numpy().tolist() == [1] * 4
    with pytest.raises(errors.NumericalError, match=r"rng\.choice: p has a weight"):
        actor.choose(device.put(np.array([1.0, -1.0]))).result()


def test_a_worker_imports_nothing_of_the_client(pool: atomr_mp.Pool) -> None:
    """Workers share the methods of libraries, but not the client's way to a pool."""
    assert pool.actor("Calculating").imported().result() == []
