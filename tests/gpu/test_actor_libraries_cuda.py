from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from atomr_mp import errors
from tests.actor_libraries import libraries_on
from tests.cases.library_cases import CASES, Case, call
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.gpu.on_device import device, over, placed, synchronize

pytestmark = on_device.NEEDS_CUPY


@functools.cache
def stream() -> Any:
    """Return the stream of an actor."""
    return device().make_stream("actor", inline_bytes=0)


@functools.cache
def libraries() -> Any:
    """Return the libraries of that actor."""
    return libraries_on(device(), "cuda", stream())


def run(case: Case, request: Any, *, as_arrays: bool, runs: int) -> Any:
    """Have a request done on memory that travels to the GPU and back.

    Args:
        case: What it is.
        request: The request.
        as_arrays: Whether CuPy's arrays are given, not `DeviceArray`s.
        runs: In a program, how often that is run; 0 for a request by itself.
    """
    arrays = {array.number: array for _, _, array in request.arrays() if isinstance(array, FakeArray)}
    there = {number: device().make_slab(array.slab.nbytes) for number, array in arrays.items()}

    def fill() -> None:
        for number, array in arrays.items():
            over(there[number]).set(array.slab)
        synchronize()

    def argument(array: Any) -> Any:
        on_device = placed(there[array.number], array)
        return on_device.array if as_arrays and on_device.attached is None else on_device

    fill()
    with stream().stream:
        if not runs:
            result = call(libraries(), case.library, request, argument)
        else:
            with libraries().program() as p:
                call(p, case.library, request, argument)
            for _ in range(runs):
                fill()
                result = p.run()
                synchronize()
    synchronize()
    for number, array in arrays.items():
        array.slab[:] = over(there[number]).get()
    return result


@pytest.mark.parametrize(
    ("case", "runs"),
    [
        pytest.param(case, runs, id=f"{case.name} {'in a program' if runs else 'directly'}")
        for case in CASES
        if case.is_on("cuda")
        for runs in (0, 3)
        if not (runs and case.request.answers)  # with a number, which no step can
    ],
)
def test_every_request_gives_in_an_actor_what_it_gives_by_message(case: Case, runs: int) -> None:
    """On arrays of any layout; nothing else is written."""

    @given(case.drawn(), st.integers(0, 2**32 - 1), st.booleans())
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(request: Any, seed: int, as_arrays: bool) -> None:  # noqa: FBT001 - drawn
        as_arrays = as_arrays and not any("float8" in array.dtype for _, _, array in request.arrays() if array)
        one = functools.partial(run, case, as_arrays=as_arrays, runs=runs)
        try:
            case.assert_agrees(request, np.random.default_rng(seed), one, on_gpu=True)
        except errors.Unsupported:  # what the host has and this GPU has not
            reject()

    agrees()


def test_another_stream_than_the_actors_is_refused() -> None:
    """The work on the two streams would have no order."""
    import cupy

    ones = cupy.ones((4, 4))
    synchronize()
    with stream().stream:
        product = libraries().blas.gemm(ones, ones)
    synchronize()
    assert (product.array.get() == 4).all()
    with cupy.cuda.Stream(), pytest.raises(errors.InvalidRequest, match="another one is current"):
        libraries().blas.gemm(ones, ones)
    with stream().stream, pytest.raises(errors.InvalidRequest, match="an array on the GPU"):
        libraries().blas.gemm(np.ones((4, 4)), ones)
