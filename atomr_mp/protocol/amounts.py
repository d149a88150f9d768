"""Checks of the numbers that users pass: one place that says what a duration or a count may be. Pure."""

from __future__ import annotations

import math
import operator
from typing import Any, Final

from atomr_mp import errors

LONGEST_S: Final = 10.0 * 365 * 86400
"""The longest duration, ten years: its nanoseconds and milliseconds fit wherever a time is kept or waited for."""

MOST: Final = 2**63 - 1
"""The largest whole number: all that messages hold."""


def is_truth(value: object) -> bool:
    """Whether a value is a truth value of Python's or NumPy's: a flag in the wrong place, and no number."""
    return isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b"


def duration(
    name: str,
    value: Any,
    *,
    zero: bool = False,
    most: float = LONGEST_S,
    error: type[errors.AtomrError] = errors.InvalidRequest,
) -> float:
    """Return a duration in seconds.

    Args:
        name: The argument, for the error's text.
        value: What the user has passed: a number of Python's or NumPy's.
        zero: Whether it may be 0, as that of a wait may.
        most: The longest that it may be; by default ten years.
        error: The class of the error.

    Raises:
        InvalidRequest: It is no number, not a number (NaN), infinite, negative, or too long.
    """
    try:
        if isinstance(value, str | bytes) or is_truth(value):
            raise TypeError
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = -1.0
    if 0 < seconds <= most or (zero and seconds == 0):  # a NaN does not fit
        return seconds
    kind = "0 or a positive number" if zero else "a positive number"
    raise error(f"{name} must be {kind} of seconds, at most {most:.0f}; got {value!r}")


def deadline(value: Any, default_s: float) -> float:
    """Return the deadline of a request in seconds: `default_s` if the caller has said nothing.

    Raises:
        InvalidRequest: It is no duration, see `duration`.
    """
    return default_s if value is None else duration("deadline_s", value)


def real(name: str, value: Any, least: float, most: float) -> float:
    """Return a number between bounds, both included.

    Args:
        name: The argument, for the error's text.
        value: What the user has passed: a number of Python's or NumPy's.
        least: The smallest that it may be.
        most: The largest that it may be.

    Raises:
        InvalidRequest: It is no number, not a number (NaN), or out of bounds.
    """
    try:
        if isinstance(value, str | bytes) or is_truth(value):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if least <= number <= most:
        return number
    raise errors.InvalidRequest(f"{name} must be a number from {least:g} to {most:g}; got {value!r}")


def whole(
    name: str,
    value: Any,
    least: int,
    most: int = MOST,
    *,
    error: type[errors.AtomrError] = errors.InvalidRequest,
) -> int:
    """Return a whole number between bounds, both included.

    Args:
        name: The argument, for the error's text.
        value: What the user has passed: an integer of Python's or NumPy's.
        least: The smallest that it may be.
        most: The largest that it may be.
        error: The class of the error.

    Raises:
        InvalidRequest: It is no integer, or out of bounds.
    """
    try:
        if is_truth(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if least <= number <= most:
        return number
    bounds = f"at least {least}" if most == MOST else f"from {least} to {most}"
    kind = "a whole number" if least <= -MOST else f"{bounds}, a whole number"
    raise error(f"{name} must be {kind}; got {value!r}")
