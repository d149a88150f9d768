from __future__ import annotations

from typing import Final

import pytest

from tests.cases.solver_cases import FAILING, REQUESTS, assert_agrees, assert_fails, requests
from tests.direct import assert_all_agree, host_actor, run_by

run: Final = run_by(host_actor("solver"))


@pytest.mark.parametrize("name", REQUESTS)
def test_results_are_those_of_dense_matrices(name: str) -> None:
    """Whatever sizes, order, strides and gaps; nothing else is written, and nothing read that is not to be."""
    assert_all_agree(requests(REQUESTS[name]), 30, assert_agrees, run)


@pytest.mark.parametrize("case", range(len(FAILING)))
def test_data_without_a_result_are_an_error_that_says_where(case: int) -> None:
    """Singular and indefinite matrices, pivots that are no rows: which matrix, which row, what is undefined."""
    assert_fails(run, case)
