"""Convolutions.

For each element of the window, the part of the image that it meets is a strided view, and its share of the sum is one
product of matrices. Nothing is padded or unfolded, so that little more memory is needed than for the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.dnn_shapes import Sweep, goes_by_places, spots, sweeps_of, taps
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.dnn.base import ArrayLibrary, Product
from atomr_mp_workers.libraries.dnn.numbers import along_channels, blend, store, wide

Array = npt.NDArray[Any]


class Convolutions(ArrayLibrary):
    """Convolutions, and their gradients."""

    @np.errstate(all="ignore")
    def conv(self, request: dnn.Conv) -> None:
        """Compute out ← activation(alpha·(x ⋆ weight) + beta·out + bias)."""
        x, weight, out = wide(request.x), wide(request.weight), array(request.out)
        how = sweeps_of(request, weight.shape[2:]), out.shape[2:], request.groups
        self._finish(request, blend(request, lambda: correlate(self.products(request), x, weight, *how)))

    @np.errstate(all="ignore")
    def conv_transpose(self, request: dnn.ConvTranspose) -> None:
        """Compute out ← activation(alpha·(what conv's backward gives for x) + beta·out + bias)."""
        x, weight, out = wide(request.x), wide(request.weight), array(request.out)
        how = sweeps_of(request, weight.shape[2:]), out.shape[2:], request.groups
        self._finish(request, blend(request, lambda: scatter(self.products(request), x, weight, *how)))

    @np.errstate(all="ignore")
    def conv_input(self, request: dnn.ConvInput) -> None:
        """Compute the gradient of a convolution by its image."""
        dy, weight, out = wide(request.dy), wide(request.weight), array(request.out)
        how = sweeps_of(request, weight.shape[2:]), out.shape[2:], request.groups
        store(request.out, blend(request, lambda: scatter(self.products(request), dy, weight, *how)))

    @np.errstate(all="ignore")
    def conv_weight(self, request: dnn.ConvWeight) -> None:
        """Compute the gradient of a convolution by its weight."""
        x, dy, out = wide(request.x), wide(request.dy), array(request.out)
        how = sweeps_of(request, out.shape[2:]), out.shape[2:], request.groups
        store(request.out, blend(request, lambda: collect(self.products(request), x, dy, *how)))

    def _finish(self, request: Any, values: Array) -> None:
        """Add the bias, and write what the activation makes of that."""
        if request.bias is not None:
            values = values + along_channels(wide(request.bias), request.out.ndim)
        store(request.out, self.activated(request.activation, values))


def correlate(
    product: Product, x: Array, weight: Array, sweeps: Sequence[Sweep], places: Sequence[int], groups: int
) -> Array:
    """Return the cross-correlation of an image with a weight, (n, k, *places)."""
    n, k, space = len(x), len(weight), x.shape[2:]
    image, factors = _grouped(x, groups, 1), _grouped(weight, groups, 0)
    found = np.zeros((n, groups, k // groups, *places), x.dtype, like=x)
    if goes_by_places(sweeps, space, places):
        for at, here, within in spots(sweeps, space, places):
            found[at] = product(_flat(factors[within], 2), _flat(image[here], 2)[..., None])[..., 0]
        return found.reshape(n, k, *places)
    for index, there, here in taps(sweeps, space, places):
        part = found[there]
        part += product(factors[index], _flat(image[here], 3)).reshape(part.shape)
    return found.reshape(n, k, *places)


def scatter(
    product: Product, dy: Array, weight: Array, sweeps: Sequence[Sweep], space: Sequence[int], groups: int
) -> Array:
    """Return the image that correlating gives these gradients, (n, groups·cg, *space): the adjoint of `correlate`."""
    n, channels, places = len(dy), weight.shape[1], dy.shape[2:]
    gradients, factors = _grouped(dy, groups, 1), _grouped(weight, groups, 0).swapaxes(1, 2)
    found = np.zeros((n, groups, channels, *space), dy.dtype, like=dy)
    if goes_by_places(sweeps, space, places):
        for at, here, within in spots(sweeps, space, places):
            part = found[here]
            matrices = _flat(factors.swapaxes(1, 2)[within], 2).swapaxes(1, 2)
            part += product(matrices, gradients[at][..., None]).reshape(part.shape)
        return found.reshape(n, groups * channels, *space)
    for index, there, here in taps(sweeps, space, places):
        part = found[here]
        part += product(factors[index], _flat(gradients[there], 3)).reshape(part.shape)
    return found.reshape(n, groups * channels, *space)


def collect(
    product: Product, x: Array, dy: Array, sweeps: Sequence[Sweep], window: Sequence[int], groups: int
) -> Array:
    """Return the gradient of a correlation by its weight, (k, c / groups, *window)."""
    space, places = x.shape[2:], dy.shape[2:]
    k, channels = dy.shape[1], x.shape[1] // groups
    image, gradients = (np.moveaxis(_grouped(each, groups, 1), 0, 2) for each in (x, dy))
    found = np.zeros((groups, k // groups, channels, *window), x.dtype, like=x)
    if goes_by_places(sweeps, space, places):
        for at, here, within in spots(sweeps, space, places):
            part = found[within]
            matrices = _flat(_grouped(x, groups, 1)[here], 2).swapaxes(0, 1)
            part += product(gradients[at], matrices).reshape(part.shape)
        return found.reshape(k, channels, *window)
    for index, there, here in taps(sweeps, space, places):
        found[index] = product(_flat(gradients[there], 2), _flat(image[here], 2).swapaxes(1, 2))
    return found.reshape(k, channels, *window)


def _grouped(values: Array, groups: int, axis: int) -> Array:
    """Return a view whose channels along an axis are divided into groups."""
    shape = values.shape
    return values.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def _flat(values: Array, kept: int) -> Array:
    """Return an array with its dimensions as one, but for the first few."""
    return values.reshape(*values.shape[:kept], math.prod(values.shape[kept:]))
