from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp.libraries.blas import Reference
from tests.cases.blas_cases import FACTS
from tests.direct import DirectDevice, host_actor, run_by
from tests.fakes.fake_arrays import FakeArray
from tests.tolerances import assert_close

run: Final = run_by(host_actor("blas"))
BLAS: Final[Any] = Reference(DirectDevice(run))


@pytest.mark.parametrize("fact", FACTS)
def test_what_is_promised_of_numbers_holds(fact: Callable[[Any], None]) -> None:
    """On every backend alike."""
    fact(BLAS)


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
