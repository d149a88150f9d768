"""The operators of tensors, as functions of NumPy's arrays, or of CuPy's with the functions of the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

UNARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "identity": lambda _of, x: x,
    "relu": lambda of, x: of.maximum(x, 0),
    "conj": lambda of, x: of.conj(x),
    "rcp": lambda _of, x: 1 / x,
    "sigmoid": lambda of, x: 1 / (1 + of.exp(-x)),
    "neg": lambda _of, x: -x,
    "asin": lambda of, x: of.arcsin(x),
    "acos": lambda of, x: of.arccos(x),
    "atan": lambda of, x: of.arctan(x),
    "asinh": lambda of, x: of.arcsinh(x),
    "acosh": lambda of, x: of.arccosh(x),
    "atanh": lambda of, x: of.arctanh(x),
    "mish": lambda of, x: x * of.tanh(of.logaddexp(x, of.zeros((), x.dtype))),
    "swish": lambda of, x: x / (1 + of.exp(-x)),
    "soft_plus": lambda of, x: of.logaddexp(x, of.zeros((), x.dtype)),
    "soft_sign": lambda of, x: x / (1 + of.abs(x)),
}
"""Unary operators that NumPy and CuPy do not have under the same name."""

BINARY: Final = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
"""The functions' names."""

REDUCED: Final = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def applied(of: Any, name: str, values: Any) -> Any:
    """Return a unary operator's result for each element.

    Args:
        of: NumPy or CuPy.
        name: The operator.
        values: An array.
    """
    function = UNARY.get(name)
    return getattr(of, name)(values) if function is None else function(of, values)


def combined(of: Any, name: str, first: Any, second: Any) -> Any:
    """Return a binary operator's result for two arrays."""
    return getattr(of, BINARY[name])(first, second)


def reduced(of: Any, name: str, values: Any, axes: tuple[int, ...]) -> Any:
    """Return an operator's result for all elements along some axes."""
    return getattr(of, REDUCED[name])(values, axis=axes) if axes else values
