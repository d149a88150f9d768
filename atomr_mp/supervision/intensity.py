"""Restart intensity: how many restarts are allowed within a time, how soon each comes, and what follows too many. Pure.

The rule is that of Erlang/OTP's supervisors (`intensity` and `period`), with a back-off: where `max_restarts` is 3,
three restarts within the time are allowed. The fourth unplanned end opens the device's *circuit*: nothing is started
for a while (`open_s`). Then one process is tried, and the circuit is *half open*. If that process serves for long
enough (`trial_s`), the circuit closes and everything is forgotten. If it ends before, the circuit opens again, for
longer. With `give_up` the circuit never half opens: the device stops until somebody starts it.

Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final

import msgspec

from atomr_mp.protocol.messages.devices import Circuit
from atomr_mp.protocol.words import counted
from atomr_mp.supervision.settings import PoolSettings

OPEN_LEAST_S: Final = 0.5
"""Shortest time that a circuit is open, also where there is no back-off: a device that cannot live costs little."""


class History(msgspec.Struct, frozen=True):
    """The facts that the policy judges by."""

    restarts: tuple[float, ...] = ()
    """When restarts were granted, oldest first, as far back as they count."""
    streak: int = 0
    """Restarts since the last success."""
    openings: int = 0
    """How often the circuit has opened since it was closed."""
    opened_s: float | None = None
    """When it opened, while it is open."""

    @property
    def circuit(self) -> Circuit:
        """The state of the circuit."""
        if self.opened_s is not None:
            return Circuit.OPEN
        return Circuit.HALF_OPEN if self.openings else Circuit.CLOSED

    @property
    def judged_s(self) -> float:
        """When the latest end in it was judged; -inf if there is none."""
        if self.opened_s is not None:
            return self.opened_s
        return self.restarts[-1] if self.restarts else -math.inf

    EMPTY: ClassVar[History]
    """Nothing has happened; also what an operator's restart goes back to."""


History.EMPTY = History()


class Granted(msgspec.Struct, frozen=True):
    """Start a new incarnation after this delay."""

    delay_s: float


class Opened(msgspec.Struct, frozen=True):
    """Start nothing before this delay is over, then try one incarnation."""

    delay_s: float
    reason: str
    """For a person, with the numbers."""


class Refused(msgspec.Struct, frozen=True):
    """Leave the device stopped."""

    reason: str
    """For a person, with the numbers."""


RestartVerdict = Granted | Opened | Refused


def ask(policy: PoolSettings, history: History, now_s: float) -> tuple[History, RestartVerdict]:
    """Judge an unplanned end, and return the history with it."""
    counting = tuple(then for then in history.restarts if now_s - then <= policy.within_s)
    if history.circuit is Circuit.CLOSED and len(counting) < policy.max_restarts:
        return History((*counting, now_s), history.streak + 1), Granted(delay_s(policy, history.streak))
    if history.circuit is Circuit.CLOSED:
        reason = (
            f"{counted(len(counting) + 1, 'unplanned end')} within {policy.within_s:g} s; "
            f"restarts allowed in that time: {policy.max_restarts}"
        )
    else:
        tries = counted(history.openings, "try", "tries")
        reason = f"{tries} after too many unplanned ends, none of which has served for {trial_s(policy):g} s"
    opened = History(counting, history.streak, history.openings + 1, now_s)
    if policy.give_up:
        return opened, Refused(reason)
    return opened, Opened(open_s(policy, history.openings), reason)


def open_s(policy: PoolSettings, openings: int) -> float:
    """Return how long the circuit is open, after it has opened so many times before: the back-off's time."""
    longest_s = max(policy.backoff_max_s, OPEN_LEAST_S)
    try:
        return min(max(policy.backoff_initial_s, OPEN_LEAST_S) * policy.backoff_factor**openings, longest_s)
    except OverflowError:
        return longest_s


def trial_s(policy: PoolSettings) -> float:
    """Return how long an incarnation must serve to close the circuit: ends that are so far apart are allowed."""
    return policy.within_s / max(policy.max_restarts, 1)


def tried(history: History) -> History:
    """Return the history once an incarnation is started: an open circuit is half open."""
    return History(history.restarts, history.streak, history.openings)


def succeeded(history: History) -> History:
    """Return the history after an incarnation became ready: the back-off starts anew, the window does not."""
    return History(history.restarts, 0, history.openings, history.opened_s)


def forgiven(history: History, then_s: float) -> History:
    """Return the history without the end that was judged at a time: what ended the worker is known by now."""
    if history.opened_s == then_s:
        return History(history.restarts, history.streak, history.openings - 1)
    restarts = list(history.restarts)
    if then_s in restarts:
        restarts.remove(then_s)
    return History(tuple(restarts), history.streak, history.openings, history.opened_s)


def delay_s(policy: PoolSettings, streak: int) -> float:
    """Return the delay of a restart after so many in a row: the first comes at once."""
    if streak == 0:
        return 0.0
    try:
        delay_s = policy.backoff_initial_s * policy.backoff_factor ** (streak - 1)
    except OverflowError:  # a float's power, unlike its product, does not become infinite
        delay_s = policy.backoff_max_s if policy.backoff_initial_s else 0.0
    return min(delay_s, policy.backoff_max_s)
