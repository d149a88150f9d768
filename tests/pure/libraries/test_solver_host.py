from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.libraries.solver import host
from tests.cases.solver_cases import FAILING, REQUESTS, assert_agrees, assert_fails, requests

ACTOR: Final[Any] = host.Implementation.__new__(host.Implementation)


def run(request: LibraryRequest) -> Any:
    """Do a request on the host's actor."""
    return getattr(ACTOR, request.name)(request)


@pytest.mark.parametrize("name", REQUESTS)
def test_results_are_those_of_dense_matrices(name: str) -> None:
    """Whatever sizes, order, strides and gaps; nothing else is written, and nothing read that is not to be."""

    @given(requests(REQUESTS[name]), st.integers(0, 2**32 - 1))
    @settings(max_examples=30, deadline=None)
    def agrees(request: LibraryRequest, seed: int) -> None:
        assert_agrees(request, np.random.default_rng(seed), run)

    agrees()


@pytest.mark.parametrize("case", range(len(FAILING)))
def test_data_without_a_result_are_an_error_that_says_where(case: int) -> None:
    """Singular and indefinite matrices, pivots that are no rows: which matrix, which row, what is undefined."""
    assert_fails(run, case)
