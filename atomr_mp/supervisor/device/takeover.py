"""Who comes after a device's worker: its standby, from the wish for one to its promotion; whom that has replaced."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp.supervision.lifecycle import LifecycleEvent, State
from atomr_mp.supervision.standby import StandbyMode, Turns
from atomr_mp.supervision.suspicion import Death
from atomr_mp.supervisor.device.incarnation import Incarnation
from atomr_mp.supervisor.device.incarnation_end import cause_of_end
from atomr_mp.supervisor.device.listener import DeviceListener
from atomr_mp.supervisor.device.standby_timer import StandbyTimer
from atomr_mp.supervisor.device.starter import Starter
from atomr_mp.supervisor.loop import Loop
from atomr_mp.transport.descriptors import Descriptor

if TYPE_CHECKING:
    from atomr_mp.supervisor.device.device import SupervisedDevice


class Takeover:
    """A device's standby and its predecessor.

    Args:
        device: The device.
        mode: What the pool has.
        loop: The supervisor's loop.
        sessions: Who is told.
        starter: Makes the processes.
        turns: Whose standby may start.
    """

    def __init__(
        self,
        device: SupervisedDevice,
        mode: StandbyMode,
        *,
        loop: Loop,
        sessions: DeviceListener,
        starter: Starter,
        turns: Turns,
    ) -> None:
        self.standby: Incarnation | None = None
        """What waits to be the next, or has failed at that and is still to end."""
        self.predecessor: Incarnation | None = None
        """Whose place a standby has taken, and that is still to end."""
        self.standbys: Final = StandbyTimer(device.index, mode, device.plan.intensity, loop, turns, self._due)
        self._device = device
        self._loop = loop
        self._sessions = sessions
        self._starter = starter

    # --- what the lifecycle asks for -------------------------------------------------------------------------------

    def want(self) -> None:
        """See that there is something that the next process comes from sooner."""
        if self.standbys.mode is StandbyMode.WARM:
            # After this step, which has something better to do first.
            self._loop.call_later(0, self._make_ahead)
        if self._has_room:
            self.standbys.want()

    def spawn(self) -> None:
        """Start a standby."""
        try:
            worker = self.standby = self._starter.start(self._device.plan_in_use, standby=True)
        except errors.SetupFailed as error:
            self._failed(error.message, None)
            self._loop.call_later(0, lambda: self._device.life.feed(LifecycleEvent.STANDBY_LOST))
            return
        self._device.note("standby_start", "a standby starts", generation=worker.generation, pid=worker.pid)

    def announce(self) -> None:
        """Tell the clients where it will take calls."""
        self._sessions.device_changed(self._device)

    def call(self) -> LifecycleEvent | None:
        """Have the standby take over, if it is ready and the device may go on."""
        device, standby = self._device, self.standby
        if standby is None or standby.leaving or device.quarantine.reason:
            return None
        if not standby.listen():  # it may have died with the other; that it has become ready is the next fact
            standby.hang_up()
        active = device.active
        if not standby.is_ready or active is None or not device.ends.allow_take_over(active):
            return None
        return LifecycleEvent.TAKE_OVER

    def promote(self) -> None:
        """Put the standby in the place of an incarnation that has not ended yet."""
        assert self.predecessor is None
        self.predecessor = predecessor = self._device.active
        self._promoted(predecessor)

    def use(self) -> LifecycleEvent | None:
        """Put the standby in the place of an incarnation that has ended; it may be ready already."""
        worker = self._promoted(None)
        if worker.is_ready:
            return LifecycleEvent.READY
        self._device.reason = "its worker, which was to stand by, still starts"
        self._device.note("start", "the standby, which still starts, is to take over", pid=worker.pid)
        return None

    def end_predecessor(self) -> None:
        """The predecessor has ended, or never will."""
        worker, self.predecessor = self.predecessor, None
        assert worker is not None
        self._device.ends.over(worker)
        if self._device.active is not None:
            self._device.active.tell(control.IncarnationOver(worker.device, worker.generation))

    def dismiss(self) -> None:
        """Have the standby leave, if there is one, or what was forked ahead, and start none for now."""
        worker = self.standby
        self.standbys.forget()
        self._starter.discard_ahead()
        if worker is None or worker.leaving:
            return
        worker.wish = "dismiss"
        if not worker.is_ready:
            worker.kill()
            return
        worker.leaving = worker.drained = True
        worker.tell(control.Drain())
        worker.timer = self._loop.call_later(self._device.plan.drain_timeout_s, worker.kill)

    # --- what happens to the standby -------------------------------------------------------------------------------

    def ready(self, worker: Incarnation) -> None:
        """The standby could take over."""
        if worker.leaving or worker.ready_s is not None:
            return
        worker.ready_s = time.monotonic()
        worker.cancel_timer()
        self.standbys.ready()
        took_s = self.standbys.start_s = worker.ready_s - worker.started_s
        self._device.note(
            "standby_ready",
            f"ready to take over after {took_s * 1000:.0f} ms",
            generation=worker.generation,
            pid=worker.pid,
        )
        self._device.life.step(LifecycleEvent.STANDBY_READY)

    def ended(self, worker: Incarnation) -> None:
        """The standby's process has ended, or never will."""
        self.standby = None
        if worker.wish:
            self._device.note("planned_end", "its standby has left", generation=worker.generation, pid=worker.pid)
        else:
            why = worker.fault.message if worker.fault else worker.end
            self._failed(why, worker)
            self._note_death(worker)
        announced = worker.ready_s is not None
        self._device.let_go(worker)
        self._device.life.step(LifecycleEvent.STANDBY_LOST)
        if announced:
            self._sessions.device_changed(self._device)

    @property
    def _has_room(self) -> bool:
        """Whether a standby may be started: there is none, nor a predecessor, whose memory it needs."""
        return self.standby is None and self.predecessor is None and not self._device.quarantine.reason

    def _make_ahead(self) -> None:
        if self._device.state is State.READY:
            self._starter.make_ahead()

    def _due(self) -> None:
        """It is our turn to start one: another device has ended its own, maybe in the middle of a step."""
        self._device.life.take(self._start_if_room)

    def _start_if_room(self) -> None:
        if self._has_room:
            self._device.life.step(LifecycleEvent.STANDBY_DUE)
        if self.standby is None:
            self.standbys.not_now()

    def _promoted(self, predecessor: Incarnation | None) -> Incarnation:
        """Make the standby the active incarnation; return it. Whom it replaces may not have ended yet."""
        worker, self.standby = self.standby, None
        assert worker is not None
        self._device.take_in(worker)
        worker.tell(control.Promote(), None if predecessor is None else _end_of(predecessor))
        worker.promoted_s = time.monotonic()
        self.standbys.used()
        return worker

    def _note_death(self, worker: Incarnation) -> None:
        """Have it known that the standby has ended: a signal that struck it may strike others too."""
        board = worker.board
        self._sessions.died(self._device, worker.generation, Death(0, cause=cause_of_end(worker, board)))
        board.release()

    def _failed(self, why: str, worker: Incarnation | None) -> None:
        ready_for_s = None
        if worker is not None and worker.ready_s is not None:
            ready_for_s = time.monotonic() - worker.ready_s
        generation = self._starter.last_generation if worker is None else worker.generation
        pid = worker.pid if worker else None
        self._device.note("standby_end", f"its standby has ended: {why}", generation=generation, pid=pid)
        if self.standbys.failed(why, ready_for_s):
            self._device.note("standby_failed", self.standbys.note, generation=generation)


def _end_of(predecessor: Incarnation) -> Descriptor | None:
    """Return what tells of a killed process's end; None for one that finishes what it holds, maybe for long."""
    if predecessor.drained:
        return None
    try:
        return Descriptor(os.dup(predecessor.process.pidfd))
    except OSError:  # no descriptor is left: an allocation may fail that would have had to wait
        return None
