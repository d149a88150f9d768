"""Pooling, and normalisation by neighbouring channels: as convolutions, one view at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.dnn_shapes import Sweep, goes_by_places, pooling, spots, taps
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
        for part in self.parts(request.x.shape):
            x = wide(request.x, part)
            store(request.out, x * _scale(request, x) ** -request.beta, part)

    @np.errstate(all="ignore")
    def local_response_norm_backward(self, request: dnn.ResponseNormBackward) -> None:
        """Compute the gradient of that."""
        for part in self.parts(request.x.shape):
            x, dy = wide(request.x, part), wide(request.dy, part)
            scale, channels = _scale(request, x), x.shape[1]
            total, shares = dy * scale**-request.beta, dy * x * scale ** (-request.beta - 1)
            share = np.zeros_like(x)
            for _, there, here in _neighbours(request.size).taps(channels, channels):
                share[:, here] += shares[:, there]
            store(request.out, total - 2 * request.alpha * request.beta / request.size * x * share, part)


def _averages(request: dnn.WindowPool, x: Array, shape: tuple[int, ...]) -> Array:
    found, ways = np.zeros(shape, x.dtype, like=x), (pooling(request), x.shape[2:], shape[2:])
    if goes_by_places(*ways):
        for at, here, _ in spots(*ways):
            found[at] = x[here].sum(tuple(range(2, x.ndim)))
    else:
        for _, there, here in taps(*ways):
            found[there] += x[here]
    found /= _counts(request, x, shape)
    return found


def _by_pooled(request: dnn.WindowPoolBackward) -> Array:
    x, y, dy = wide(request.x), wide(request.y), wide(request.dy)
    found, left = np.zeros_like(x), full(y.shape, value=True, dtype=bool, like=y)
    ways, maximal = (pooling(request), x.shape[2:], y.shape[2:]), request.mode == "max"
    shares = dy if maximal else dy / _counts(request, x, y.shape)
    if goes_by_places(*ways):
        for at, here, _ in spots(*ways):
            image, share = x[here], _spread(shares[at], x.ndim)
            found[here] += np.where(_first(image, _spread(y[at], x.ndim)), share, 0) if maximal else share
        return found
    for _, there, here in taps(*ways):
        if not maximal:
            found[here] += shares[there]
            continue
        free = left[there]
        first = free & _equal(x[here], y[there])
        found[here] += np.where(first, shares[there], 0)
        free &= ~first
    return found


def _spread(values: Array, ndim: int) -> Array:
    """Return numbers of an image's channels as they are broadcast to it."""
    return values.reshape(*values.shape, *(1,) * (ndim - 2))


def _equal(image: Array, maxima: Array) -> Array:
    """Return whether each element is its channel's maximum, which may be a NaN."""
    found: Array = (image == maxima) | (np.isnan(image) & np.isnan(maxima))
    return found


def _first(image: Array, maxima: Array) -> Array:
    """Return for each channel of an image whether an element is the first that is its maximum."""
    n, c, *lengths = image.shape
    found = _equal(image, maxima).reshape(n, c, math.prod(lengths))
    first: Array = found & (np.arange(found.shape[2], like=image) == found.argmax(2)[..., None])
    return first.reshape(image.shape)


def _counts(request: Any, x: Array, shape: tuple[int, ...]) -> Any:
    """Return how many elements an average divides by in each place."""
    sweeps = pooling(request)
    found = x.dtype.type(1)
    for axis, sweep in enumerate(sweeps):
        if request.count_include_pad:
            found *= sweep.size
            continue
        shifts = np.arange(shape[2 + axis], like=x) * sweep.stride - sweep.before
        first = np.maximum(-(shifts // sweep.dilation), 0)
        end = np.minimum((x.shape[2 + axis] - 1 - shifts) // sweep.dilation + 1, sweep.size)
        found = found * (end - first).astype(x.dtype).reshape(-1, *(1,) * (len(sweeps) - 1 - axis))
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
