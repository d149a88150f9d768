from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.libraries.base import FULL
from atomr_mp.protocol.libraries.solver import Spsolve
from tests.cases import sparse_cases
from tests.cases.solver_cases import FAILING, assert_fails
from tests.direct import host_actor, run_by
from tests.fakes.fake_arrays import FakeArray

run: Final = run_by(host_actor("solver"))


@pytest.mark.parametrize("case", range(len(FAILING)))
def test_data_without_a_result_are_an_error_that_says_where(case: int) -> None:
    """Singular and indefinite matrices, pivots that are no rows: which matrix, which row, what is undefined."""
    assert_fails(run, case)


def spsolve(a: Any, b: Any, dtype: str, method: Any) -> Any:
    """Solve a system whose matrix is stored as sparse."""
    matrix = sparse_cases.matrix_of(sparse_cases.of_mask("csr", a != 0), dtype)
    matrix.data.array[...] = a[a != 0]  # type: ignore[attr-defined]
    x = FakeArray.of(np.zeros(b.shape), dtype)
    run(Spsolve(matrix, FakeArray.of(b, dtype), x, method=method))
    return x.array


@given(st.sampled_from(FULL), st.integers(1, 12), st.integers(0, 2**32 - 1), st.sampled_from([1e-6, 1.0, 1e6]))
@settings(max_examples=80)
def test_a_matrix_that_was_computed_has_cholesky_factors(dtype: str, n: int, seed: int, scale: float) -> None:
    """A product x·xᴴ is Hermitian up to rounding only; one that is not Hermitian is refused still."""
    random = np.random.default_rng(seed)
    x = (random.normal(size=(n, n)) + 1j * random.normal(size=(n, n))).astype("complex128") * (
        random.random((n, n)) < 0.5
    )
    x = (x if dtype.startswith("complex") else x.real).astype(dtype)
    rows = np.sqrt(scale) ** random.integers(-1, 2, n).astype(x.real.dtype)
    a = rows[:, None] * (x @ x.conj().T + np.eye(n, dtype=x.real.dtype)) * rows * 1.1
    b = (rows * random.normal(size=n)).astype(dtype)
    found = spsolve(a, b, dtype, "cholesky")
    error = np.abs(a @ found - b) / (np.abs(a) @ np.abs(found) + np.abs(b))
    assert error.max() < 100 * n * np.finfo(dtype).eps
    if n > 1:
        a[0, 1] = a[1, 0].conj() + 0.01 * np.sqrt(a[0, 0] * a[1, 1])
        with pytest.raises(errors.NumericalError):
            spsolve(a, b, dtype, "cholesky")
