"""Arrays of the requests of neural networks, in the type that is computed with, and their blending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries.base import scalar
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.scaling import weighted_sum, widened

Array = npt.NDArray[Any]


def wide(operand: Any, part: Any = ...) -> Array:
    """Return an array, or a part of it, as it is computed with: half precision as float32."""
    found: Array = widened(array(operand)[part])
    return found


def full(shape: tuple[int, ...], value: Any, dtype: Any, *, like: Array) -> Array:
    """Return an array full of a number; NumPy hands its own `full` on with arguments that CuPy's does not take."""
    made = np.empty(shape, dtype, like=like)
    made[...] = value
    return made


def store(operand: Any, values: Array, part: Any = ...) -> None:
    """Write an array, or a part of it, rounded once to the type of the operand."""
    target = array(operand)
    target[part] = values.astype(target.dtype, copy=False)


def blend(request: Any, values: Callable[[], Array], part: Any = ...) -> Array:
    """Return alpha·values + beta·out; values are not computed for an alpha of 0, and out is not read for a beta of 0.

    Where both are 0, it is a single 0. A part of out has a part of the values.
    """
    out = array(request.out)
    dtype = np.float64 if out.itemsize == 8 else np.float32
    if not scalar(request.alpha) and not scalar(request.beta):
        return np.zeros((), dtype, like=out)
    terms = (scalar(request.alpha), values), (scalar(request.beta), lambda: wide(request.out, part))
    total: Array = weighted_sum(*terms)
    return total.astype(dtype, copy=False)


def along_channels(values: Array, ndim: int) -> Array:
    """Return a number for each channel as an array that is broadcast to an image of so many dimensions."""
    return values.reshape(-1, *(1,) * (ndim - 2))


def total(values: Array, axes: tuple[int, ...]) -> Array:
    """Return sums along some dimensions, which stay with a length of 1, in double precision."""
    return values.sum(axes, np.float64, keepdims=True) if axes else values.astype(np.float64)
