"""Norms. Sums are taken in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.dnn_shapes import Normed, normed
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.dnn.base import ArrayLibrary
from atomr_mp_workers.libraries.dnn.numbers import along_channels, store, total, wide

Array = npt.NDArray[Any]


class Norms(ArrayLibrary):
    """Norms, and their gradients."""

    @np.errstate(all="ignore")
    def batch_norm(self, request: dnn.BatchNorm) -> None:
        """Normalise each channel by given statistics."""
        x, of = wide(request.x), normed(request)
        mean, variance = (along_channels(wide(each), x.ndim) for each in (request.running_mean, request.running_var))
        _store(request, of, (x - mean) / np.sqrt(variance + variance.dtype.type(request.eps)))

    @np.errstate(all="ignore")
    def batch_norm_training(self, request: dnn.BatchNormTraining) -> None:
        """Normalise each channel by the statistics of the batch, and let running statistics follow these."""
        mean, variance, count = self._normalize(request)
        if request.running_mean is not None:
            sample = variance * (count / max(count - 1, 1))
            for operand, new in ((request.running_mean, mean), (request.running_var, sample)):
                running, share = array(operand).astype(np.float64), request.momentum
                store(operand, (1 - share) * running + share * new)

    @np.errstate(all="ignore")
    def layer_norm(self, request: Any) -> None:
        """Normalise what lies together, within each sample."""
        self._normalize(request)

    instance_norm = group_norm = rms_norm = layer_norm

    @np.errstate(all="ignore")
    def norm_backward(self, request: dnn.NormBackward) -> None:
        """Compute the gradients of a norm by x, weight and bias."""
        of = normed(request)
        x, dy = (wide(each).reshape(of.view) for each in (request.x, request.dy))
        invstd = _spread(of, wide(request.invstd), x)
        normal = (x if request.mean is None else x - _spread(of, wide(request.mean), x)) * invstd
        del x  # what is not needed any more makes room
        gradient = dy if request.weight is None else dy * wide(request.weight).astype(dy.dtype).reshape(of.affine)
        left = gradient * normal
        share = _mean(of, left)
        np.multiply(normal, share, out=left)
        np.subtract(gradient, left, out=left)
        if request.mean is not None:
            left -= _mean(of, gradient)
        del gradient
        left *= invstd
        store(request.out, left.reshape(request.x.shape))
        del left
        rest = tuple(axis for axis, n in enumerate(of.affine) if n == 1)
        for operand, terms in ((request.dweight, dy * normal), (request.dbias, dy)):
            if operand is not None:
                store(operand, total(terms, rest).reshape(operand.shape))

    def _normalize(self, request: Any) -> tuple[Array, Array, int]:
        """Write what is wanted; return means, variances, and of how many elements each is."""
        of = normed(request)
        x = wide(request.x).reshape(of.view)
        mean = np.zeros((), x.dtype, like=x) if request.mode == "rms" else _mean(of, x)
        moved = x - mean
        variance = _mean(of, moved * moved)
        invstd = 1 / np.sqrt(variance + x.dtype.type(request.eps))
        _store(request, of, moved * invstd)
        for name, values in (("mean", mean), ("invstd", invstd)):
            operand = getattr(request, name, None)
            if operand is not None:
                store(operand, values.reshape(of.statistics))
        count = math.prod(of.view[axis] for axis in of.axes)
        return mean.reshape(-1), variance.reshape(-1), count


def _mean(of: Normed, values: Array) -> Array:
    """Return the mean of the values that are normalised together, in their type; 0 if there are none."""
    count = math.prod(of.view[axis] for axis in of.axes)
    found: Array = total(values, of.axes) / max(count, 1)
    return found.astype(values.dtype)


def _spread(of: Normed, statistics: Array, x: Array) -> Array:
    """Return statistics as they are broadcast to the view."""
    return statistics.astype(x.dtype).reshape([1 if axis in of.axes else n for axis, n in enumerate(of.view)])


def _store(request: Any, of: Normed, normal: Array) -> None:
    """Write normalised values, multiplied by weight and with bias."""
    if request.weight is not None:
        normal = normal * wide(request.weight).astype(normal.dtype).reshape(of.affine)
    bias = getattr(request, "bias", None)
    if bias is not None:
        normal = normal + wide(bias).astype(normal.dtype).reshape(of.affine)
    store(request.out, normal.reshape(request.x.shape))
