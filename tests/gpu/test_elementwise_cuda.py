from __future__ import annotations

import functools
import importlib.util
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases.elementwise_cases import REQUESTS, assert_agrees, requests
from tests.gpu import on_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy"),
]

run: Final = functools.partial(on_device.run, "elementwise")


@pytest.mark.parametrize("name", REQUESTS)
def test_results_are_numpys(name: str) -> None:
    """Of every type, however arrays lie, broadcast and in place; nothing else is written."""

    @given(requests(REQUESTS[name]), st.integers(0, 2**32 - 1))
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(request: Any, seed: int) -> None:
        assert_agrees(request, np.random.default_rng(seed), run)

    agrees()
