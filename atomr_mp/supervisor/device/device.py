"""One device under supervision: builds its parts, and is their face to the rest of the supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.process.cgroup import WorkerCgroup
from atomr_mp.process.files.events import EventLog
from atomr_mp.process.files.logs import RotatedOutput
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.process.oom import OomKills
from atomr_mp.process.spawn import WorkerProcess
from atomr_mp.protocol.codec import ErrorInfo, clip
from atomr_mp.protocol.messages.devices import OUT_OF_USE, ActorInfo, Circuit, DeviceInfo, StandbyInfo
from atomr_mp.protocol.messages.operators import Figures, StandbyStatus
from atomr_mp.supervision.actor_homes import KnownActors
from atomr_mp.supervision.lifecycle import Action, LifecycleEvent, State
from atomr_mp.supervision.standby import Turns
from atomr_mp.supervisor.device.death import Deaths
from atomr_mp.supervisor.device.end_reports import EndReports
from atomr_mp.supervisor.device.life import DeviceLife
from atomr_mp.supervisor.device.listener import DeviceListener, ResidentListener
from atomr_mp.supervisor.device.plans import Plans
from atomr_mp.supervisor.device.quarantine import Quarantine, StuckOnGpu
from atomr_mp.supervisor.device.restarts import Restarts
from atomr_mp.supervisor.device.roles import Roles
from atomr_mp.supervisor.device.takeover import Takeover
from atomr_mp.supervisor.device.worker_messages import WorkerMessages
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.plan import DevicePlan, Plan
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.process_factory import ProcessFactory
from atomr_mp.supervisor.processes.starter import Starter

INFO_CHARS: Final = 1200
"""Longest text in a device's description. A welcome with 64 of them stays below the limit of a message, so that an
actor's long message does not keep clients from connecting. The worker's log and the event log have it whole."""


@checks.owned(by_maker=True)
class SupervisedDevice:
    """A device's life, through all its incarnations.

    Args:
        plan: The pool's plan.
        device: This device's part of it.
        loop: The supervisor's loop.
        run_dir: Where sockets and logs are.
        log: The event log.
        epoch: The pool's.
        sessions: Tells the clients.
        factory: Makes the processes.
        turns: Grants standbys their starts.
        residents: Keeps the memory that outlives the processes.
        on_gpu: What is stuck of its GPU.
        ended: Called after each process end, when it has been reaped.
        changed: Called after each change of state; must not act on the device at once.
        oom_kills: Tells whether the kernel has lately killed for memory.
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
        residents: ResidentListener,
        on_gpu: StuckOnGpu,
        ended: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
        oom_kills: OomKills | None = None,
    ) -> None:
        self.index: Final = device.index
        self.name: Final = device.name
        self.gpu: Final = device.gpu
        """Position of its GPU; the devices of one GPU have the same."""
        self.facts: Final = device.facts
        """What events tell of it."""
        self.notes: Final = device.notes
        self.output: Final = RotatedOutput(run_dir.log(f"device-{device.index}"), max_bytes=plan.log_max_bytes)
        """The output of its processes."""
        self._loop = loop
        self._sessions = sessions
        self._residents = residents
        self._factory = factory
        self._ended = ended
        self._oom_kills = oom_kills
        self._changed = changed
        self._actors: list[ActorInfo] | None = None
        self._stopping = False
        """The pool stops, and starts nothing."""
        self._plans: Final = Plans(plan, device.index)
        self._roles: Final = Roles()
        self._log: Final = DeviceLog(device, lambda: self._roles.generation, loop, log)
        self._life: Final = DeviceLife(
            device.index, tell=lambda: sessions.device_changed(self), changed=self._on_changed
        )
        self.quarantine: Final = Quarantine(
            device.index,
            on_gpu,
            self._life,
            self._roles,
            self._log,
            dismiss=self._dismiss_standby,
            want=self._want_standby,
        )
        self._restarts: Final = Restarts(
            self._life,
            self._roles,
            self._plans,
            self._log,
            loop,
            self.quarantine,
            tell=lambda: sessions.device_changed(self),
            reports_due_s=lambda: sessions.reports_due_s,
        )
        self._ends: Final = EndReports(self, sessions, self._log, self._plans, self._restarts, self._release)
        self._starter: Final = Starter(
            plan,
            device,
            log=self._log,
            output=self.output,
            adopt=self._adopt,
            late=self._on_late,
            run_dir=run_dir,
            epoch=epoch,
            factory=factory,
            introductions=lambda: sessions.introductions(self),
        )
        self._takeover: Final = Takeover(
            self,
            life=self._life,
            roles=self._roles,
            plans=self._plans,
            log=self._log,
            loop=loop,
            sessions=sessions,
            starter=self._starter,
            turns=turns,
            restarts=self._restarts,
            quarantine=self.quarantine,
            release=self._release,
        )
        self._deaths: Final = Deaths(
            self,
            life=self._life,
            roles=self._roles,
            plans=self._plans,
            log=self._log,
            loop=loop,
            sessions=sessions,
            residents=residents,
            run_dir=run_dir,
            output=self.output,
            ends=self._ends,
            restarts=self._restarts,
            quarantine=self.quarantine,
            takeover=self._takeover,
            ended=ended,
        )
        self._messages: Final = WorkerMessages(
            self,
            life=self._life,
            roles=self._roles,
            log=self._log,
            sessions=sessions,
            residents=residents,
            takeover=self._takeover,
            deaths=self._deaths,
            replace=self.replace,
        )
        self._life.carry_out(
            {
                Action.SPAWN: self._spawn,
                Action.PUBLISH: self._publish,
                Action.HOLD: self._deaths.hold,
                Action.DRAIN: self._drain,
                Action.KILL: self._deaths.kill,
                Action.END: self._deaths.end,
                Action.ASK_RESTART: self._restarts.ask,
                Action.ARM_BACKOFF: self._restarts.arm_backoff,
                Action.RESET_BACKOFF: self._restarts.succeeded,
                Action.RESET_INTENSITY: self._restarts.forget,
                Action.WANT_STANDBY: self._takeover.want,
                Action.SPAWN_STANDBY: self._takeover.spawn,
                Action.ANNOUNCE: self._takeover.announce,
                Action.CALL_STANDBY: self._takeover.call,
                Action.PROMOTE: self._takeover.promote,
                Action.END_PREDECESSOR: self._deaths.end_predecessor,
                Action.DISMISS: self._takeover.dismiss,
            }
        )

    # --- what others ask -------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the active incarnation, or of the device where there is none."""
        return self._life.state

    @property
    def reason(self) -> str:
        """The reason for its state, for a person."""
        return self._life.reason

    @property
    def generation(self) -> int:
        """The generation of the active incarnation, or of the last one."""
        return self._roles.generation

    @property
    def active(self) -> Incarnation | None:
        """The incarnation that the states are about."""
        return self._roles.active

    @property
    def standby(self) -> Incarnation | None:
        """The process that waits to be the next, or that has failed at that and has not ended yet."""
        return self._roles.standby

    @property
    def predecessor(self) -> Incarnation | None:
        """The process whose place a standby has taken, and which has not ended yet."""
        return self._roles.predecessor

    @property
    def workers(self) -> list[Incarnation]:
        """All processes, except stuck ones."""
        return self._roles.all

    def worker(self, generation: int) -> Incarnation | None:
        """Return the process of a generation, if it has not ended."""
        return self._roles.of(generation)

    @property
    def actors(self) -> list[ActorInfo]:
        """The actors of the latest ready incarnation."""
        return self._actors or []

    @property
    def known_actors(self) -> KnownActors:
        """The names of the actors that it has, or is to have, and what is known of them."""
        if self._actors is None:
            return KnownActors([actor.name for actor in self._plans.held.actors_on(self.index)], [])
        return KnownActors([actor.name for actor in self._actors], self._actors)

    @property
    def restarts(self) -> int:
        """Unplanned ends so far."""
        return self._restarts.count

    @property
    def lost(self) -> errors.AtomrError | None:
        """The cause of the last incarnation's end, if that was unplanned."""
        return self._restarts.lost

    @property
    def last_fault(self) -> tuple[float, str]:
        """Time and cause of the last unplanned end."""
        return self._ends.last_fault

    def info(self, session_number: int) -> DeviceInfo:
        """Return the device as a session may see it."""
        active, standby, lost = self.active, self.standby, self.lost
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
            error=ErrorInfo.of(lost, INFO_CHARS) if self.state in OUT_OF_USE and lost else None,
            uuid=self._plans.device.uuid,
            standby=StandbyInfo(standby.generation, self._starter.endpoint(standby.generation))
            if waits and standby
            else None,
            circuit=self._restarts.circuit,
            retry_at=self._restarts.retry_at if self.state is State.TRIPPED else 0.0,
            gpu=self.gpu,
            worker=self._plans.device.worker,
            workers_per_gpu=self._plans.device.workers_per_gpu,
        )

    def standby_status(self) -> StandbyStatus:
        """Return the standby's status, or the zygote's."""
        return self._takeover.status(self._factory)

    def figures(self) -> Figures:
        """Return the counts of all incarnations, running ones included."""
        return self._ends.figures((self.active, self.predecessor))

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it is on its way: no worker, no standby, and nothing of their predecessors."""
        standby_comes = self.standby is not None and not self.standby.is_ready
        return self.state in {State.READY, *OUT_OF_USE} and self.predecessor is None and not standby_comes

    # --- orders ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the first incarnation."""
        self._life.feed(LifecycleEvent.START)

    def replace(self, event: str, why: str, *, anew: bool = False) -> None:
        """Replace the worker after it has finished its requests; close an open circuit.

        A worker that is just starting meets the order, unless it is to be `anew`.

        Args:
            event: Who asked for it, for the event log: "restart", "recycle", "reload".
            why: The reason in words.
            anew: Replace it by a process that is started from now on, not by the present standby.
        """
        self._life.take(lambda: self._replace(event, why, anew=anew))

    def try_plan(self, plan: Plan) -> None:
        """Start the next incarnation by another plan, and those after it by the one that holds."""
        self._plans.try_next(plan)

    @property
    def may_set_up(self) -> bool:
        """Whether a next worker can be set up beside the one that runs: there are standbys, and all is well."""
        well = self._restarts.circuit is Circuit.CLOSED and not self.quarantine.reason
        return self._takeover.is_hot and well and self.state is State.READY and self.predecessor is None

    def set_up(self, plan: Plan, done: Callable[[errors.AtomrError | None], None]) -> None:
        """Set up the next worker by another plan, as the running one's standby.

        Args:
            plan: The plan; `take_plan` ends the attempt.
            done: Called once, later: with None when it is ready to take over, or has; with the reason if it has ended.
        """
        self._life.take(lambda: self._takeover.set_up(plan, done))

    def take_plan(self, plan: Plan) -> None:
        """Start further incarnations by another plan."""
        self._plans.hold(plan)
        self._life.take(self._takeover.take_plan)

    def stop(self) -> None:
        """Let the worker finish, and start no other."""
        self._life.take(self._stop)

    def kill(self) -> None:
        """End all processes now; with `stop` before it, for good."""
        for worker in (*self.workers, *self.quarantine.stuck):
            worker.kill()

    def hung(self, worker: Incarnation, fault: errors.WorkerHung, stacks: str) -> None:
        """A process makes no progress: see `Deaths.hung`."""
        self._deaths.hung(worker, fault, stacks)

    def damaged(self, worker: Incarnation, why: str) -> None:
        """A process has written over its own board: see `Deaths.damaged`."""
        self._deaths.damaged(worker, why)

    def forgive(self, generation: int, why: str) -> None:
        """Forgive the end of an incarnation, which was not the device's fault."""
        self._life.take(lambda: self._restarts.forgive(generation, why, stopping=self._stopping))

    def reported(self) -> None:
        """A client has reported which of its requests ran when a worker ended, here or elsewhere."""
        self._life.take(self._restarts.ask_again)

    def tidy(self, timeout_s: float = 0.0) -> None:
        """Remove the cgroups of ended workers whose children outlived them; waits so long for each."""
        self._starter.tidy(timeout_s)

    def note(self, event: str, text: str, generation: int | None = None) -> None:
        """Write an event into the log."""
        self._log.note(event, text, generation)

    def note_health(self, measure: str, text: str) -> None:
        """Log the driver's report of the GPU."""
        self._log.note("gpu", text, measure=measure, pid=self.active.pid if self.active else None)

    def _replace(self, event: str, why: str, *, anew: bool) -> None:
        starts = self.state is State.STARTING
        is_met = starts and not anew
        self._log.note(event, f"{why}, which the worker that starts is" if is_met else why)
        if self.active is not None and not is_met:
            self.active.parting.wished(event)
        if anew:
            self._takeover.dismiss()
        self.quarantine.overrule()
        self._takeover.try_again()
        self._life.step(LifecycleEvent.OUTDATED if starts and anew else LifecycleEvent.DRAIN)

    def _stop(self) -> None:
        self._stopping = True
        self._life.reason = "the pool stops"
        if self.active is not None:
            self.active.parting.wished("stop")
        self._takeover.stop()
        self._life.step(LifecycleEvent.STOP)

    # --- a start, from the process to the first call ---------------------------------------------------------------

    def _spawn(self) -> LifecycleEvent | None:
        """`SPAWN`: make the standby the active incarnation, or start a process."""
        if why := self.quarantine.forbids():
            self._not_started(errors.DeviceUnavailable(why, device=self.index))
            return None
        self._restarts.tried()
        fits, standby = self._plans.begin(), self.standby
        if fits and standby is not None and not standby.leaving:
            return self._takeover.use()
        self._takeover.try_again()
        try:
            worker = self._starter.start(self._plans.in_use, standby=False)
        except errors.SetupFailed as error:
            self._not_started(error)
            return None
        self._roles.start(worker)
        self._life.reason = "its worker starts"
        self._log.note("start", "a worker starts", pid=worker.pid)
        return None

    def _not_started(self, why: errors.AtomrError) -> None:
        """Report that no process could be made; later, so that the loop serves others between two attempts."""
        self._roles.not_started(self._starter.last_generation)
        self._restarts.not_started(why)
        self._loop.call_later(0, self._on_no_process)

    def _on_no_process(self) -> None:
        self._life.feed(LifecycleEvent.EXITED)
        self._ended()

    def _adopt(self, process: WorkerProcess, cgroup: WorkerCgroup | None, kill_timeout_s: float) -> Incarnation:
        told = self._messages, self._deaths
        return Incarnation(self.index, process, self._loop, cgroup, *told, kill_timeout_s, self._oom_kills)

    def _on_late(self, worker: Incarnation) -> None:
        self._deaths.late(worker)

    def _dismiss_standby(self) -> None:
        self._takeover.dismiss()

    def _want_standby(self) -> None:
        self._takeover.want()

    def _publish(self) -> None:
        """`PUBLISH`: tell the clients the active incarnation's endpoint, before anything else is done."""
        worker = self.active
        assert worker is not None
        worker.cancel_timer()
        self._life.reason = ""
        self._actors = worker.actors
        self._sessions.device_changed(self, published=True)
        now_s, held_s = time.monotonic(), self._deaths.held_s
        away_s = now_s - (held_s or now_s)
        self._deaths.published()
        if worker.took_over_ready:
            self._takeover.took(away_s)
            event, text = "promoted", f"the standby has taken over within {away_s * 1000:.1f} ms"
        else:
            waited = f"; the device took no calls for {away_s * 1000:.0f} ms" if away_s else ""
            event, text = "ready", f"ready after {worker.start_s * 1000:.0f} ms{waited}"
        self._log.note(event, text, pid=worker.pid, took_s=round(worker.start_s, 4), away_s=round(away_s, 4))

    # --- a planned end; others are `Deaths`' -----------------------------------------------------------------------

    def _drain(self) -> None:
        """`DRAIN`: tell the worker to finish its requests and leave."""
        worker = self.active
        if worker is None:  # none could be made, which is the next event
            return
        self._life.reason = "its worker finishes what it holds"
        timeout_s = self._plans.held.drain_timeout_s
        worker.drain(timeout_s, lambda: self._life.take(lambda: self._on_drain_timeout(worker, timeout_s)))

    def _on_drain_timeout(self, worker: Incarnation, timeout_s: float) -> None:
        worker.parting.took_too_long(timeout_s)
        text = f"not done within {timeout_s:g} s (drain_timeout_s)"
        self._log.note("drain_timeout", text, generation=worker.generation)
        if worker is self.active:
            self._life.step(LifecycleEvent.DRAIN_TIMEOUT)
        else:
            worker.kill()

    def _release(self, worker: Incarnation) -> None:
        """Forget a process that has ended, or never will, here and in all listeners."""
        if worker.is_stuck:
            self.quarantine.hold(worker)
        else:
            worker.close()
        self._restarts.release(worker)
        self._starter.clear(worker)
        self._sessions.incarnation_over(self, worker.generation)
        self._residents.ended((self.index, worker.generation), stuck=worker.is_stuck)

    def _on_changed(self) -> None:
        if self.state not in {State.REBUILDING, State.TRIPPED}:
            self._restarts.left_backoff()
        self._changed()
