"""Activations in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.special import erf

Array = npt.NDArray[Any]

_INNER: Final = math.sqrt(2 / math.pi)
_CUBIC: Final = 0.044715


def _sigmoid(x: Array) -> Any:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _gelu_tanh(x: Array) -> Any:
    return 0.5 * x * (1 + np.tanh(_INNER * (x + _CUBIC * x**3)))


ACTIVATIONS: Final[dict[str, Callable[[Array], Any]]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "gelu": lambda x: 0.5 * x * (1 + erf(x * math.sqrt(0.5))),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * _sigmoid(x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "softplus": lambda x: np.logaddexp(x, x.dtype.type(0)),
}
"""Functions of each element, in the type of the array."""
