from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp.libraries.blas import Reference
from atomr_mp.protocol.libraries.base import HALF, element_types
from tests.cases.blas_cases import REQUESTS, assert_agrees
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
def test_results_are_those_of_dense_matrices(name: str) -> None:
    """With any sizes, order, increments and gaps; nothing else is written, and no unneeded memory is read."""
    assert_all_agree(requests(REQUESTS[name]), 300, assert_agrees, run)


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


def test_half_precision_is_rounded_once() -> None:
    """Terms that would be lost one by one are kept: the sum is float32."""
    for dtype in HALF:
        ones = FakeArray.of(np.ones((1, 4096)), dtype)
        small = FakeArray.of(np.full((4096, 1), 2.0**-12), dtype)
        total = FakeArray.of([[1.0]], dtype)
        BLAS.gemm(ones, small, total, beta=1.0)
        assert total.array == 2.0
        BLAS.axpy(FakeArray.of([3.0], dtype), vector := FakeArray.of([1.0], dtype), alpha=1 / 3)
        assert vector.array == 2.0


def test_nrm2_does_not_overflow() -> None:
    """Their squares would."""
    assert BLAS.nrm2(FakeArray.of([3e300, 4e300], "float64")) == pytest.approx(5e300)
    assert BLAS.nrm2(FakeArray.of([3e-30, 4e-30], "float32")) == pytest.approx(5e-30)


def test_a_nan_stays_with_scal_by_zero_and_goes_elsewhere() -> None:
    """As the requests define it, for every type."""
    for dtype in element_types(REQUESTS["scal"]):
        x = FakeArray.of([np.nan, 1.0], dtype)
        BLAS.scal(x, alpha=0.0)
        assert np.isnan(x.array[0])
        assert x.array[1] == 0
        c = FakeArray.of([[np.nan, 1.0]], dtype)
        BLAS.gemm(FakeArray.of([[np.nan]], dtype), FakeArray.of([[1.0, 1.0]], dtype), c, alpha=0.0, beta=0.0)
        assert (c.array == 0).all()


def test_geam_works_in_place() -> None:
    """C may be A or B, or both."""
    c = FakeArray.of(np.arange(12.0).reshape(3, 4), "float64")
    b = FakeArray.of(np.ones((3, 4)), "float64")
    BLAS.geam(c, b, c, alpha=2.0, beta=1.0)
    np.testing.assert_array_equal(c.array, np.arange(12.0).reshape(3, 4) * 2 + 1)
    BLAS.geam(c, c, c, alpha=2.0, beta=-1.0)
    np.testing.assert_array_equal(c.array, np.arange(12.0).reshape(3, 4) * 2 + 1)
    BLAS.geam(b, c, c, alpha=np.nan, beta=0.0)
    assert np.isnan(c.array).all()
    BLAS.geam(b, c, c, alpha=0.0, beta=0.0)
    assert (c.array == 0).all()


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
