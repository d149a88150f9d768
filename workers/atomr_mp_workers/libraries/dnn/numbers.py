"""Arrays of the host's requests of neural networks, in the type that is computed with, and their blending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries.base import scalar
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.scaling import weighted_sum

Array = npt.NDArray[Any]


def wide(operand: Any) -> Array:
    """Return an array as it is computed with: half precision as float32."""
    values: Array = array(operand)
    return values.astype(np.float32) if values.itemsize == 2 else values


def blend(request: Any, values: Callable[[], Array]) -> Array:
    """Return alpha·values + beta·out; values are not computed for an alpha of 0, and out is not read for a beta of 0.

    Where both are 0, it is a single 0.
    """
    total = weighted_sum((scalar(request.alpha), values), (scalar(request.beta), lambda: wide(request.out)))
    return np.asarray(total, np.float64 if array(request.out).itemsize == 8 else np.float32)


def along_channels(values: Array, ndim: int) -> Array:
    """Return a number for each channel as an array that is broadcast to an image of so many dimensions."""
    return values.reshape(-1, *(1,) * (ndim - 2))
