"""Activations, and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.special import erfc

Array = npt.NDArray[Any]

_INNER: Final = math.sqrt(2 / math.pi)
_CUBIC: Final = 0.044715


def sigmoid(x: Array) -> Any:
    """Return 1 / (1 + exp(-x)), of any x, as exact relative to itself near 0 as elsewhere."""
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, x.dtype.type(1)) / (1 + power)


def _normal(x: Array) -> Any:
    return 0.5 * erfc(x * -math.sqrt(0.5))


def _bent(x: Array) -> Any:
    """Return the sigmoid of gelu's approximation: (1 + tanh(u)) / 2 is the sigmoid of 2u."""
    return sigmoid(2 * _INNER * (x + _CUBIC * x**3))


def _by_gelu_tanh(x: Array) -> Any:
    x = np.clip(x, -100, 100)  # the derivative is 0 or 1 there, and a square would overflow further out
    return _bent(x) * (1 + 2 * _INNER * x * _bent(-x) * (1 + 3 * _CUBIC * x**2))


def _by_silu(x: Array) -> Any:
    return sigmoid(x) * (1 + x * sigmoid(-x))


ACTIVATIONS: Final[dict[str, Callable[[Array], Any]]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "gelu": lambda x: x * _normal(x),
    "gelu_tanh": lambda x: x * _bent(x),
    "silu": lambda x: x * sigmoid(x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "softplus": lambda x: np.logaddexp(x, x.dtype.type(0)),
}
"""Functions of each element, in the type of the array."""

DERIVATIVES: Final[dict[str, Callable[[Array], Any]]] = {
    "identity": np.ones_like,
    "relu": lambda x: np.where(np.isnan(x), x, x > 0),
    "sigmoid": lambda x: sigmoid(x) * sigmoid(-x),
    "tanh": lambda x: 4 * sigmoid(2 * x) * sigmoid(-2 * x),
    "gelu": lambda x: _normal(x) + x * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi),
    "gelu_tanh": _by_gelu_tanh,
    "silu": _by_silu,
    "elu": lambda x: np.where(x > 0, x.dtype.type(1), np.exp(np.minimum(x, 0))),
    "softplus": sigmoid,
}
"""Their derivatives."""
