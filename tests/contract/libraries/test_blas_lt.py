"""Products with epilogues through a pool; their numbers are proved without processes, in `tests/pure`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol import dtypes
from tests.tolerances import assert_close

M, N, K = 32, 48, 64


RANDOM: Final = np.random.default_rng(17)


def numbers(*shape: int, dtype: str = "float32") -> Any:
    """Return random numbers as a type holds them."""
    return RANDOM.uniform(-1, 1, shape).astype(dtypes.to_numpy(dtype))


def test_a_layer_and_its_gradients_are_those_of_its_definition(device: atomr_mp.Device) -> None:
    """Forward with bias and ReLU, whose bits the gradient takes; left-out outputs come as refs."""
    x, weights, bias, grad = numbers(M, K), numbers(K, N), numbers(N), numbers(M, N)
    rx, rw = device.put(x), device.put(weights)
    out, mask = device.blas_lt.matmul(rx, rw, bias=device.put(bias), epilogue="relu_aux_bias").result()
    summed = x.astype(np.float64) @ weights + bias
    assert_close(out.numpy(), np.maximum(summed, 0), "float32", K)
    assert (mask.shape, mask.dtype) == ((M, 16), "uint8")
    inner, gradient = device.blas_lt.matmul(
        device.put(grad), device.put(np.eye(N, dtype=np.float32)), aux=mask, epilogue="drelu_bgrad"
    ).result()
    assert_close(inner.numpy(), grad * (summed > 0), "float32", N)
    assert_close(gradient.numpy(), (grad * (summed > 0)).sum(0), "float32", N * M)
    of_weights, of_bias = device.blas_lt.matmul(rx.T, inner, epilogue="bgradb").result()
    assert_close(of_weights.numpy(), x.T.astype(np.float64) @ inner.numpy(), "float32", M)
    assert_close(of_bias.numpy(), inner.numpy().sum(0), "float32", M)


def test_float8_is_scaled_and_rounded(device: atomr_mp.Device) -> None:
    """Columns of b are contiguous, as the tensor cores want them."""
    a, b = numbers(M, K, dtype="float8_e4m3fn"), numbers(N, K, dtype="float8_e4m3fn")
    scales = {f"scale_{name}": device.put(np.array([value], np.float32)) for name, value in (("a", 2.0), ("b", 0.25))}
    product = 0.5 * a.astype(np.float64) @ b.astype(np.float64).T
    for dtype in ("bfloat16", "float8_e4m3fn"):
        out = device.blas_lt.matmul(device.put(a), device.put(b).T, dtype=dtype, **scales).result()
        assert_close(out.numpy(), product, dtype, K)


def test_products_are_steps_of_a_program(device: atomr_mp.Device) -> None:
    """With an epilogue, and one step's output as the next step's input."""
    a, b, bias = numbers(M, K), numbers(K, K), numbers(K)
    rb, rbias = device.put(b), device.put(bias)
    with device.program() as p:
        x = p.input("x", (M, K), "float32")
        hidden = p.blas_lt.matmul(x, rb, bias=rbias, epilogue="gelu_bias")
        p.returns(p.blas_lt.matmul(hidden, rb))
    inner = a.astype(np.float64) @ b + bias
    inner = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
    found = p.run(x=a).result().numpy()
    np.testing.assert_allclose(found, inner @ b, rtol=1e-3, atol=0.05)


def test_a_mistake_is_an_error_in_the_caller(device: atomr_mp.Device) -> None:
    """Nothing is sent."""
    a = device.zeros((4, 4), "float32")
    with pytest.raises(errors.InvalidRequest, match="bias must be given"):
        device.blas_lt.matmul(a, a, epilogue="relu_bias")
