from __future__ import annotations

import tracemalloc
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp.libraries.blas import Reference
from atomr_mp.protocol.libraries.base import HALF
from tests.cases.blas_cases import REQUESTS, assert_agrees
from tests.declared import requests
from tests.direct import DirectDevice, assert_all_agree, host_actor, run_by
from tests.fakes.fake_arrays import FakeArray
from tests.tolerances import assert_close

run: Final = run_by(host_actor("blas"))
BLAS: Final[Any] = Reference(DirectDevice(run))


@pytest.mark.parametrize("name", REQUESTS)
def test_results_are_those_of_dense_matrices(name: str) -> None:
    """Whatever sizes, order, strides and gaps; nothing else is written, and nothing read that is not to be."""
    assert_all_agree(requests(REQUESTS[name]), 100, assert_agrees, run)


def test_half_precision_is_rounded_once() -> None:
    """Terms that each would be lost in the sum are not: the sum is float32."""
    for dtype in HALF:
        ones = FakeArray.of(np.ones((1, 1024)), dtype)
        small = FakeArray.of(np.full((1024, 1), 2.0**-10), dtype)
        total = FakeArray.of([[1.0]], dtype)
        BLAS.gemm(ones, small, total, beta=1.0)
        assert total.array == 2.0
        BLAS.axpy(FakeArray.of([3.0], dtype), vector := FakeArray.of([1.0], dtype), alpha=1 / 3)
        assert vector.array == 2.0


def test_nrm2_does_not_overflow() -> None:
    """The squares would."""
    assert BLAS.nrm2(FakeArray.of([3e300, 4e300], "float64")) == pytest.approx(5e300)
    assert BLAS.nrm2(FakeArray.of([3e-30, 4e-30], "float32")) == pytest.approx(5e-30)


def test_a_nan_stays_with_scal_by_zero_and_goes_elsewhere() -> None:
    """A factor of 0 leaves unread what it multiplies, but for scal, as BLAS defines it."""
    x = FakeArray.of([np.nan, 1.0], "float32")
    BLAS.scal(x, alpha=0)
    np.testing.assert_array_equal(x.array, [np.nan, 0])
    c = FakeArray.of([[np.nan]], "float32")
    BLAS.gemm(FakeArray.of([[1.0]], "float32"), FakeArray.of([[2.0]], "float32"), c)
    assert c.array == 2


def test_indices_count_from_0() -> None:
    """The first of several is found."""
    x = FakeArray.of([2, -7, 0, 7, 0], "float64")
    assert BLAS.iamax(x) == 1
    assert BLAS.iamin(x) == 2
    assert BLAS.iamax(x[::3]) == 1


@pytest.mark.parametrize("conj_a", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_conjugate_needs_no_transpose(order: str, *, conj_a: bool) -> None:
    """Whatever the orders of the operands and of the result."""
    random = np.random.default_rng(3)
    dense = random.uniform(-1, 1, (3, 3)) + 1j * random.uniform(-1, 1, (3, 3))
    a, c = FakeArray.of(dense, "complex128", order), FakeArray.of(np.zeros((3, 3)), "complex128")
    BLAS.gemm(a, a, c, conj_a=conj_a)
    assert_close(c.array, (dense.conj() if conj_a else dense) @ dense, "complex128", 3)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("gap", [0, 5])
def test_gemm_copies_no_matrix(order: str, gap: int) -> None:
    """BLAS works on the memory itself, whatever the order and the leading dimension."""
    a, b, c = (FakeArray.of(np.ones((600 + gap, 600 + gap)), "float32", order)[:600, :600] for _ in "abc")
    for left in (a, a.transpose()):
        tracemalloc.start()
        try:
            BLAS.gemm(left, b, c)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < a.nbytes / 10
        assert (c.array == 600).all()
