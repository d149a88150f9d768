"""Tensors through a pool; their numbers are proved without processes, in `tests/pure`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import Ledger
from tests.tolerances import assert_close


@pytest.fixture(scope="module")
def pool(backend: str) -> Iterator[atomr_mp.Pool]:
    """A pool."""
    with Ledger() as ledger, ledger.start(backend=backend) as pool:
        yield pool


@pytest.fixture
def device(pool: atomr_mp.Pool) -> atomr_mp.Device:
    """Its device."""
    return pool.device(0)


def numbers(*shape: int, dtype: str = "float32") -> Any:
    """Return random numbers, the same in every run."""
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(dtype)


def test_each_request_gives_what_its_modes_say(device: atomr_mp.Device) -> None:
    """On slices and transposes; outputs that are left out come as refs."""
    a, b, c = numbers(4, 5, 6), numbers(6, 3), numbers(3, 5)
    ra, rb, rc = device.put(a), device.put(b), device.put(c)
    found = device.tensor.contraction(ra, rb, modes_a="xyk", modes_b="kn", modes_c="nyx").result()
    assert_close(found.numpy(), np.einsum("xyk,kn->nyx", a, b), "float32", 6)
    device.tensor.contraction(ra[0], rb, rc, modes_a="yk", modes_b="kn", modes_c="ny", alpha=2, beta=-1).result()
    assert_close(rc.numpy(), 2 * np.einsum("yk,kn->ny", a[0], b) - c, "float32", 6)
    largest = device.tensor.reduction(ra, modes_a="xyk", modes_c="k", op_reduce="max", op_a="abs").result()
    np.testing.assert_array_equal(largest.numpy(), np.abs(a).max((0, 1)))
    turned = device.tensor.permutation(ra, modes_a="xyk", modes_b="kxy", op_a="neg").result()
    np.testing.assert_array_equal(turned.numpy(), -a.transpose(2, 0, 1))
    row = device.put(numbers(6))
    scaled = device.tensor.elementwise_binary(row, ra, modes_a="k", modes_c="xyk", op_ac="mul").result()
    assert_close(scaled.numpy(), a * numbers(6), "float32")
    column = device.put(numbers(5))
    both = device.tensor.elementwise_trinary(row, column, ra, modes_a="k", modes_b="y", modes_c="xyk", op_ab="mul")
    assert_close(both.result().numpy(), np.outer(numbers(5), numbers(6)) + a, "float32")


def test_einsum_is_numpys(device: atomr_mp.Device) -> None:
    """Chains, traces, batches, with the caller's output and with one that is allocated."""
    a, b, c = numbers(8, 4, 4, dtype="complex64"), numbers(4, 7, dtype="complex64"), numbers(7, dtype="complex64")
    refs = [device.put(each) for each in (a, b, c)]
    for subscripts in ("bij,jk,k->bi", "bii,jk,k->bj", "...ij,jk,k"):
        found = device.tensor.einsum(subscripts, *refs).result()
        assert_close(found.numpy(), np.einsum(subscripts, a, b, c), "complex64", 128)
    out = device.empty((4, 8), "complex64")
    assert device.tensor.einsum("bii->ib", refs[0], out=out).result() is None
    np.testing.assert_array_equal(out.numpy(), np.einsum("bii->ib", a))


def test_contractions_are_steps_of_a_program(device: atomr_mp.Device) -> None:
    """Sums of products too."""
    a, b = numbers(6, 6), numbers(6, 6)
    rb = device.put(b)
    with device.program() as p:
        x = p.input("x", (6, 6), "float32")
        y = p.tensor.contraction(x, rb, modes_a="ij", modes_b="jk", modes_c="ki")
        p.returns(p.tensor.einsum("ki,ij,jk->k", y, rb, x))
    found = p.run(x=a).result()
    y_exact = np.einsum("ij,jk->ki", a.astype(np.float64), b)
    assert_close(found.numpy(), np.einsum("ki,ij,jk->k", y_exact, b, a), "float32", 216)


def test_status_says_what_serves(pool: atomr_mp.Pool, backend: str) -> None:
    """On a GPU, where there is a choice."""
    device = pool.device(0)
    a = device.put(numbers(3, 3))
    device.tensor.permutation(a, modes_a="ij", modes_b="ji").result()
    (worker,) = pool.status().devices
    found = {each.library: each.engine for each in worker.plans}
    assert found["tensor"] in ({None} if backend == "host" else {"cuTENSOR", "CuPy"})


def test_a_mistake_is_an_error_in_the_caller(device: atomr_mp.Device) -> None:
    """Nothing is sent."""
    a = device.zeros((4, 4), "float32")
    with pytest.raises(errors.InvalidRequest, match="may be there once"):
        device.tensor.permutation(a, modes_a="ii", modes_b="ii")
