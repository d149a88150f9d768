from __future__ import annotations

import functools
import importlib.util
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomr_mp.protocol.libraries.fft import Transform
from tests.cases.fft_cases import assert_agrees, requests
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.tolerances import assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy"),
]

run: Final = functools.partial(on_device.run, "fft")


@given(requests(), st.integers(0, 2**32 - 1))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_transforms_are_what_their_definition_says(request: Any, seed: int) -> None:
    """Every kind, direction and norm, up to three axes in any order, batches, strides, in place."""
    assert_agrees(request, np.random.default_rng(seed), run)


@given(requests(lengths=(2, 16, 30, 49, 64, 127), most=3), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_larger_lengths_take_other_kernels_and_give_the_same(request: Any, seed: int) -> None:
    """Powers of two, products of small primes, primes."""
    assert_agrees(request, np.random.default_rng(seed), run)


def test_a_plan_is_used_again_with_other_memory() -> None:
    """It depends on how arrays lie, not on where."""
    library = on_device.library("fft")
    random = np.random.default_rng(5)
    first, other = (FakeArray.of(random.uniform(-1, 1, (3, 32)), "complex64") for _ in "xo")
    plan = library.prepare_transform(Transform(first, other))
    assert plan.work_bytes >= 0
    for _ in range(3):
        x = FakeArray.of(random.uniform(-1, 1, (3, 32)) + 1j, "complex64")
        out = FakeArray.of(np.zeros((3, 32)), "complex64")
        expected = np.fft.fft(x.array)
        run(Transform(x, out))
        assert_close(out.array, expected, "complex64", 32, 2.0)
