"""Restart intensity: how many restarts are allowed within a time, and how soon each of them comes. Pure.

The rule is that of Erlang/OTP's supervisors (`intensity` and `period`), with a back-off: where `max_restarts`
is 3, three restarts within the time are allowed and the fourth is refused. Times are seconds of one monotonic
clock.
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.words import counted


class Intensity(msgspec.Struct, frozen=True):
    """The policy.

    Raises:
        ConfigurationError: A value out of its range.
    """

    max_restarts: int = 3
    """Restarts allowed within `within_s`; 0 refuses every one."""
    within_s: float = 60.0
    """Length of the window. Both its ends belong to it."""
    backoff_initial_s: float = 0.5
    """Delay of the second restart without a success in between; the first comes at once."""
    backoff_factor: float = 2.0
    """By how much each further delay is longer."""
    backoff_max_s: float = 30.0
    """Longest delay."""

    def __post_init__(self) -> None:
        _require("max_restarts", self.max_restarts, least=0)
        _require("within_s", self.within_s, least=0, strictly=True)
        _require("backoff_initial_s", self.backoff_initial_s, least=0)
        _require("backoff_factor", self.backoff_factor, least=1)
        _require("backoff_max_s", self.backoff_max_s, least=self.backoff_initial_s)


class History(msgspec.Struct, frozen=True):
    """What the policy judges by."""

    restarts: tuple[float, ...] = ()
    """When restarts were granted, oldest first, as far back as they count."""
    streak: int = 0
    """Restarts since the last success."""

    EMPTY: ClassVar[History]
    """Nothing has happened; also what an operator's restart goes back to."""


History.EMPTY = History()


class Granted(msgspec.Struct, frozen=True):
    """Start a new incarnation after this delay."""

    delay_s: float


class Refused(msgspec.Struct, frozen=True):
    """Leave the device stopped."""

    reason: str
    """For a person, with the numbers."""


Verdict = Granted | Refused


def ask(policy: Intensity, history: History, now_s: float) -> tuple[History, Verdict]:
    """Judge an unplanned end, and return the history with it."""
    counting = tuple(then for then in history.restarts if now_s - then <= policy.within_s)
    if len(counting) >= policy.max_restarts:
        reason = (
            f"{counted(len(counting) + 1, 'unplanned end')} within {policy.within_s:g} s; "
            f"restarts allowed in that time: {policy.max_restarts}"
        )
        return History(counting, history.streak), Refused(reason)
    return History((*counting, now_s), history.streak + 1), Granted(_delay_s(policy, history.streak))


def succeeded(history: History) -> History:
    """Return the history after an incarnation became ready: the back-off starts anew, the window does not."""
    return History(history.restarts, streak=0)


def forgiven(history: History, then_s: float) -> History:
    """Return the history without the restart that was granted at a time: what ended the worker is known by now."""
    restarts = list(history.restarts)
    if then_s in restarts:
        restarts.remove(then_s)
    return History(tuple(restarts), history.streak)


def _delay_s(policy: Intensity, streak: int) -> float:
    if streak == 0:
        return 0.0
    try:
        delay_s = policy.backoff_initial_s * policy.backoff_factor ** (streak - 1)
    except OverflowError:  # a float's power, unlike its product, does not become infinite
        delay_s = policy.backoff_max_s if policy.backoff_initial_s else 0.0
    return min(delay_s, policy.backoff_max_s)


def _require(name: str, value: float, *, least: float, strictly: bool = False) -> None:
    if not math.isfinite(value) or value < least or (strictly and value == least):
        relation = "more than" if strictly else "at least"
        raise errors.ConfigurationError(f"{name} must be finite and {relation} {least:g}, not {value}")
