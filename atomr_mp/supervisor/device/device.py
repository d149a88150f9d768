"""One device under supervision: what happens to its processes goes into the lifecycle table, what comes out is done."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.process.files.events import EventLog, Scalar
from atomr_mp.process.files.logs import RotatedOutput
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.protocol.codec import ErrorInfo, clip
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.devices import OUT_OF_USE, ActorInfo, DeviceInfo, StandbyInfo
from atomr_mp.protocol.messages.operators import Figures
from atomr_mp.supervision import intensity
from atomr_mp.supervision.lifecycle import Action, LifecycleEvent, State
from atomr_mp.supervision.standby import StandbyMode, Turns
from atomr_mp.supervisor.device.end_reports import EndReports
from atomr_mp.supervisor.device.incarnation import Incarnation
from atomr_mp.supervisor.device.life import Act, Life
from atomr_mp.supervisor.device.listener import DeviceListener
from atomr_mp.supervisor.device.process_factory import ProcessFactory
from atomr_mp.supervisor.device.quarantine import Quarantine
from atomr_mp.supervisor.device.starter import Starter
from atomr_mp.supervisor.device.takeover import Takeover
from atomr_mp.supervisor.device.worker_events import WorkerEvents
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.plan import DevicePlan, Plan
from atomr_mp.supervisor.sessions.residents import ResidentKeeper

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

INFO_CHARS: Final = 1200
"""Longest text in what is told of a device: with 64 of them a welcome stays below the limit of a message, and one
actor's long message does not keep clients from connecting. The worker's log and the event log have it whole."""


QUIET_S: Final = 0.05
"""How long a poisoned process, which does nothing any more, outlives its standby's promotion: its context's end keeps
the device from others. On an H200 the standby's first answer took 2.2 ms with it, 3.9 ms and up to 60 ms without."""


class SupervisedDevice:
    """A device's life, through all its incarnations.

    Args:
        plan: The pool's plan.
        device: This device's part of it.
        loop: The supervisor's loop.
        run_dir: Where sockets and logs are.
        log: The event log.
        epoch: The pool's.
        sessions: Who is told.
        factory: Makes the processes.
        turns: Whose standby may start.
        residents: What outlives the processes.
        ended: Called after each process end, when it has been reaped.
        changed: Called after each change of state; must not act on the device at once.
    """

    def __init__(
        self,
        plan: Plan,
        device: DevicePlan,
        *,
        loop: Loop,
        run_dir: HeldRunDirectory,
        log: EventLog,
        epoch: bytes,
        sessions: DeviceListener,
        factory: ProcessFactory,
        turns: Turns,
        residents: ResidentKeeper,
        ended: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.index: Final = device.index
        self.name: Final = device.name
        self.notes: Final = device.notes
        self.generation = 0
        """Of the active incarnation, or of the last that was."""
        self.reason = "not started yet"
        self.active: Incarnation | None = None
        """Whose states those of the table are."""
        self.plan = plan
        """That holds."""
        self.plan_in_use = plan
        """By which the active incarnation was started, and its standby is."""
        self._device = device
        self._trial: Plan | None = None
        """What the next incarnation is started by, if not by the plan that holds."""
        self._loop = loop
        self._events = log
        self._sessions = sessions
        self._residents = residents
        self._ended = ended
        self._changed = changed
        self._actors: list[ActorInfo] = []
        self._backoff: Timer | None = None
        self._delay_s = 0.0
        self._held_s = 0.0
        """Since when clients hold their calls for the next incarnation; 0 if they do not, or for the first."""
        self._stopping = False
        """The pool stops, and nothing is to be started any more."""
        self.worker_events: Final = WorkerEvents(self, sessions, residents, run_dir, ended)
        self._starter: Final = Starter(
            self,
            self.worker_events,
            plan,
            device,
            loop=loop,
            run_dir=run_dir,
            epoch=epoch,
            factory=factory,
            introductions=lambda: sessions.introductions(self),
        )
        self.ends: Final = EndReports(self, sessions)
        self.quarantine: Final = Quarantine(self)
        mode = StandbyMode(plan.standby)
        self.takeover: Final = Takeover(self, mode, loop=loop, sessions=sessions, starter=self._starter, turns=turns)
        self.standbys: Final = self.takeover.standbys
        act: Final[dict[Action, Act]] = {
            Action.SPAWN: self._spawn,
            Action.PUBLISH: self._publish,
            Action.HOLD: self._hold,
            Action.DRAIN: self._drain,
            Action.KILL: self._kill,
            Action.END: self._end,
            Action.ASK_RESTART: self._ask_restart,
            Action.ARM_BACKOFF: self._arm_backoff,
            Action.RESET_BACKOFF: self.ends.restarts.succeeded,
            Action.RESET_INTENSITY: self.ends.restarts.forget,
            Action.WANT_STANDBY: self.takeover.want,
            Action.SPAWN_STANDBY: self.takeover.spawn,
            Action.ANNOUNCE: self.takeover.announce,
            Action.CALL_STANDBY: self.takeover.call,
            Action.PROMOTE: self.takeover.promote,
            Action.END_PREDECESSOR: self.takeover.end_predecessor,
            Action.DISMISS: self.takeover.dismiss,
        }
        self.life: Final = Life(self.index, act, tell=lambda: sessions.device_changed(self), changed=self._on_changed)

    # --- what others ask -------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the active incarnation, or of the device where there is none."""
        return self.life.state

    @property
    def restarts(self) -> int:
        """Unplanned ends so far."""
        return self.ends.restarts.count

    @property
    def output(self) -> RotatedOutput:
        """What its processes print."""
        return self._starter.output

    @property
    def standby(self) -> Incarnation | None:
        """What waits to be the next, or has failed at that and is still to end."""
        return self.takeover.standby

    @property
    def predecessor(self) -> Incarnation | None:
        """Whose place a standby has taken, and that is still to end."""
        return self.takeover.predecessor

    @property
    def workers(self) -> list[Incarnation]:
        """All processes there are, but for those that are stuck."""
        return [each for each in (self.active, self.standby, self.predecessor) if each is not None]

    def worker(self, generation: int) -> Incarnation | None:
        """Return the process of a generation, if it has not ended."""
        return next((each for each in self.workers if each.generation == generation), None)

    @property
    def actors(self) -> list[ActorInfo]:
        """What the latest incarnation that was ready offers."""
        return self._actors

    def info(self, session_number: int) -> DeviceInfo:
        """Return the device as a session may see it."""
        active, standby = self.active, self.standby
        admitted = self.state is State.READY and active is not None and session_number in active.admitted
        waits = standby is not None and standby.is_ready and session_number in standby.admitted
        return DeviceInfo(
            index=self.index,
            name=self.name,
            state=self.state,
            generation=self.generation,
            endpoint=self._starter.endpoint(self.generation) if admitted else "",
            admitted=admitted,
            worker_pid=active.pid if active else None,
            restarts=self.restarts,
            reason=clip(self.reason, INFO_CHARS),
            error=ErrorInfo.of(self.ends.lost, INFO_CHARS) if self.state in OUT_OF_USE and self.ends.lost else None,
            uuid=self._device.uuid,
            standby=StandbyInfo(standby.generation, self._starter.endpoint(standby.generation))
            if waits and standby
            else None,
        )

    def start(self) -> None:
        """Start the first incarnation."""
        self.life.feed(LifecycleEvent.START)

    def replace(self, event: str, why: str, *, anew: bool = False) -> None:
        """Replace the worker after it has finished what it holds; close an open circuit.

        Args:
            event: Whose wish that is, for the event log: "restart", "recycle", "reload".
            why: The same in words.
            anew: By a process that is started from now on, and not by the standby that there is.
        """
        self.life.take(lambda: self._replace(event, why, anew=anew))

    def _replace(self, event: str, why: str, *, anew: bool) -> None:
        self.note(event, why)
        if self.active is not None:
            self.active.wish = event
        if anew:
            self.takeover.dismiss()
        self.quarantine.overruled = bool(self.quarantine.reason)
        self.standbys.forgive()
        self.life.step(LifecycleEvent.DRAIN)

    def try_plan(self, plan: Plan) -> None:
        """Start the next incarnation by another plan, and those after it by the one that holds."""
        self._trial = plan

    def take_plan(self, plan: Plan) -> None:
        """Start further incarnations by another plan."""
        self.plan, self._device, self._trial = plan, plan.devices[self.index], None
        self.standbys.policy = plan.intensity

    def stop(self) -> None:
        """Let the worker finish, and start no other."""
        self.life.take(self._stop)

    def _stop(self) -> None:
        self._stopping = True
        self.reason = "the pool stops"
        if self.active is not None:
            self.active.wish = "stop"
        self.standbys.forget()
        self.life.step(LifecycleEvent.STOP)

    def kill(self) -> None:
        """End all processes now; with `stop` before it, for good."""
        for worker in (*self.workers, *self.quarantine.stuck):
            worker.kill()

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it is on its way: no worker, no standby, and nothing of what was before them."""
        standby_comes = self.standby is not None and not self.standby.is_ready
        return self.state in {State.READY, *OUT_OF_USE} and self.predecessor is None and not standby_comes

    def figures(self) -> Figures:
        """Return what all incarnations have done, those that run among them."""
        return self.ends.figures((self.active, self.predecessor))

    # --- what happens ----------------------------------------------------------------------------------------------

    def let_go(self, worker: Incarnation) -> None:
        """Forget a process that has ended, or never will, and have everybody forget it."""
        if worker.is_stuck:
            self.quarantine.stuck.append(worker)
        else:
            worker.close()
        self._starter.clear(worker)
        self._sessions.incarnation_over(self, worker.generation)
        self._residents.ended((self.index, worker.generation), stuck=worker.is_stuck)

    def tidy(self, timeout_s: float = 0.0) -> None:
        """Take away what could not be when its processes ended, for their own had not; each is waited for so long."""
        self._starter.tidy(timeout_s)

    def forget_stuck(self, worker: Incarnation) -> None:
        """Forget a process of which it was thought that it never ends."""
        worker.close()
        self._residents.ended((self.index, worker.generation))

    def take_in(self, worker: Incarnation) -> None:
        """Have a process be the active incarnation."""
        self.active, self.generation = worker, worker.generation

    def note_health(self, measure: str, text: str) -> None:
        """Write down what the driver has reported of the GPU, beside whatever happens to the worker meanwhile."""
        self.note("gpu", text, measure=measure, pid=self.active.pid if self.active else None)

    # --- what is to be done ----------------------------------------------------------------------------------------

    def _spawn(self) -> LifecycleEvent | None:
        if why := self.quarantine.forbids():
            self.generation, self.ends.no_process = (
                self._starter.last_generation,
                errors.DeviceUnavailable(why, device=self.index),
            )
            self._loop.call_later(0, self._on_no_process)
            return None
        trial, self._trial = self._trial, None
        self.plan_in_use = trial or self.plan
        if trial is None and self.standby is not None and not self.standby.leaving:
            return self.takeover.use()
        self.standbys.forgive()
        try:
            self.active = self._starter.start(self.plan_in_use, standby=False)
        except errors.SetupFailed as error:
            self.generation, self.ends.no_process = self._starter.last_generation, error
            self._loop.call_later(0, self._on_no_process)
            return None
        self.generation = self.active.generation
        self.reason = "its worker starts"
        self.note("start", "a worker starts", pid=self.active.pid)
        return None

    def _on_no_process(self) -> None:
        """Say that no process could be made; from the loop, which serves others between two attempts."""
        self.life.feed(LifecycleEvent.EXITED)
        self._ended()

    def _publish(self) -> None:
        worker = self.active
        assert worker is not None
        worker.cancel_timer()
        self.reason = ""
        self._actors = worker.actors
        self._sessions.device_changed(self, self._actors)
        now_s = time.monotonic()
        away_s = now_s - (self._held_s or now_s)
        self._held_s = 0.0
        assert worker.ready_s is not None
        took_s = worker.ready_s - worker.started_s
        if worker.promoted_s is not None and worker.promoted_s > worker.ready_s:
            self.standbys.take_over_s = away_s
            event, text = "promoted", f"the standby has taken over within {away_s * 1000:.1f} ms"
        else:
            waited = f"; calls had to wait for {away_s * 1000:.0f} ms" if away_s else ""
            event, text = "ready", f"ready after {took_s * 1000:.0f} ms{waited}"
        self.note(event, text, pid=worker.pid, took_s=round(took_s, 4), away_s=round(away_s, 4))

    def _hold(self) -> None:
        self._held_s = time.monotonic()
        if self.active is not None and self.active.fault is not None:
            self.reason = self.active.fault.message

    def _drain(self) -> None:
        worker = self.active
        if worker is None:  # none could be made, which is the next event
            return
        worker.cancel_timer()
        self.reason = "its worker finishes what it holds"
        worker.drained = True
        worker.tell(control.Drain())
        worker.timer = self._loop.call_later(
            self.plan.drain_timeout_s, lambda: self.life.take(lambda: self._on_drain_timeout(worker))
        )

    def _on_drain_timeout(self, worker: Incarnation) -> None:
        worker.late = f" after it had not finished within {self.plan.drain_timeout_s:g} s (drain_timeout_s)"
        self.note(
            "drain_timeout",
            f"not done within {self.plan.drain_timeout_s:g} s (drain_timeout_s)",
            generation=worker.generation,
        )
        if worker is self.active:
            self.life.step(LifecycleEvent.DRAIN_TIMEOUT)
        else:
            worker.kill()

    def _kill(self) -> None:
        worker, standby = self.active, self.standby
        if worker is not None:
            if isinstance(worker.fault, errors.ContextPoisoned) and standby is not None and standby.is_ready:
                worker.leaving = True
                self._loop.call_later(QUIET_S, worker.kill)
            else:
                worker.kill()
            if worker.fault is not None:
                self.note("fault", worker.fault.message, code=worker.fault.code)

    def _end(self) -> None:
        """Tell what became of the requests that were on the active incarnation, and let go of it."""
        worker, self.active = self.active, None
        self.ends.end(worker)
        lost = self.ends.lost
        finished = "" if worker is None else "its worker has finished what it held"
        self.reason = lost.message if lost else finished

    def _ask_restart(self) -> LifecycleEvent:
        self.ends.count_no_process()
        if why := self.quarantine.reason:
            self.reason = why
            self.note("quarantined", why)
            return LifecycleEvent.QUARANTINE
        match self.ends.judge():
            case intensity.Granted(delay_s):
                self._delay_s = delay_s
                return LifecycleEvent.RESTART_GRANTED
            case intensity.Refused(reason):
                last = self.ends.lost.message if self.ends.lost else ""
                self.reason = reason if reason == last else f"{reason}; the last: {last}"
                self.note("circuit_open", self.reason)
                return LifecycleEvent.RESTART_REFUSED

    def forgive(self, generation: int, why: str) -> None:
        """Count the end of an incarnation no more: it was not the device's fault."""
        self.life.take(lambda: self._forgive(generation, why))

    def _forgive(self, generation: int, why: str) -> None:
        self.note("poison_request", why, generation=generation)
        forgiven = self.ends.restarts.forgive(generation)
        if forgiven and self.state is State.STOPPED and generation == self.generation and not self._stopping:
            self.life.step(LifecycleEvent.START)  # it was this end that stopped it

    def _arm_backoff(self) -> LifecycleEvent | None:
        if self._delay_s == 0:
            return LifecycleEvent.BACKOFF_OVER
        self.note("back_off", f"the next start is in {self._delay_s:g} s")
        self._backoff = self._loop.call_later(self._delay_s, lambda: self.life.feed(LifecycleEvent.BACKOFF_OVER))
        return None

    def _on_changed(self) -> None:
        if self._backoff is not None and self.state is not State.REBUILDING:
            self._backoff.cancel()
            self._backoff = None
        self._changed()

    def note(self, event: str, text: str, generation: int | None = None, **facts: Scalar) -> None:
        """Write an event into the log, and onto the screen when nobody waits for anything else."""
        generation = self.generation if generation is None else generation
        self._loop.call_afterwards(
            functools.partial(_LOG.info, "device %d generation %d: %s", self.index, generation, text)
        )
        self._events.append(
            {
                "time": time.time(),
                "event": event,
                "device": self.index,
                "generation": generation,
                "text": text,
                **facts,
            }
        )
