"""The successor of a device's worker: its standby, from the wish for one to its promotion.

Theory of operation. A device that takes calls may have a second process, the *standby*, which has done all that comes
before it is ready, with what `processes.foresight` has it do for first calls, and waits. `WANT_STANDBY` asks for one
whenever a worker has become ready. `StandbyTimer` lets the delay pass that a failed standby costs, and asks for the
device's turn (`Turns`: only so many start at a time in a pool); then `STANDBY_DUE` starts it. A standby is started when
there is room for it: not while the predecessor lives, whose memory it needs, nor while a promoted process still answers
what had waited for it (`settling`).
With `ANNOUNCE` clients learn its endpoint, connect, and send nothing.

When the active incarnation fails or is to be replaced, `CALL_STANDBY` looks whether the standby is ready and still
there, and whether the restart intensity allows it to take over: a promotion counts like a restart. `PROMOTE` changes
the roles and tells the standby to take calls. Nothing is waited for between the fault and that message: clients learn
of the fault and of the new worker together, by `PUBLISH`. The standby is given a pidfd of the predecessor, for it must
not allocate what the predecessor still holds.

A standby that is not ready yet when its worker ends is not started again: once the worker's end has been judged and the
back-off has passed, `SPAWN` takes it as the active incarnation, and its `READY` is awaited (`use`).

A reload tries new code in a standby (`set_up`): the one that there is leaves, another is started by the new plan beside
the worker that runs, and is promoted by the `DRAIN` that follows its being ready. If it ends before, nothing has
happened to the worker.

A standby's own end costs nobody anything. It is not judged by the restart intensity but counted by `StandbyTimer`,
which gives up after several in a row. One that was told to leave, or has failed, takes over no more, but keeps the role
until its process has ended, so that no second one is started beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import ActorInfo, Circuit
from atomr_mp.protocol.messages.operators import StandbyStatus
from atomr_mp.supervision.lifecycle import LifecycleEvent, State
from atomr_mp.supervision.standby import StandbyMode, Turns
from atomr_mp.supervision.suspicion import Cause
from atomr_mp.supervisor.device.end_reports import EndReports
from atomr_mp.supervisor.device.life import DeviceLife
from atomr_mp.supervisor.device.plans import Plans
from atomr_mp.supervisor.device.quarantine import Quarantine
from atomr_mp.supervisor.device.restarts import Restarts
from atomr_mp.supervisor.device.roles import Roles
from atomr_mp.supervisor.device.settling import Settling
from atomr_mp.supervisor.device.standby_timer import StandbyTimer
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.plan import Plan
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.incarnation_end import cause_of_end
from atomr_mp.supervisor.processes.process_factory import ProcessFactory
from atomr_mp.supervisor.processes.starter import Starter
from atomr_mp.transport.descriptors import Descriptor


class Takeover:
    """A device's standby, and its promotion.

    Args:
        life: The device's life.
        roles: Its processes.
        plans: Its plans.
        log: Its events.
        loop: The supervisor's loop.
        starter: Makes the processes.
        turns: Grants standbys their starts.
        restarts: Judges whether a standby may take over.
        quarantine: The reason why nothing is started.
        ends: Lets go of a standby that has ended.

    Attributes:
        settling: The time after a promotion, in which no standby is started.
    """

    def __init__(
        self,
        *,
        life: DeviceLife,
        roles: Roles,
        plans: Plans,
        log: DeviceLog,
        loop: Loop,
        starter: Starter,
        turns: Turns,
        restarts: Restarts,
        quarantine: Quarantine,
        ends: EndReports,
    ) -> None:
        self._life = life
        self._roles = roles
        self._plans = plans
        self._log = log
        self._loop = loop
        self._starter = starter
        self._restarts = restarts
        self._quarantine = quarantine
        self._ends = ends
        self._set_up_generation = 0
        """The standby that a reload has set up, while its outcome is awaited."""
        self._set_up_done: Callable[[errors.AtomrError | None], None] | None = None
        self.settling: Final = Settling(loop, roles, lambda: life.take(self._on_settled))
        plan = plans.held
        self._timer: Final = StandbyTimer(
            plans.device.index, StandbyMode(plan.settings.standby), plan.settings, loop, turns, self._on_due
        )

    # --- what the lifecycle asks for -------------------------------------------------------------------------------

    def want(self) -> None:
        """`WANT_STANDBY`: ask for a standby, or for a process that is forked ahead."""
        if self._timer.mode is StandbyMode.WARM:
            # After this step, which is more urgent.
            self._loop.call_later(0, self._make_ahead)
        if self._set_up_done is not None and (why := self._quarantine.reason):
            self._set_up_over(errors.DeviceUnavailable(why, device=self._plans.device.index))
        if self._has_room:
            self._timer.want()

    def spawn(self) -> None:
        """`SPAWN_STANDBY`: start a standby."""
        plan, for_reload = self._plans.begin_standby()
        try:
            worker = self._starter.start(plan, standby=True, other_code=for_reload)
        except errors.SetupFailed as error:
            self._failed(error.message, None)
            if for_reload:
                self._set_up_over(error)
            self._loop.call_later(0, lambda: self._life.feed(LifecycleEvent.STANDBY_LOST))
            return
        self._roles.stand_by(worker)
        if for_reload:
            self._set_up_generation = worker.generation
        self._log.note("standby_start", "a standby starts", generation=worker.generation, pid=worker.pid)

    def call(self) -> LifecycleEvent | None:
        """`CALL_STANDBY`: have the standby take over, if it is ready and the device may go on."""
        standby = self._roles.standby
        if standby is None or standby.leaving or self._quarantine.reason:
            self.settling.end()
            return None
        if not standby.listen():  # the standby may have died with the worker; its readiness is the next fact
            standby.hang_up()
        active = self._roles.active
        if not standby.is_ready or active is None or not self._restarts.allow_take_over(active):
            self.settling.end()
            return None
        return LifecycleEvent.TAKE_OVER

    def promote(self) -> None:
        """`PROMOTE`: put the standby in the place of an incarnation that has not ended yet."""
        predecessor = self._roles.active
        assert predecessor is not None
        worker = self._roles.promote()
        worker.promote(_end_of(predecessor))
        self.settling.begin()
        self._used(worker)

    def use(self) -> LifecycleEvent | None:
        """Put the standby in the place of an incarnation that has ended; it may be ready already."""
        worker = self._roles.promote()
        worker.promote(None)
        self._used(worker)
        if worker.is_ready:
            return LifecycleEvent.READY
        self._life.reason = "its worker, started as a standby, still starts"
        self._log.note("start", "the standby, which still starts, takes over when it is ready", pid=worker.pid)
        return None

    def dismiss(self) -> None:
        """`DISMISS`: tell the standby, or the process that was forked ahead, to leave, and start none for now."""
        worker = self._roles.standby
        self._timer.forget()
        self._starter.discard_ahead()
        if worker is None or worker.leaving:
            return
        worker.parting.wished("dismiss")
        if worker.is_ready:
            worker.leave()
            worker.drain(self._plans.held.settings.drain_timeout_s, worker.kill)
        else:
            worker.kill()

    # --- what happens to the standby -------------------------------------------------------------------------------

    def ready(self, worker: Incarnation, actors: list[ActorInfo]) -> None:
        """The standby could take over; this is part of a fact."""
        if worker.leaving or worker.was_ready:
            return
        worker.became_ready(actors)
        worker.cancel_timer()
        self._timer.ready()
        self.started(worker)
        text = f"ready to take over after {worker.start_s * 1000:.0f} ms"
        self._log.note("standby_ready", text, generation=worker.generation, pid=worker.pid)
        if worker.generation == self._set_up_generation:
            self._set_up_over(None)
        self._life.step(LifecycleEvent.STANDBY_READY)

    def ended(self, worker: Incarnation) -> None:
        """The standby's process has ended, or never will; this is part of a fact."""
        self._roles.end_standby()
        if worker.parting.wish:
            text = "its standby has left"
            self._log.note("planned_end", text, generation=worker.generation, pid=worker.pid)
        else:
            fault = worker.parting.fault
            self._failed(fault.message if fault else worker.end, worker)
        self._ends.standby_over(worker, unplanned=not worker.parting.wish)
        self._life.step(LifecycleEvent.STANDBY_LOST)
        if worker.generation == self._set_up_generation:
            self._set_up_over(worker.parting.fault or errors.SetupFailed(f"its new worker {worker.end}"))
        if worker.was_ready:  # clients have heard of it
            self._life.tell()

    # --- what others tell and ask ----------------------------------------------------------------------------------

    def over(self, worker: Incarnation) -> None:
        """See whether a process has ended, or got stuck, at an import that no further standby repeats."""
        board = worker.board
        inside = cause_of_end(worker, board) is Cause.INSIDE
        board.release()
        if self._starter.foresight.ended(worker, inside=inside):
            self._timer.forgive()

    def started(self, worker: Incarnation) -> None:
        """Note how long a process took to become ready."""
        self._timer.start_s = worker.start_s

    def took(self, away_s: float) -> None:
        """Note how long a promotion took, from the first sign of the fault."""
        self._timer.take_over_s = away_s

    def try_again(self) -> None:
        """Forget failures of standbys: something has changed."""
        self._timer.forgive()

    def stop(self) -> None:
        """Start no standby for now, and stop sparing processes."""
        self._timer.forget()
        self.settling.end()

    @property
    def is_hot(self) -> bool:
        """Whether the pool has standbys that are processes of their own."""
        return self._timer.mode is StandbyMode.HOT

    def set_up(self, plan: Plan, done: Callable[[errors.AtomrError | None], None]) -> None:
        """Set up the next worker by another plan, as the running one's standby, in the place of the present one.

        Args:
            plan: The plan; `take_plan` ends the attempt.
            done: Called once, later: with None when it is ready to take over, or has; with the reason if it has ended.
        """
        self._life.take(lambda: self._set_up(plan, done))

    def _set_up(self, plan: Plan, done: Callable[[errors.AtomrError | None], None]) -> None:
        self._plans.set_up_by(plan)
        self._set_up_done = done
        self._timer.forgive()
        self.dismiss()
        self.want()  # waits for a leaving standby or a predecessor

    def take_plan(self) -> None:
        """Go by the plan that holds from now on; a standby by an abandoned plan leaves. This is part of a fact."""
        self._timer.policy = self._plans.held.settings
        self._set_up_generation, self._set_up_done = 0, None
        if self._roles.standby is not None and not self._plans.fits_standby:
            self.dismiss()

    def status(self, factory: ProcessFactory) -> StandbyStatus:
        """Return the standby's status."""
        return self._timer.status(self._roles.standby, factory)

    @property
    def _has_room(self) -> bool:
        """Whether a standby may be started: there is none, nor a predecessor, whose memory it needs.

        While the circuit is half open one process is tried, and a standby could not take over.
        """
        roles, tried = self._roles, self._restarts.circuit is Circuit.HALF_OPEN
        in_the_way = roles.standby is not None or roles.predecessor is not None or self.settling.lasts
        return not (in_the_way or tried or self._quarantine.reason)

    def _on_settled(self) -> None:
        """Start the next standby, which disturbs no takeover now."""
        if self._life.state is State.READY:
            self.want()

    def _used(self, worker: Incarnation) -> None:
        """The standby has become the active incarnation."""
        self._starter.foresight.promoted(worker)
        self._timer.used()
        self._plans.promoted()
        if self._set_up_generation == self._roles.generation:
            self._set_up_over(None)

    def _set_up_over(self, error: errors.AtomrError | None) -> None:
        """Report the outcome of a reload's standby; later, since this is in the middle of a step."""
        done, self._set_up_done, self._set_up_generation = self._set_up_done, None, 0
        if done is not None:
            self._loop.call_later(0, lambda: done(error))

    def _make_ahead(self) -> None:
        if self._life.state is State.READY:
            self._starter.make_ahead()

    def _on_due(self) -> None:
        """Start a standby in its turn: another device has finished its own start, maybe in the middle of a step."""
        self._life.take(self._start_if_room)

    def _start_if_room(self) -> None:
        if self._has_room:
            self._life.step(LifecycleEvent.STANDBY_DUE)
        if self._roles.standby is None:
            self._timer.not_now()

    def _failed(self, why: str, worker: Incarnation | None) -> None:
        generation = self._starter.last_generation if worker is None else worker.generation
        pid = worker.pid if worker else None
        self._log.note("standby_end", f"its standby has ended: {why}", generation=generation, pid=pid)
        if self._timer.failed(why, None if worker is None else worker.ready_for_s):
            self._log.note("standby_failed", self._timer.note, generation=generation)


def _end_of(predecessor: Incarnation) -> Descriptor | None:
    """Return a descriptor that signals a killed process's end; None for one that is drained."""
    if predecessor.drained:
        return None
    try:
        return Descriptor(os.dup(predecessor.process.pidfd))
    except OSError:  # no descriptor is left, so an allocation may fail instead of waiting
        return None
