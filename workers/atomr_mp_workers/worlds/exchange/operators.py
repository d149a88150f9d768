"""Operators of reductions, and factors: which there are, and for which element types."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_mp import errors
from atomr_mp.protocol.dtypes import check_holds
from atomr_mp.protocol.words import did_you_mean

OPERATORS: Final = ("sum", "prod", "min", "max", "avg")
"""Names of the operators, in the order of their numbers."""

HALVES: Final = frozenset({"float16", "bfloat16"})
"""Types whose elements are computed in float32, and rounded once."""


def check_operator(operator: Any) -> None:
    """Refuse what is no operator.

    Raises:
        InvalidRequest: There is no such operator.
    """
    if not isinstance(operator, str):
        raise errors.InvalidRequest(f"an operator is named by a text, not by {type(operator).__name__}")
    if operator not in OPERATORS:
        raise errors.InvalidRequest(
            f"there is no operator {operator!r}{did_you_mean(operator, OPERATORS)}; there are: {', '.join(OPERATORS)}"
        )


def check_computes(operator: str, name: str) -> None:
    """Refuse an operator for a type."""
    if name == "bool" or name.startswith("float8"):
        raise errors.InvalidRequest(f"{operator} of {name} is not computed; convert the array to another type")
    if operator == "avg" and "int" in name:
        raise errors.InvalidRequest(f"avg of {name} is not computed; convert the array, or take sum and divide it")
    if operator in {"min", "max"} and name.startswith("complex"):
        raise errors.InvalidRequest(f"{operator} of {name} is not computed, for complex numbers have no order")


def factor_of(factor: Any, operator: str, name: str) -> complex:
    """Return a factor as a number of Python, which takes the type of what it is multiplied by."""
    if operator not in {"sum", "avg"}:
        raise errors.InvalidRequest(f"a factor goes with sum and avg, not with {operator}")
    number = factor
    if isinstance(factor, np.generic | np.ndarray) and factor.ndim == 0:
        number = float(factor) if factor.dtype.kind == "V" else factor.item()  # V: ml_dtypes' own
    if isinstance(number, bool) or not isinstance(number, int | float | complex):
        raise errors.InvalidRequest(f"a factor is one number, not {type(factor).__name__}")
    check_holds(name, number)
    if "int" in name:
        return int(number.real)
    if isinstance(number, int):  # a whole number of any size
        try:
            return float(number)
        except OverflowError as error:
            raise errors.InvalidRequest(f"a factor for {name} is too large") from error
    return number
