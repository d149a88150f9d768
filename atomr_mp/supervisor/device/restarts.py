"""A device's unplanned ends: how many there were, whether another process may be started, and its circuit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import Circuit
from atomr_mp.supervision import intensity
from atomr_mp.supervision.directives import Directive, directive
from atomr_mp.supervision.lifecycle import LifecycleEvent, State
from atomr_mp.supervisor.device.life import DeviceLife
from atomr_mp.supervisor.device.plans import Plans
from atomr_mp.supervisor.device.quarantine import Quarantine
from atomr_mp.supervisor.device.roles import Roles
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.incarnation_end import error_of_requests

FORGIVEN: Final = -1.0
"""Stands for the time of a restart that does not count."""


class Restarts:
    """Counts a device's ends, judges them by its restart intensity, and lets the back-off pass.

    Args:
        life: The device's life.
        roles: Its processes.
        plans: Its plans, whose restart intensity holds.
        log: Its events.
        loop: The supervisor's loop.
        quarantine: The reason why nothing is started.
        reports_due_s: Returns the longest wait for clients' reports on ends that may be forgiven.
    """

    def __init__(
        self,
        life: DeviceLife,
        roles: Roles,
        plans: Plans,
        log: DeviceLog,
        loop: Loop,
        quarantine: Quarantine,
        reports_due_s: Callable[[], float],
    ) -> None:
        self._life = life
        self._roles = roles
        self._plans = plans
        self._log = log
        self._loop = loop
        self._quarantine = quarantine
        self._reports_due_s = reports_due_s
        self._stopping = False
        """The pool stops, and starts nothing."""
        self._count = 0
        self._counted: set[int] = set()
        """Generations whose ends were counted, while reports of their processes may still come."""
        self._lost: errors.AtomrError | None = None
        self._no_process: errors.AtomrError | None = None
        self._history = intensity.History.EMPTY
        self._judged: dict[int, float] = {}
        """Times of the judged restarts, by the generation that had ended; `FORGIVEN` for one that does not count."""
        self._delay_s = 0.0
        self._retry_at = 0.0
        self._backoff: Timer | None = None
        self._reports: Timer | None = None
        """Runs while the verdict on the last end waits for clients' reports."""

    @property
    def count(self) -> int:
        """Unplanned ends so far."""
        return self._count

    @property
    def lost(self) -> errors.AtomrError | None:
        """The cause of the last incarnation's end, if that was unplanned."""
        return self._lost

    @property
    def circuit(self) -> Circuit:
        """Whether the device is started again after it has ended too often."""
        return self._history.circuit

    @property
    def retry_at(self) -> float:
        """End of the delay that was granted last, in seconds since the epoch."""
        return self._retry_at

    # --- ends ------------------------------------------------------------------------------------------------------

    def add(self, worker: Incarnation) -> None:
        """Count an unplanned end, once."""
        if worker.generation not in self._counted and not worker.parting.is_wanted:
            self._counted.add(worker.generation)
            self._count += 1

    def release(self, worker: Incarnation) -> None:
        """Forget a process that has sent its last message."""
        self._counted.discard(worker.generation)

    def not_started(self, why: errors.AtomrError) -> None:
        """Count a process that cannot be made as an end, which is reported next."""
        self._no_process = why

    def ended(self, lost: errors.AtomrError | None) -> None:
        """The active incarnation is over; `lost` says why, None after a planned end."""
        self._lost = lost

    def ended_unstarted(self) -> None:
        """The process that is over was never made."""
        self._lost = self._no_process

    # --- what may follow -------------------------------------------------------------------------------------------

    def ask(self) -> LifecycleEvent | None:
        """`ASK_RESTART`: return whether another process may follow the last, whose end was unplanned.

        None while clients' reports are due that may forgive this end or an earlier one: otherwise calls would be
        refused by a device that comes back with the first report.
        """
        if self._lost is self._no_process and not isinstance(self._lost, errors.DeviceUnavailable):
            self._count += 1
        return self._verdict()

    def reported(self) -> None:
        """Give the waiting verdict, if there is one: a client has reported what ran when a worker ended somewhere."""
        self._life.take(self._ask_again)

    def _ask_again(self) -> None:
        if self._reports is not None:
            self._forget_reports()
            verdict = self._verdict()
            if verdict is not None:
                self._life.step(verdict)

    def _verdict(self) -> LifecycleEvent | None:
        lost = self._lost
        assert lost is not None
        if why := self._quarantine.reason:
            self._life.reason = why
            self._log.note("quarantined", why)
            return LifecycleEvent.QUARANTINE
        history, verdict = self._judge(lost)
        if isinstance(verdict, intensity.Opened | intensity.Refused) and not _ends_for_good(lost):
            due_s = self._reports_due_s()
            if due_s > 0:
                self._reports = self._loop.call_later(due_s, self.reported)
                return None
        self._take(history)
        match verdict:
            case intensity.Granted(delay_s):
                self._delay_s = delay_s
                return LifecycleEvent.RESTART_GRANTED
            case intensity.Opened(delay_s, reason):
                self._delay_s = delay_s
                self._life.reason = f"{reason}; a start is tried after {delay_s:g} s; the last: {lost.message}"
                self._log.note("circuit_open", self._life.reason)
                return LifecycleEvent.CIRCUIT_OPENED
            case intensity.Refused(reason):
                self._life.reason = reason if reason == lost.message else f"{reason}; the last: {lost.message}"
                self._log.note("stopped", self._life.reason)
                return LifecycleEvent.RESTART_REFUSED

    def arm_backoff(self) -> LifecycleEvent | None:
        """Wait for the end of the delay that was granted."""
        if self._delay_s == 0:
            return LifecycleEvent.BACKOFF_OVER
        self._retry_at = time.time() + self._delay_s
        self._log.note("back_off", f"the next start is in {self._delay_s:g} s")
        self._backoff = self._loop.call_later(self._delay_s, lambda: self._life.feed(LifecycleEvent.BACKOFF_OVER))
        return None

    def left_backoff(self) -> None:
        """The device has stopped waiting for verdicts and delays."""
        self._forget_reports()
        if self._backoff is not None:
            self._backoff.cancel()
            self._backoff = None

    def allow_take_over(self, worker: Incarnation) -> bool:
        """Return whether a standby may take an incarnation's place, whose end is counted then."""
        if not worker.parting.is_wanted:
            history, verdict = self._judge(worker.parting.fault or error_of_requests(worker))
            if not isinstance(verdict, intensity.Granted):
                return False  # it is judged again, and logged, when the process has ended
            self._take(history)
            self.add(worker)
        return True

    # --- ends that are forgotten -----------------------------------------------------------------------------------

    def succeeded(self) -> None:
        """An incarnation is ready: the next unplanned end is the first of its series. One on trial has to serve."""
        self._history = intensity.succeeded(self._history)
        worker = self._roles.active
        if self.circuit is Circuit.HALF_OPEN and worker is not None:
            policy = self._plans.held.settings
            worker.set_timer(intensity.trial_s(policy), lambda: self._life.take(lambda: self._on_served(worker)))

    def tried(self) -> None:
        """An incarnation is started: an open circuit is half open."""
        self._history = intensity.tried(self._history)

    def forget(self) -> None:
        """Forget all ends: the circuit is closed, by an operator or by an incarnation that has served."""
        self._history = intensity.History.EMPTY

    def _on_served(self, worker: Incarnation) -> None:
        if worker is self._roles.active and self._life.state is State.READY:
            self._log.note("circuit_closed", f"its worker has served for {worker.ready_for_s:.3g} s")
            self._life.step(LifecycleEvent.SERVED)
            self._life.tell()

    def stop(self) -> None:
        """Start nothing from now on: the pool stops."""
        self._stopping = True

    def forgive(self, generation: int, why: str) -> None:
        """Forgive the end of an incarnation, which was not the device's fault: the intensity counts it no more."""
        self._life.take(lambda: self._forgive(generation, why))

    def _forgive(self, generation: int, why: str) -> None:
        self._log.note("poison_request", why, generation=generation)
        then_s = self._judged.pop(generation, None)
        if then_s is None:
            self._judged[generation] = FORGIVEN
            return
        self._history = intensity.forgiven(self._history, then_s)
        has_stopped_it = self._life.state in {State.STOPPED, State.TRIPPED} and generation == self._roles.generation
        if has_stopped_it and not self._stopping:
            self._life.step(LifecycleEvent.START)

    def _judge(self, lost: errors.AtomrError) -> tuple[intensity.History, intensity.RestartVerdict]:
        """Judge the unplanned end of the active incarnation by its error and by those before it."""
        if _ends_for_good(lost):
            return self._history, intensity.Refused(lost.message)
        if self._judged.get(self._roles.generation) == FORGIVEN:  # clients were told before its process had ended
            return self._history, intensity.Granted(0.0)
        return intensity.ask(self._plans.held.settings, self._history, time.monotonic())

    def _take(self, history: intensity.History) -> None:
        """Apply a verdict on the end of the active incarnation."""
        generation = self._roles.generation
        changed = history is not self._history
        self._history = history
        self._judged.pop(generation, None)
        if changed:
            self._judged = {each: then for each, then in self._judged.items() if then in history.restarts}
            self._judged[generation] = history.judged_s

    def _forget_reports(self) -> None:
        if self._reports is not None:
            self._reports.cancel()
            self._reports = None


def _ends_for_good(lost: errors.AtomrError) -> bool:
    """Whether the first end by an error already stops the device."""
    return directive(lost) in {Directive.STOP, Directive.ESCALATE}
