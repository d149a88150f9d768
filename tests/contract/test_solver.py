"""Solvers through a pool; their numbers are proved without processes, in `tests/pure`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import Ledger
from tests.tolerances import assert_close


@pytest.fixture(scope="module")
def device(backend: str) -> Iterator[atomr_mp.Device]:
    """A device."""
    with Ledger() as ledger, ledger.start(backend=backend) as pool:
        yield pool.device(0)


def test_factors_are_used_by_the_next_request(device: atomr_mp.Device) -> None:
    """In place, with pivots that are allocated; of transposed views too."""
    random = np.random.default_rng(3)
    a, b = random.uniform(-1, 1, (20, 20)), random.uniform(-1, 1, (20, 3))
    for factors, trans in ((device.put(a), "N"), (device.put(a.T.copy()).T, "N"), (device.put(a.T.copy()), "T")):
        x, pivots = device.put(b), device.solver.getrf(factors).result()
        assert (pivots.shape, pivots.dtype) == ((20,), "int64")
        assert device.solver.getrs(factors, pivots, x, trans=trans).result() is None
        assert_close(a @ x.numpy(), b, "float64", 1000)


def test_a_matrix_without_a_factor_fails_its_request_and_its_readers(device: atomr_mp.Device) -> None:
    """What was to be factored is undefined; the next matrix is factored."""
    a = np.broadcast_to(np.eye(5), (4, 5, 5)).copy()
    a[2, 3, 3] = -1
    factors, b = device.put(a), device.put(np.ones((4, 5, 1)))
    failed = device.solver.potrf_batched(factors)
    behind = device.solver.potrs_batched(factors, b)
    with pytest.raises(errors.NumericalError, match="matrix 2 is not positive definite") as told:
        failed.result()
    assert (told.value.library, told.value.batch, told.value.row) == ("solver", 2, 3)
    with pytest.raises(errors.GpuRefUndefined):
        behind.result()
    device.solver.potrf(device.put(np.eye(5))).result()


def test_a_program_names_the_step_whose_matrix_is_singular(device: atomr_mp.Device) -> None:
    """A program of factors and solutions gives what its requests give."""
    with device.program() as p:
        a, b = p.input("a", (6, 6), "float64"), p.input("b", (6, 1), "float64")
        p.solver.getrs(a, p.solver.getrf(a), b)
    a_ref, b_ref = device.put(2 * np.eye(6)), device.put(np.ones((6, 1)))
    p.run(a=a_ref, b=b_ref).result()
    assert_close(b_ref.numpy(), np.full((6, 1), 0.5), "float64")
    with pytest.raises(errors.NumericalError, match=r"step 0 \(solver.getrf\)"):
        p.run(a=device.zeros((6, 6), "float64"), b=device.put(np.ones((6, 1)))).result()
