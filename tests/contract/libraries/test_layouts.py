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

DRAWS: Final = int(os.environ.get("ATOMR_MP_TEST_DRAWS", "12"))


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
    """Strided, reversed, transposed, broadcast, empty, in place, in the gaps of an input; nothing else is written."""
    run = runner(case.library, backend)

    @given(case.drawn(), st.integers(0, 2**32 - 1))
    @settings(max_examples=DRAWS, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(request: Any, seed: int) -> None:
        try:
            case.assert_agrees(request, np.random.default_rng(seed), run, on_gpu=backend == "cuda")
        except errors.Unsupported:  # what the host has and this GPU has not, or the other way round
            reject()

    agrees()
