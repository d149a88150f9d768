"""Every request of every library on both backends, against NumPy in double precision, however its arrays lie.

`ATOMR_MP_TEST_DRAWS=5000` draws so many requests of each kind, for a run by hand; add `--timeout=0`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from atomr_mp import errors
from tests.cases.library_cases import CASES, Case
from tests.direct import host_actor, run_by

DRAWS: Final[dict[str, int]] = {
    backend: int(os.environ.get("ATOMR_MP_TEST_DRAWS", count)) for backend, count in (("host", 30), ("cuda", 100))
}
TIMES: Final = {"blas_lt.matmul": 4, "fft.transform": 4}
"""Requests of so many parameters that more of them are drawn, and how many times as many."""


@functools.cache
def runner(library: str, backend: str) -> Callable[[Any], Any]:
    """Return the function that has a library do a request on this process's own device of a backend."""
    if backend == "host":
        return run_by(host_actor(library))
    pytest.importorskip("cupy")
    from tests.gpu import on_device

    return functools.partial(on_device.run, library)


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case.name} however it lies") for case in CASES])
def test_every_request_agrees_with_numpy_however_its_arrays_lie(case: Case, backend: str) -> None:
    """Strided, reversed, transposed, broadcast, empty, in place, in the gaps of an input, with any sizes and options.

    Nothing else is written, and nothing read that is not to be.
    """
    if not case.is_on(backend):
        pytest.skip(f"{case.library} is not on the {backend} backend")
    run = runner(case.library, backend)
    draws = DRAWS[backend] * TIMES.get(case.name, 1)

    @given(case.drawn(), st.integers(0, 2**32 - 1))
    @settings(max_examples=draws, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(request: Any, seed: int) -> None:
        try:
            case.assert_agrees(request, np.random.default_rng(seed), run, on_gpu=backend == "cuda")
        except errors.Unsupported:  # what the host has and this GPU has not, or the other way round
            reject()

    agrees()
