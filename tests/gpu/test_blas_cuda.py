from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp.libraries.blas import Reference
from tests.cases.blas_cases import FACTS, REQUESTS, assert_agrees
from tests.declared import requests
from tests.direct import DirectDevice, assert_all_agree
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.gpu.on_device import device, library, over, placed, synchronize
from tests.tolerances import assert_close

pytestmark = on_device.NEEDS_CUPY

run: Final = functools.partial(on_device.run, "blas")


BLAS: Final[Any] = Reference(DirectDevice(run))


@pytest.mark.parametrize("name", REQUESTS)
def test_larger_sizes_take_other_kernels_and_give_the_same(name: str) -> None:
    """Tiles that are full, and those at the edges that are not."""
    sizes = (1, 31, 64, 65) if name == "trsm" else (1, 33, 64, 129, 200)  # a solution's error grows with its size
    assert_all_agree(requests(REQUESTS[name], sizes), 60, assert_agrees, run)


@pytest.mark.parametrize("n", [1000, 2**20 + 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_long_vectors_are_summed_and_searched(dtype: str, n: int) -> None:
    """Many blocks work on one sum; the first of equal numbers is found."""
    x = FakeArray.of(np.random.default_rng(n).integers(-8, 9, n) * (1 + (1j if "complex" in dtype else 0)), dtype)
    exact = x.array.astype(np.complex128 if x.array.dtype.kind == "c" else np.float64)
    sizes = np.abs(exact.real) + np.abs(exact.imag)
    assert_close(BLAS.asum(x), sizes.sum(), dtype, n, 16.0)
    assert_close(BLAS.nrm2(x), np.linalg.norm(exact), dtype, n)
    assert_close(BLAS.dot(x, x), np.sum(exact * exact), dtype, n, 128.0)
    assert_close(BLAS.dot(x, x, conjugate=True), np.sum(np.abs(exact) ** 2), dtype, n, 128.0)
    assert BLAS.iamax(x) == sizes.argmax()
    assert BLAS.iamin(x) == sizes.argmin()


def test_scalars_of_many_requests_under_way_do_not_mix() -> None:
    """Each has a slot of its own until it is read; then another request gets it."""
    numbers = FakeArray.of(np.arange(600.0), "float64")
    slab = device().make_slab(numbers.slab.nbytes)
    over(slab).set(numbers.slab)
    synchronize()
    vector, stream = placed(slab, numbers), library("blas").stream.stream
    for _ in range(2):
        with stream:
            pending = [library("blas").asum(request_of("asum", vector[i : i + 1])) for i in range(600)]
        stream.synchronize()
        assert [later.read() for later in pending] == list(range(600))


def request_of(name: str, x: Any) -> Any:
    """Return a request of one vector."""
    made: Any = REQUESTS[name]
    return made(x)


def test_float32_is_not_rounded_to_less() -> None:
    """No TF32: its products would be off by 2⁻¹¹."""
    random = np.random.default_rng(3)
    a, b = (random.uniform(-1, 1, (512, 512)).astype(np.float32) for _ in "ab")
    c = FakeArray.of(np.zeros((512, 512)), "float32")
    BLAS.gemm(FakeArray.of(a, "float32"), FakeArray.of(b, "float32"), c)
    assert_close(c.array, a.astype(np.float64) @ b.astype(np.float64), "float32", 512)


@pytest.mark.parametrize("fact", FACTS)
def test_what_is_promised_of_numbers_holds(fact: Callable[[Any], None]) -> None:
    """On every backend alike."""
    fact(BLAS)


def test_nothing_waits_for_the_device() -> None:
    """Requests return while the stream is held up, scalars too."""
    import cupy

    x = FakeArray.of(np.ones(8), "float32")
    run(request_of("asum", x))  # what is loaded at first use is loaded
    slab = device().make_slab(x.slab.nbytes)
    over(slab).set(x.slab)
    stream = library("blas").stream.stream
    hold = cupy.RawKernel('extern "C" __global__ void hold(volatile int* go) { while (!*go) {} }', "hold")
    page = cupy.cuda.alloc_pinned_memory(4)
    go = np.frombuffer(page, np.int32, 1)
    go[0] = 0
    synchronize()
    with stream:
        try:
            hold((1,), (1,), (np.uintp(page.ptr),))
            later = library("blas").asum(request_of("asum", placed(slab, x)))
            assert not stream.done
        finally:
            go[0] = 1
    stream.synchronize()
    assert later.read() == 8
