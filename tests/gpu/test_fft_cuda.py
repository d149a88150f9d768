from __future__ import annotations

import functools
from typing import Final

import numpy as np

from atomr_mp.protocol.libraries.fft import Transform
from tests.cases.fft_cases import assert_agrees, requests
from tests.direct import assert_all_agree
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.tolerances import assert_close

pytestmark = on_device.NEEDS_CUPY

run: Final = functools.partial(on_device.run, "fft")


def test_larger_lengths_take_other_kernels_and_give_the_same() -> None:
    """Powers of two, products of small primes, primes."""
    assert_all_agree(requests(lengths=(2, 16, 30, 49, 64, 127), most=3), 40, assert_agrees, run)


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
