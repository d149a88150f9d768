"""BLAS through a pool: every request, in every order of memory, against NumPy in double precision.

`tests/pure` proves numbers, strides and checks without processes; the tests here prove that requests, refs and streams
carry them there and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries import blas as messages
from atomr_mp.protocol.libraries.base import element_types
from tests.support import Ledger
from tests.tolerances import assert_close

Array = np.ndarray[Any, Any]

ALPHA: Final = 1.5
BETA: Final = -0.5
M, N, K = 33, 29, 41


@pytest.fixture(scope="module", params=[0, 2**40], ids=["by the stream's thread", "by the loop"])
def device(request: pytest.FixtureRequest, backend: str) -> Iterator[atomr_mp.Device]:
    """A device whose requests are forced onto streams, or on the host onto the loop."""
    with Ledger() as ledger, ledger.start(backend=backend, inline_bytes=request.param) as pool:
        yield pool.device(0)


def some(random: np.random.Generator, dtype: str, *shape: int) -> Array:
    """Return random elements of a type, exactly as it holds them."""
    values = random.uniform(-1, 1, shape)
    if dtype.startswith("complex"):
        values = values + 1j * random.uniform(-1, 1, shape)
    return values.astype(dtypes.to_numpy(dtype))


def wide(array: Array) -> Array:
    """Return an array in double precision."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


@pytest.mark.parametrize("dtype", element_types(messages.Gemm))
@pytest.mark.parametrize("transposed", [False, True])
def test_gemm_takes_operands_of_either_order(
    device: atomr_mp.Device, random: np.random.Generator, dtype: str, *, transposed: bool
) -> None:
    """The refs' strides tell their layouts; beta decides how much of C stays."""
    a, b, c = some(random, dtype, M, K), some(random, dtype, K, N), some(random, dtype, M, N)
    left = device.put(a.T).T if transposed else device.put(a)
    right, result = device.put(b), device.put(c)
    device.blas.gemm(left, right, result, alpha=ALPHA, beta=BETA).result()
    assert_close(result.numpy(), ALPHA * wide(a) @ wide(b) + BETA * wide(c), dtype, K)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_level_one_requests_give_what_blas_defines(
    device: atomr_mp.Device, random: np.random.Generator, dtype: str
) -> None:
    """Vectors may be slices; scalars come back in the reply."""
    blas = device.blas
    x, y = some(random, dtype, 2 * N), some(random, dtype, N)
    rx, ry = device.put(x)[::2], device.put(y)
    x = x[::2]
    size = np.abs(wide(x).real) + np.abs(wide(x).imag)
    assert_close(blas.dot(rx, ry).result(), wide(x) @ wide(y), dtype, N)
    assert_close(blas.nrm2(rx).result(), np.linalg.norm(wide(x)), dtype.replace("complex128", "float64"), N)
    assert_close(blas.asum(rx).result(), size.sum(), dtype.replace("complex128", "float64"), N)
    assert blas.iamax(rx).result() == size.argmax()
    assert blas.iamin(rx).result() == size.argmin()
    blas.axpy(rx, ry, alpha=ALPHA).result()
    expected = ALPHA * wide(x) + wide(y)
    assert_close(ry.numpy(), expected, dtype)
    blas.scal(ry, alpha=BETA).result()
    assert_close(ry.numpy(), BETA * expected, dtype)
    blas.rot(rx, ry, c=0.6, s=0.8).result()
    first, second = 0.6 * wide(x) + 0.8 * BETA * expected, 0.6 * BETA * expected - 0.8 * wide(x)
    assert_close(rx.numpy(), first, dtype)
    assert_close(ry.numpy(), second, dtype)
    blas.swap(rx, ry).result()
    assert_close(rx.numpy(), second, dtype)
    blas.copy(rx, ry).result()
    assert_close(ry.numpy(), second, dtype)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_level_two_and_three_requests_give_what_blas_defines(
    device: atomr_mp.Device, random: np.random.Generator, dtype: str
) -> None:
    """Arrays that a request does not name as written stay unchanged."""
    blas = device.blas
    a, x, y = some(random, dtype, M, N), some(random, dtype, N), some(random, dtype, M)
    ra, rx, ry = device.put(a), device.put(x), device.put(y)
    blas.gemv(ra, rx, ry, alpha=ALPHA, beta=BETA).result()
    assert_close(ry.numpy(), ALPHA * wide(a) @ wide(x) + BETA * wide(y), dtype, N)
    ry = device.put(y)
    blas.ger(ra, ry, rx, alpha=ALPHA).result()
    assert_close(ra.numpy(), wide(a) + ALPHA * np.outer(wide(y), wide(x)), dtype)
    ra, total = device.put(a), device.empty((M, N), dtype)
    blas.geam(ra, ra, total, alpha=ALPHA, beta=BETA).result()
    assert_close(total.numpy(), (ALPHA + BETA) * wide(a), dtype)
    square = device.zeros((M, M), dtype)
    blas.syrk(ra, square, uplo="L").result()
    assert_close(square.numpy(), np.tril(wide(a) @ wide(a).T), dtype, N)
    triangle = some(random, dtype, M, M) + M * np.eye(M, dtype=dtype)
    right = device.put(a)
    blas.trsm(device.put(triangle), right, uplo="U", alpha=ALPHA).result()
    assert_close(np.triu(wide(triangle)) @ wide(right.numpy()), ALPHA * wide(a), dtype, M)
    assert_close(rx.numpy(), wide(x), dtype)


def test_batches_are_multiplied_one_by_one(device: atomr_mp.Device, random: np.random.Generator) -> None:
    """Three-dimensional refs are batches."""
    a, b = some(random, "float32", 5, M, K), some(random, "float32", 5, K, N)
    result = device.zeros((5, M, N))
    device.blas.gemm_strided_batched(device.put(a), device.put(b), result).result()
    assert_close(result.numpy(), wide(a) @ wide(b), "float32", K)


def test_outputs_that_are_left_out_are_allocated_on_the_device(
    device: atomr_mp.Device, random: np.random.Generator
) -> None:
    """They belong to the caller, as if it had made them, and the next request can use them at once."""
    a, b = some(random, "float32", 3, M, K), some(random, "float32", 3, K, N)
    ra, rb = device.put(a), device.put(b)
    product = device.blas.gemm_strided_batched(ra, rb).result()
    assert (product.shape, product.dtype, product.device) == ((3, M, N), "float32", 0)
    total = device.blas.geam(product[0], product[1], beta=BETA).result()
    expected = wide(a) @ wide(b)
    assert_close(total.numpy(), expected[0] + BETA * expected[1], "float32", 2 * K)
    product.free()
    assert_close(
        device.blas.nrm2(device.blas.copy(total[0]).result()).result(), np.linalg.norm(total.numpy()[0]), "float32", N
    )


def test_what_is_sent_past_the_clients_check_is_refused_and_harms_nothing(device: atomr_mp.Device) -> None:
    """The worker checks every request: a kernel that reads beyond its operands would poison the device."""
    a, c = device.zeros((4, 5)), device.zeros((4, 4))

    def sent(request: messages.Gemm | messages.Axpy) -> None:
        device.request("blas", request).result()

    with pytest.raises(errors.InvalidRequest, match="k must be the same"):
        sent(messages.Gemm(a, a, c))
    with pytest.raises(errors.BorrowConflict):
        sent(messages.Gemm(c, c, c))
    with pytest.raises(errors.InvalidRequest, match="Expected `Operand`"):
        sent(messages.Axpy(anything(None), c[0]))
    with pytest.raises(errors.InvalidRequest, match="must be a number, or a ref"):
        sent(messages.Axpy(c[0], c[1], alpha=anything("1")))
    sent(messages.Gemm(a, a.T, c))


def anything(value: Any) -> Any:
    """Return a value past the type checker."""
    return value


def test_requests_that_depend_on_each_other_need_not_be_waited_for(device: atomr_mp.Device) -> None:
    """A writer of a buffer comes before its reader, on any streams."""
    ref = device.zeros((256, 256))
    other = device.zeros((256, 256))
    for _ in range(50):
        device.memory.fill(ref, 1.0)
        device.blas.axpy(ref.reshape(-1), other.reshape(-1), alpha=1.0)
    assert (other.numpy() == 50).all()


def test_a_mistake_is_an_error_in_the_caller_and_harms_nothing(device: atomr_mp.Device) -> None:
    """Sizes that do not fit, overlaps, other libraries' requests."""
    a, c = device.zeros((4, 5)), device.zeros((4, 4))
    with pytest.raises(errors.InvalidRequest, match="b"):
        device.blas.gemm(a, a, c)
    with pytest.raises(errors.BorrowConflict):
        device.blas.gemm(c, c, c)
    with pytest.raises(AttributeError, match="blas"):
        device.no_such_library  # noqa: B018 - the look is the test
    device.blas.gemm(a, a.T, c).result()
