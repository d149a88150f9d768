"""Pooling, and normalisation by neighbouring channels: as convolutions, one view at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.dnn_shapes import Sweep, pooling, taps
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.dnn.base import ArrayLibrary
from atomr_mp_workers.libraries.dnn.numbers import blend, full, store, wide

Array = npt.NDArray[Any]


class Windows(ArrayLibrary):
    """Requests with a window in which nothing is multiplied by weights."""

    @np.errstate(all="ignore")
    def pool(self, request: dnn.WindowPool) -> None:
        """Compute the maximum or average in each place of a window."""
        store(request.out, blend(request, lambda: self._pooled(request)))

    def _pooled(self, request: dnn.WindowPool) -> Array:
        x, shape = wide(request.x), array(request.out).shape
        return self.maxima(x, pooling(request), shape) if request.mode == "max" else _averages(request, x, shape)

    @np.errstate(all="ignore")
    def pool_backward(self, request: dnn.WindowPoolBackward) -> None:
        """Compute the gradient of pooling."""
        store(request.out, blend(request, lambda: _by_pooled(request)))

    @np.errstate(all="ignore")
    def local_response_norm(self, request: dnn.ResponseNorm) -> None:
        """Divide by a power of the weighted mean of the squares of neighbouring channels."""
        x = wide(request.x)
        store(request.out, x * _scale(request, x) ** -request.beta)

    @np.errstate(all="ignore")
    def local_response_norm_backward(self, request: dnn.ResponseNormBackward) -> None:
        """Compute the gradient of that."""
        x, dy = wide(request.x), wide(request.dy)
        scale, channels = _scale(request, x), x.shape[1]
        total, shares = dy * scale**-request.beta, dy * x * scale ** (-request.beta - 1)
        share = np.zeros_like(x)
        for _, there, here in _neighbours(request.size).taps(channels, channels):
            share[:, here] += shares[:, there]
        store(request.out, total - 2 * request.alpha * request.beta / request.size * x * share)


def _averages(request: dnn.WindowPool, x: Array, shape: tuple[int, ...]) -> Array:
    found, sweeps = np.zeros(shape, x.dtype, like=x), pooling(request)
    for _, there, here in taps(sweeps, x.shape[2:], shape[2:]):
        found[there] += x[here]
    found /= _counts(request, sweeps, x, shape)
    return found


def _by_pooled(request: dnn.WindowPoolBackward) -> Array:
    x, y, dy, sweeps = wide(request.x), wide(request.y), wide(request.dy), pooling(request)
    found, left = np.zeros_like(x), full(y.shape, value=True, dtype=bool, like=y)
    maximal = request.mode == "max"
    shares = dy if maximal else dy / _counts(request, sweeps, x, y.shape)
    for _, there, here in taps(sweeps, x.shape[2:], y.shape[2:]):
        if not maximal:
            found[here] += shares[there]
            continue
        image, maxima, free = x[here], y[there], left[there]
        first = free & ((image == maxima) | (np.isnan(image) & np.isnan(maxima)))
        found[here] += np.where(first, shares[there], 0)
        free &= ~first
    return found


def _counts(request: Any, sweeps: list[Sweep], x: Array, shape: tuple[int, ...]) -> Any:
    """Return how many elements an average divides by in each place."""
    if request.count_include_pad:
        return x.dtype.type(math.prod(sweep.size for sweep in sweeps))
    found = np.zeros(shape[2:], x.dtype, like=x)
    for _, there, _ in taps(sweeps, x.shape[2:], shape[2:]):
        found[there] += 1
    return found


def _neighbours(size: int) -> Sweep:
    """Return the sweep of a window over channels, one place for each."""
    return Sweep(size, 1, 1, size // 2, (size - 1) // 2)


def _scale(request: Any, x: Array) -> Array:
    """Return k plus the weighted mean of the squares of neighbouring channels."""
    squares, channels = x * x, x.shape[1]
    found = np.zeros_like(x)
    for _, there, here in _neighbours(request.size).taps(channels, channels):
        found[:, there] += squares[:, here]
    found *= request.alpha / request.size
    found += request.k
    return found
