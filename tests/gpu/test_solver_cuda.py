from __future__ import annotations

import functools
import importlib.util
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomr_mp.protocol.libraries.base import LibraryRequest
from tests.declared import requests
from tests.gpu import on_device
from tests.solver_cases import FAILING, REQUESTS, assert_agrees, assert_fails

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy"),
]

run: Final = functools.partial(on_device.run, "solver")


@pytest.mark.parametrize("name", REQUESTS)
def test_results_are_those_of_dense_matrices(name: str) -> None:
    """Whatever sizes, order, strides and gaps; nothing else is written, and nothing read that is not to be."""

    @given(requests(REQUESTS[name]), st.integers(0, 2**32 - 1))
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(request: LibraryRequest, seed: int) -> None:
        assert_agrees(request, np.random.default_rng(seed), run)

    agrees()


@pytest.mark.parametrize("name", REQUESTS)
def test_larger_matrices_take_other_kernels_and_give_the_same(name: str) -> None:
    """Blocks of many sizes, and what is left beside them."""

    @given(requests(REQUESTS[name], (1, 31, 64, 129, 300)), st.integers(0, 2**32 - 1))
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(request: LibraryRequest, seed: int) -> None:
        assert_agrees(request, np.random.default_rng(seed), run)

    agrees()


def test_hundreds_of_data_without_a_result_harm_nothing() -> None:
    """Each is an error that says where, and after all of them the context is well."""
    for _ in range(300 // len(FAILING) + 1):
        for case in range(len(FAILING)):
            assert_fails(run, case)
    test_results_are_those_of_dense_matrices("potrf")


def test_nothing_waits_for_the_device() -> None:
    """A factorisation is enqueued while the stream is held up, and told when it has ended."""
    import cupy

    make, *_ = FAILING[3]
    request: Any = make()
    run_failing = pytest.raises(Exception, match="not positive definite")
    with run_failing:
        run(request)  # what is loaded at first use is loaded
    slab = on_device.device().make_slab(request.a.slab.nbytes)
    on_device.over(slab).set(request.a.slab)
    stream = on_device.library("solver").stream.stream
    hold = cupy.RawKernel('extern "C" __global__ void hold(volatile int* go) { while (!*go) {} }', "hold")
    page = cupy.cuda.alloc_pinned_memory(4)
    go = np.frombuffer(page, np.int32, 1)
    go[0] = 0
    on_device.synchronize()
    with stream:
        try:
            hold((1,), (1,), (np.uintp(page.ptr),))
            later = on_device.started("solver", type(request)(on_device.placed(slab, request.a)))
            assert not stream.done
        finally:
            go[0] = 1
    stream.synchronize()
    with pytest.raises(Exception, match="not positive definite"):
        later.read()
