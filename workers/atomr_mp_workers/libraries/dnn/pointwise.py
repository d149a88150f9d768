"""Softmax, activations and dropout."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries import dnn
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.dnn.base import ArrayLibrary
from atomr_mp_workers.libraries.dnn.numbers import blend, store, wide

Array = npt.NDArray[Any]


class Pointwise(ArrayLibrary):
    """Requests on the elements of an array, each by itself or along some dimensions."""

    @np.errstate(all="ignore")
    def softmax(self, request: dnn.Softmax) -> None:
        """Normalise the exponentials of x along some dimensions."""
        if array(request.x).size:
            store(request.out, blend(request, lambda: _softmax(request, wide(request.x))))

    @np.errstate(all="ignore")
    def softmax_backward(self, request: dnn.SoftmaxBackward) -> None:
        """Compute the gradient of softmax, or of its logarithm."""
        store(request.out, blend(request, lambda: _by_softmax(request, wide(request.y), wide(request.dy))))

    @np.errstate(all="ignore")
    def activation(self, request: dnn.Activation) -> None:
        """Compute out ← alpha·f(x) + beta·out."""
        for part in self.parts(request.x.shape):
            values = functools.partial(self._activated, request, part)
            store(request.out, blend(request, values, part), part)

    @np.errstate(all="ignore")
    def activation_backward(self, request: dnn.ActivationBackward) -> None:
        """Compute out ← alpha·dy·f'(x) + beta·out."""
        for part in self.parts(request.x.shape):
            values = functools.partial(self._derived, request, part)
            store(request.out, blend(request, values, part), part)

    def _activated(self, request: dnn.Activation, part: Any) -> Array:
        return self.activated(request.kind, wide(request.x, part))

    def _derived(self, request: dnn.ActivationBackward, part: Any) -> Array:
        return self.derived(request.kind, wide(request.x, part), wide(request.dy, part))

    @np.errstate(all="ignore")
    def dropout(self, request: dnn.Dropout) -> None:
        """Keep some of the elements of x, and write the mask if that is wanted."""
        mask = self._drop(request, request.x)
        if request.mask is not None:
            store(request.mask, mask)

    @np.errstate(all="ignore")
    def dropout_backward(self, request: dnn.DropoutBackward) -> None:
        """Keep the same elements of dy."""
        self._drop(request, request.dy)

    def _drop(self, request: Any, operand: Any) -> Array:
        """Write what is left of an array, and return the mask."""
        values = wide(operand)
        mask = self.kept(request.p, request.seed, request.offset, values.size).reshape(values.shape)
        store(request.out, np.where(mask, values / values.dtype.type(1 - request.p), 0))
        return mask


def _softmax(request: dnn.Softmax, x: Array) -> Array:
    x = x - x.max(request.dim, keepdims=True)
    powers = np.exp(x)
    total: Array = powers.sum(request.dim, keepdims=True)
    return x - np.log(total) if request.log else powers / total


def _by_softmax(request: dnn.SoftmaxBackward, y: Array, dy: Array) -> Array:
    found: Array
    if request.log:
        found = dy - np.exp(y) * dy.sum(request.dim, keepdims=True)
    else:
        found = y * (dy - (y * dy).sum(request.dim, keepdims=True))
    return found
