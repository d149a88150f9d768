"""Decides when a device's standby is started, by the policy and the pool's turns; tells its status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from atomr_mp.process.scheduling import standstill
from atomr_mp.protocol.messages.operators import StandbyStatus
from atomr_mp.protocol.words import counted
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervision.standby import MAX_FAILURES, StandbyMode, StandbyState, Turns, delay_s, failures_after
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.process_factory import ProcessFactory

TAKE_OVER_S: Final = 0.001
"""Assumed time of a takeover, before one was measured."""


class StandbyTimer:
    """The state that a device's successive standbys have in common.

    Args:
        device: The device's index.
        mode: The pool's kind of standby.
        policy: Decides how soon a standby may follow a failed one.
        loop: The supervisor's loop.
        turns: The pool's turns.
        due: Called when a standby may be started; `ready`, `used`, `failed`, `not_now` or `forget` must follow.
    """

    def __init__(
        self, device: int, mode: StandbyMode, policy: PoolSettings, loop: Loop, turns: Turns, due: Callable[[], None]
    ) -> None:
        self.mode: Final = mode
        self.policy = policy
        self.note = ""
        """A note for the operator."""
        self.ended = 0
        """Number of standbys that have ended without being needed."""
        self.start_s: float | None = None
        """Duration of the latest start of a process."""
        self.take_over_s: float | None = None
        """Duration of the latest promotion, from the fault's detection."""
        self._device: Final = device
        self._loop = loop
        self._turns = turns
        self._due = due
        self._failures = 0
        self._timer: Timer | None = None

    def want(self) -> None:
        """Ask for a standby as soon as possible; may be called at any time."""
        delay = delay_s(self.policy, self._failures)
        if self.mode is not StandbyMode.HOT or self._timer is not None or delay is None:
            return
        self._timer = self._loop.call_later(delay, self._ask)

    def ready(self) -> None:
        """A standby has become ready."""
        self._turns.done(self._device)

    def used(self) -> None:
        """A standby has become the active incarnation."""
        self.forget()
        self.forgive()

    def failed(self, why: str, ready_for_s: float | None) -> bool:
        """A standby has ended by itself; return whether no more are started for now."""
        self.forget()
        self.ended += 1
        self._failures = failures_after(self._failures, ready_for_s)
        if self._failures >= MAX_FAILURES:
            self.note = (
                f"{counted(self._failures, 'standby has', 'standbys have')} ended in a row, and none is started "
                "before the next restart; "
                f"the last: {why}"
            )
        return bool(self.note)

    def not_now(self) -> None:
        """No standby was started after all."""
        self._turns.done(self._device)

    def forgive(self) -> None:
        """Forget failures: something has changed."""
        self._failures = 0
        self.note = ""

    def forget(self) -> None:
        """Start no standby for now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._turns.done(self._device)

    def status(self, standby: Incarnation | None, factory: ProcessFactory) -> StandbyStatus:
        """Return the standby's status, or that of the zygote which the next worker is forked from."""
        if self.mode is StandbyMode.WARM:
            return StandbyStatus(
                mode=self.mode,
                state=factory.state,
                standby_pid=factory.pid or None,
                generation=0,
                restarts=factory.ended,
                next_fault_costs_ms=None if self.start_s is None else round(self.start_s * 1000, 1),
                note=_note(factory.note, factory.pid),
            )
        if standby is not None and standby.leaving:
            standby = None
        if standby is None:
            state = StandbyState.FAILED if self.note else StandbyState.NONE
        else:
            state = StandbyState.READY if standby.is_ready else StandbyState.STARTING
        costs_s = self._costs_s(standby)
        return StandbyStatus(
            mode=self.mode,
            state=state,
            standby_pid=standby.pid if standby else None,
            generation=standby.generation if standby else 0,
            restarts=self.ended,
            next_fault_costs_ms=None if costs_s is None else round(costs_s * 1000, 1),
            note=_note(self.note, standby.pid if standby else 0),
        )

    def _ask(self) -> None:
        self._timer = None
        self._turns.ask(self._device, self._due)

    def _costs_s(self, standby: Incarnation | None) -> float | None:
        """Return the time that a fault would cost, from its first sign."""
        if standby is None:
            return self.start_s
        take_over_s = self.take_over_s or TAKE_OVER_S
        if standby.is_ready:
            return take_over_s
        if self.start_s is None:
            return None
        return max(take_over_s, self.start_s - standby.start_s)


def _note(note: str, pid: int) -> str:
    """Return an operator's note on the process that the next worker comes from; `pid` is 0 if there is none."""
    still = standstill(pid) if pid else None
    return "; ".join(filter(None, (note, f"for the next worker: {still}" if still else "")))
