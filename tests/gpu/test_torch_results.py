"""Torch's tensors as results: refs to copies in memory of the caller's own, which torch uses no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest

import atomr_mp
from tests.support import ACTORS, Ledger

pytestmark = pytest.mark.gpu

TENSORS: Final = f"{ACTORS}/tensors.py:Tensors"


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool of one GPU."""
    pytest.importorskip("torch")
    with Ledger() as ledger, ledger.start(TENSORS, backend="cuda") as started:
        yield started


def copied(pool: atomr_mp.Pool) -> int:
    """Return how many results were copied so far."""
    return pool.device().statistics()["copied_results"]


@pytest.mark.parametrize("method", ["counted", "counted_on_thread"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8", "complex64", "bool"])
def test_a_tensor_is_a_ref_to_a_copy(pool: atomr_mp.Pool, method: str, dtype: str) -> None:
    """Of its element type, with what it had; it is counted, and an argument again."""
    before = copied(pool)
    ref = pool.call(f"Tensors.{method}", 100, dtype, 3).result()
    assert isinstance(ref, atomr_mp.GpuRef)
    assert np.array_equal(ref.numpy(), np.arange(3, 103).astype(dtype))
    assert copied(pool) == before + 1
    if dtype not in {"complex64", "bool"}:
        assert pool.call("Tensors.total", ref).result() == np.arange(3, 103).astype(dtype).sum(dtype="float64")


def test_how_it_lies_does_not_matter(pool: atomr_mp.Pool) -> None:
    """Also where elements are not next to each other, or there are none."""
    ref = pool.call("Tensors.turned", 30, 50).result()
    assert np.array_equal(ref.numpy(), np.arange(1500.0).reshape(30, 50).T[:, ::2])
    assert pool.call("Tensors.counted", 0, "float32", 0).result().shape == (0,)


def test_tensors_among_other_results(pool: atomr_mp.Pool) -> None:
    """Each by itself."""
    found = pool.call("Tensors.several", 10).result()
    assert np.array_equal(found["one"].numpy(), np.arange(10, dtype="float32"))
    assert np.array_equal(found["others"][0].numpy(), np.arange(10))
    assert found["others"][1] == "text"


@pytest.mark.parametrize("method", ["counted", "counted_on_thread"])
def test_memory_that_torch_uses_again_is_not_the_caller_s(pool: atomr_mp.Pool, method: str) -> None:
    """Though the tensor was dropped before the device had copied it."""
    count = 1_000_000
    replies = [pool.call(f"Tensors.{method}", count, "float32", first) for first in range(40)]
    for first, reply in enumerate(replies):
        found = reply.result().numpy()
        assert (found[0], found[-1]) == (first, first + count - 1)
        assert np.array_equal(found, np.arange(first, first + count, dtype="float32"))


def test_what_the_actor_writes_later_is_not_in_the_result(pool: atomr_mp.Pool) -> None:
    """It is a copy of that moment."""
    replies = []
    for _ in range(20):
        replies.append(pool.call("Tensors.kept"))
        pool.call("Tensors.add_to_kept")
    first = float(replies[0].result().numpy()[0])
    for number, reply in enumerate(replies):
        assert np.array_equal(reply.result().numpy(), np.full(1000, first + number, "float32"))
