"""Neural networks through a pool; their numbers are proved without processes, in `tests/pure` and `test_layouts`."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import Ledger, wait_generation
from tests.tolerances import assert_close


@pytest.fixture
def dnn(device: atomr_mp.Device) -> Any:
    """The library of a device."""
    return device.dnn


def numbers(*shape: int, dtype: str = "float32") -> Any:
    """Return random numbers, the same in every run."""
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(dtype)


def test_a_convolution_and_its_gradients(device: atomr_mp.Device, dnn: Any) -> None:
    """With outputs that are allocated, and with the caller's; images may have their channels last."""
    x, weight, bias = numbers(2, 5, 6, 3), numbers(4, 3, 1, 1), numbers(4)
    rx, rw, rb = (device.put(each) for each in (x, weight, bias))
    image = rx.transpose(0, 3, 1, 2)
    found = dnn.conv2d(image, rw, rb, activation="relu").result()
    y = np.einsum("nhwc,kc->nkhw", x, weight[:, :, 0, 0])
    assert_close(found.numpy(), np.maximum(y + bias[:, None, None], 0), "float32", 4)
    out = device.zeros((2, 5, 6, 4))
    assert dnn.conv2d(image, rw, None, out.transpose(0, 3, 1, 2)).result() is None
    assert_close(out.numpy(), np.moveaxis(y, 1, 3), "float32", 3)
    by_x = dnn.conv2d_input(rw, found).result()
    assert_close(by_x.numpy(), np.einsum("nkhw,kc->nchw", found.numpy(), weight[:, :, 0, 0]), "float32", 4, 4)
    by_weight = dnn.conv2d_weight(image, found, size=(1, 1)).result()
    assert_close(by_weight.numpy()[:, :, 0, 0], np.einsum("nkhw,nhwc->kc", found.numpy(), x), "float32", 60, 4)


def test_a_mask_is_the_same_in_the_next_incarnation(ledger: Ledger) -> None:
    """Forward before the worker is killed, and backward after that."""
    with ledger.start(max_restarts=1000, backoff_initial_s=0.0) as pool:
        device, ones = pool.device(), np.ones((30, 40), np.float32)
        kept = device.dnn.dropout(device.put(ones), p=0.25, seed=9, offset=4).result().numpy()
        os.kill(wait_generation(pool, 1).pid, signal.SIGKILL)
        wait_generation(pool, 2)
        again = device.dnn.dropout_backward(device.put(ones), p=0.25, seed=9, offset=4).result().numpy()
        np.testing.assert_array_equal(again, kept)
        assert 0 < np.count_nonzero(kept) < kept.size


def test_weights_of_a_network_are_views_of_packed_ones(device: atomr_mp.Device, dnn: Any) -> None:
    """They are packed on the device; a gradient comes packed too, and one reserve serves one backward."""
    cells = {"mode": "gru", "hidden_size": 2, "num_layers": 2}
    shapes = [(6, 3), (6, 2), (6,), (6,), (6, 2), (6, 2), (6,), (6,)]
    given = [numbers(*shape) for shape in shapes]
    packed = dnn.rnn_pack([device.put(each) for each in given], input_size=3, **cells).result()
    views = dnn.rnn_unpack(packed, input_size=3, **cells)
    for view, each in zip(views, given, strict=True):
        np.testing.assert_array_equal(view.numpy(), each)
    x = device.put(numbers(4, 2, 3))
    out, hn, reserve = dnn.rnn(x, packed, save_reserve=True, **cells).result()
    assert (out.shape, hn.shape) == ((4, 2, 2), (2, 2, 2))
    dx, dweights, dh0 = dnn.rnn_backward(x, packed, out, out, reserve, **cells).result()
    assert (dx.shape, dweights.shape, dh0.shape) == (x.shape, packed.shape, hn.shape)
    with pytest.raises(errors.NumericalError, match="a backward has used it up"):
        dnn.rnn_backward(x, packed, out, out, reserve, **cells).result()


def test_layers_are_steps_of_a_program(device: atomr_mp.Device, dnn: Any) -> None:
    """Each works on what those before it have made; the program gives what they give by themselves."""
    rw, x = device.put(numbers(2, 1, 3)), numbers(4, 1, 9)
    with device.program() as p:
        image = p.input("x", x.shape, "float32")
        hidden = p.dnn.conv1d(image, rw, padding=1, activation="gelu")
        p.returns(p.dnn.conv_transpose1d(hidden, rw, padding=1))
    found = p.run(x=x).result()
    hidden = dnn.conv1d(device.put(x), rw, padding=1, activation="gelu").result()
    np.testing.assert_array_equal(found.numpy(), dnn.conv_transpose1d(hidden, rw, padding=1).result().numpy())


def test_a_mistake_is_an_error_in_the_caller(device: atomr_mp.Device) -> None:
    """Nothing is sent."""
    x = device.zeros((1, 2, 4, 4))
    with pytest.raises(errors.InvalidRequest, match="must have c / groups channels"):
        device.dnn.conv2d(x, device.zeros((1, 1, 2, 2)))
