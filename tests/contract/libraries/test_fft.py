"""Fourier transforms through a pool; their numbers are proved without processes, in `tests/pure`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.tolerances import assert_close

SHAPE: Final = (6, 10, 12)


def numbers(dtype: str) -> Any:
    """Return random numbers, the same in every run."""
    random = np.random.default_rng(11)
    values = random.uniform(-1, 1, SHAPE) + 1j * random.uniform(-1, 1, SHAPE)
    return (values if dtype.startswith("complex") else values.real).astype(dtype)


def test_a_transform_and_back_gives_what_was_there(device: atomr_mp.Device) -> None:
    """Of complex and of real numbers, with outputs that are allocated and with the caller's."""
    x, y = numbers("complex64"), numbers("float64")
    rx, ry = device.put(x), device.put(y)
    for axes in ((0,), (1, 2), (2, 0, 1)):
        spectrum = device.fft.fftn(rx, axes=axes).result()
        assert_close(spectrum.numpy(), np.fft.fftn(x, axes=axes), "complex64", x.size)
        assert_close(device.fft.ifftn(spectrum, axes=axes).result().numpy(), x, "complex64", x.size)
        half = device.fft.rfftn(ry, axes=axes).result()
        assert_close(half.numpy(), np.fft.rfftn(y, axes=axes), "complex128", y.size)
        back = device.empty(SHAPE, "float64")
        assert device.fft.irfftn(half, back, axes=axes).result() is None
        assert_close(back.numpy(), y, "float64", y.size)
        assert_close(half.numpy(), np.fft.rfftn(y, axes=axes), "complex128", y.size)


def test_a_transform_in_place_and_of_a_slice(device: atomr_mp.Device) -> None:
    """Any strides fit; what lies between the elements stays."""
    x = numbers("complex128")
    ref = device.put(x)
    part = ref[:, ::2, 1:9:3].transpose(2, 0, 1)
    device.fft.fft(part, part, axis=1, norm="ortho").result()
    expected = x.copy()
    expected[:, ::2, 1:9:3] = np.fft.fft(x[:, ::2, 1:9:3], axis=0, norm="ortho")
    assert_close(ref.numpy(), expected, "complex128", SHAPE[0])


def test_transforms_that_depend_on_each_other_need_not_be_waited_for(device: atomr_mp.Device) -> None:
    """The first of a kind waits for its plan, and all that use its memory come after it."""
    x = numbers("complex64")
    ref, between = device.put(x), device.zeros(SHAPE, "complex64")
    replies = [device.fft.fft(ref, between, norm="none"), device.fft.ifft(between, ref, norm="none")]
    replies.append(device.blas.scal(ref.reshape(-1), alpha=0.5))
    for reply in replies:
        reply.result()
    assert_close(ref.numpy(), x * SHAPE[-1] / 2, "complex64", 2 * SHAPE[-1], SHAPE[-1])


def test_a_mistake_is_an_error_in_the_caller(device: atomr_mp.Device) -> None:
    """Nothing is sent."""
    with pytest.raises(errors.InvalidRequest, match="different dimensions"):
        device.fft.fftn(device.zeros(SHAPE, "complex64"), axes=(1, 1))
