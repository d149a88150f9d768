"""One device under supervision: builds its parts, and is their face to the rest of the supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from atomr_mp import checks, errors
from atomr_mp.process.cgroup import WorkerCgroup
from atomr_mp.process.files.events import EventLog
from atomr_mp.process.files.logs import RotatedOutput
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.process.oom import OomKills
from atomr_mp.process.spawn import WorkerProcess
from atomr_mp.protocol.codec import ErrorInfo, clip
from atomr_mp.protocol.messages.devices import OUT_OF_USE, ActorInfo, Circuit, DeviceInfo, StandbyInfo
from atomr_mp.supervision.actor_homes import KnownActors
from atomr_mp.supervision.lifecycle import Action, LifecycleEvent, State
from atomr_mp.supervision.standby import Turns
from atomr_mp.supervisor.device.death import Deaths
from atomr_mp.supervisor.device.end_reports import EndReports
from atomr_mp.supervisor.device.life import DeviceLife
from atomr_mp.supervisor.device.listener import DeviceListener, ResidentListener, WorldListener
from atomr_mp.supervisor.device.plans import Plans
from atomr_mp.supervisor.device.quarantine import Quarantine, StuckOnGpu
from atomr_mp.supervisor.device.restarts import Restarts
from atomr_mp.supervisor.device.roles import Roles
from atomr_mp.supervisor.device.takeover import Takeover
from atomr_mp.supervisor.device.worker_messages import WorkerMessages
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.plan import DevicePlan, Plan
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.foresight import Foresight
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.process_factory import ProcessFactory
from atomr_mp.supervisor.processes.starter import Introductions, Starter

INFO_CHARS: Final = 1200
"""Longest text in a device's description. A welcome with 64 of them stays below the limit of a message, so that an
actor's long message does not keep clients from connecting. The worker's log and the event log have it whole."""


class PoolServices(NamedTuple):
    """The parts of a supervisor that its devices share."""

    loop: Loop
    """The supervisor's loop."""
    run_dir: HeldRunDirectory
    """Where sockets and logs are."""
    events: EventLog
    epoch: bytes
    sessions: DeviceListener
    """Tells the clients."""
    residents: ResidentListener
    """Keeps the memory that outlives the processes."""
    factory: ProcessFactory
    """Makes the processes."""
    turns: Turns
    """Grants standbys their starts."""
    worlds: WorldListener
    """Keeps the worlds that devices are members of."""
    oom_kills: OomKills | None = None
    """Tells whether the kernel has lately killed for memory."""


@checks.owned(by_maker=True)
class SupervisedDevice:
    """A device's life, through all its incarnations.

    Args:
        plan: The pool's plan.
        device: This device's part of it.
        pool: What all devices share.
        on_gpu: What is stuck of its GPU.
        ended: Called after each process end, when it has been reaped.
        changed: Called after each change of state; must not act on the device at once.
    """

    def __init__(
        self,
        plan: Plan,
        device: DevicePlan,
        pool: PoolServices,
        on_gpu: StuckOnGpu,
        *,
        ended: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.index: Final = device.index
        self.name: Final = device.name
        self.gpu: Final = device.gpu
        """Position of its GPU; the devices of one GPU have the same."""
        self.facts: Final = device.facts
        """What events tell of it."""
        self.notes: Final = device.notes
        log = pool.run_dir.log(f"device-{device.index}")
        self.output: Final = RotatedOutput(log, max_bytes=plan.settings.log_max_bytes)
        """The output of its processes."""
        self._pool = pool
        self._ended = ended
        self._changed = changed
        self._actors: list[ActorInfo] | None = None
        self.plans: Final = Plans(plan, device.index)
        self.roles: Final = Roles()
        self.log: Final = DeviceLog(device, lambda: self.roles.generation, pool.loop, pool.events)
        self.life: Final = DeviceLife(
            device.index, tell=lambda: pool.sessions.device_changed(device.index), changed=self._on_changed
        )
        self.quarantine: Final = Quarantine(
            device.index,
            on_gpu,
            self.life,
            self.roles,
            self.log,
        )
        self.restarts: Final = Restarts(
            self.life,
            self.roles,
            self.plans,
            self.log,
            pool.loop,
            self.quarantine,
            reports_due_s=lambda: pool.sessions.reports_due_s,
        )
        foresight = Foresight(self.log, pool.loop, lambda: self.plans.held.settings.start_timeout_s)
        self.starter: Final = Starter(
            plan,
            device,
            log=self.log,
            output=self.output,
            adopt=self._adopt,
            run_dir=pool.run_dir,
            epoch=pool.epoch,
            factory=pool.factory,
            introductions=Introductions(
                pool.worlds.starting, pool.worlds.withdraw, lambda: pool.sessions.introductions(device.index)
            ),
            foresight=foresight,
        )
        self.ends: Final = EndReports(
            pool.sessions,
            pool.residents,
            pool.worlds,
            self.log,
            self.plans,
            self.restarts,
            self.quarantine,
            self.starter,
        )
        self.takeover: Final = Takeover(
            life=self.life,
            roles=self.roles,
            plans=self.plans,
            log=self.log,
            loop=pool.loop,
            starter=self.starter,
            turns=pool.turns,
            restarts=self.restarts,
            quarantine=self.quarantine,
            ends=self.ends,
        )
        self.deaths: Final = Deaths(
            life=self.life,
            roles=self.roles,
            plans=self.plans,
            log=self.log,
            output=self.output,
            ends=self.ends,
            restarts=self.restarts,
            quarantine=self.quarantine,
            takeover=self.takeover,
            ended=self._on_ended,
        )
        self._messages: Final = WorkerMessages(
            life=self.life,
            roles=self.roles,
            log=self.log,
            sessions=pool.sessions,
            residents=pool.residents,
            worlds=pool.worlds,
            takeover=self.takeover,
            foresight=foresight,
            deaths=self.deaths,
            replace=self.replace,
        )
        self.life.carry_out(
            {
                Action.SPAWN: self._spawn,
                Action.PUBLISH: self._publish,
                Action.HOLD: self._hold,
                Action.DRAIN: self._drain,
                Action.KILL: self.deaths.kill,
                Action.END: self.deaths.end,
                Action.ASK_RESTART: self.restarts.ask,
                Action.ARM_BACKOFF: self.restarts.arm_backoff,
                Action.RESET_BACKOFF: self.restarts.succeeded,
                Action.RESET_INTENSITY: self.restarts.forget,
                Action.WANT_STANDBY: self.takeover.want,
                Action.SPAWN_STANDBY: self.takeover.spawn,
                Action.ANNOUNCE: self.life.tell,
                Action.CALL_STANDBY: self._call_standby,
                Action.PROMOTE: self.takeover.promote,
                Action.END_PREDECESSOR: self.deaths.end_predecessor,
                Action.DISMISS: self.takeover.dismiss,
            }
        )

    # --- what others ask -------------------------------------------------------------------------------------------

    @property
    def actors(self) -> list[ActorInfo]:
        """The actors of the latest ready incarnation."""
        return self._actors or []

    @property
    def known_actors(self) -> KnownActors:
        """The names of the actors that it has, or is to have, and what is known of them."""
        if self._actors is None:
            return KnownActors([actor.name for actor in self.plans.held.actors_on(self.index)], [])
        return KnownActors([actor.name for actor in self._actors], self._actors)

    def info(self, session_number: int) -> DeviceInfo:
        """Return the device as a session may see it."""
        state, generation, device = self.life.state, self.roles.generation, self.plans.device
        active, standby, lost = self.roles.active, self.roles.standby, self.restarts.lost
        admitted = state is State.READY and active is not None and session_number in active.admitted
        waits = standby is not None and standby.is_ready and session_number in standby.admitted
        return DeviceInfo(
            index=self.index,
            name=self.name,
            state=state,
            generation=generation,
            endpoint=self.starter.endpoint(generation) if admitted else "",
            admitted=admitted,
            worker_pid=active.pid if active else None,
            restarts=self.restarts.count,
            reason=clip(self.life.reason, INFO_CHARS),
            error=ErrorInfo.of(lost, INFO_CHARS) if state in OUT_OF_USE and lost else None,
            uuid=device.uuid,
            standby=StandbyInfo(standby.generation, self.starter.endpoint(standby.generation))
            if waits and standby
            else None,
            circuit=self.restarts.circuit,
            retry_at=self.restarts.retry_at if state is State.TRIPPED else 0.0,
            gpu=self.gpu,
            worker=device.worker,
            workers_per_gpu=device.workers_per_gpu,
        )

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it is on its way: no worker, no standby, and nothing of their predecessors."""
        standby = self.roles.standby
        standby_comes = standby is not None and not standby.is_ready
        return self.life.state in {State.READY, *OUT_OF_USE} and self.roles.predecessor is None and not standby_comes

    # --- orders ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the first incarnation."""
        self.life.feed(LifecycleEvent.START)

    def replace(self, event: str, why: str, *, anew: bool = False) -> None:
        """Replace the worker after it has finished its requests; close an open circuit.

        A worker that is just starting meets the order, unless it is to be `anew`.

        Args:
            event: Who asked for it, for the event log: "restart", "recycle", "reload".
            why: The reason in words.
            anew: Replace it by a process that is started from now on, not by the present standby.
        """
        self.life.take(lambda: self._replace(event, why, anew=anew))

    @property
    def may_set_up(self) -> bool:
        """Whether a next worker can be set up beside the one that runs: there are standbys, and all is well."""
        well = self.restarts.circuit is Circuit.CLOSED and not self.quarantine.reason
        return self.takeover.is_hot and well and self.life.state is State.READY and self.roles.predecessor is None

    def take_plan(self, plan: Plan) -> None:
        """Start further incarnations by another plan."""
        self.plans.hold(plan)
        self.life.take(self.takeover.take_plan)

    def stop(self) -> None:
        """Let the worker finish, and start no other."""
        self.life.take(self._stop)

    def kill(self) -> None:
        """End all processes now; with `stop` before it, for good."""
        for worker in (*self.roles.all, *self.quarantine.stuck):
            worker.kill()

    def _replace(self, event: str, why: str, *, anew: bool) -> None:
        starts = self.life.state is State.STARTING
        is_met = starts and not anew
        self.log.note(event, f"{why}, which the worker that starts is" if is_met else why)
        if self.roles.active is not None and not is_met:
            self.roles.active.parting.wished(event)
        if anew:
            self.takeover.dismiss()
        self.quarantine.overrule()
        self.takeover.try_again()
        self.life.step(LifecycleEvent.OUTDATED if starts and anew else LifecycleEvent.DRAIN)

    def _stop(self) -> None:
        self.restarts.stop()
        self.life.reason = "the pool stops"
        if self.roles.active is not None:
            self.roles.active.parting.wished("stop")
        self.takeover.stop()
        self.life.step(LifecycleEvent.STOP)
        if self.roles.predecessor is not None:
            self.roles.predecessor.wait_for()

    # --- a start, from the process to the first call ---------------------------------------------------------------

    def _spawn(self) -> LifecycleEvent | None:
        """`SPAWN`: make the standby the active incarnation, or start a process."""
        if why := self.quarantine.forbids():
            self._not_started(errors.DeviceUnavailable(why, device=self.index))
            return None
        self.restarts.tried()
        if self.plans.changes:
            self.starter.foresight.forget_imports()
        fits, standby = self.plans.begin(), self.roles.standby
        if fits and standby is not None and not standby.leaving:
            return self.takeover.use()
        self.takeover.try_again()
        try:
            worker = self.starter.start(self.plans.in_use, standby=False)
        except errors.SetupFailed as error:
            self._not_started(error)
            return None
        self.roles.start(worker)
        self.life.reason = "its worker starts"
        self.log.note("start", "a worker starts", pid=worker.pid)
        return None

    def _not_started(self, why: errors.AtomrError) -> None:
        """Report that no process could be made; later, so that the loop serves others between two attempts."""
        self.roles.not_started(self.starter.last_generation)
        self.restarts.not_started(why)
        self._pool.loop.call_later(0, self._on_no_process)

    def _on_no_process(self) -> None:
        self.life.feed(LifecycleEvent.EXITED)
        self._ended()

    def _adopt(self, process: WorkerProcess, cgroup: WorkerCgroup | None, kill_timeout_s: float) -> Incarnation:
        told = self._messages, self.deaths
        return Incarnation(self.index, process, self._pool.loop, cgroup, *told, kill_timeout_s, self._pool.oom_kills)

    def _publish(self) -> None:
        """`PUBLISH`: tell the clients the active incarnation's endpoint, before anything else is done."""
        worker = self.roles.active
        assert worker is not None
        worker.cancel_timer()
        self.life.reason = ""
        self._actors = worker.actors
        self._pool.sessions.device_changed(self.index, published=True)
        self._pool.worlds.ready(worker.key, self.plans.in_use.code)
        now_s, held_s = time.monotonic(), self.deaths.held_s
        away_s = now_s - (held_s or now_s)
        self.deaths.published()
        if worker.took_over_ready:
            self.takeover.took(away_s)
            event, text = "promoted", f"the standby has taken over within {away_s * 1000:.1f} ms"
        else:
            waited = f"; the device took no calls for {away_s * 1000:.0f} ms" if away_s else ""
            event, text = "ready", f"ready after {worker.start_s * 1000:.0f} ms{waited}"
        self.log.note(event, text, pid=worker.pid, took_s=round(worker.start_s, 4), away_s=round(away_s, 4))

    def _hold(self) -> None:
        """`HOLD`: end or close the epochs that the active incarnation is in, before all else; note what is held."""
        worker = self.roles.active
        if worker is not None:
            state = self.life.state
            answers = state in {State.DRAINING, State.RETIRING, State.STOPPING}
            self._pool.worlds.leaves(worker.key, worker.why, answers=answers)
        self.deaths.hold()

    # --- a planned end; others are `Deaths`' -----------------------------------------------------------------------

    def _drain(self) -> None:
        """`DRAIN`: tell the worker to finish its requests and leave."""
        worker = self.roles.active
        if worker is None:  # none could be made, which is the next event
            return
        self.life.reason = "its worker finishes what it holds"
        timeout_s = self.plans.held.settings.drain_timeout_s
        standby = self.roles.standby
        takes_over = standby is not None and standby.is_ready and self.life.state is not State.STOPPING
        worker.drain(
            timeout_s,
            lambda: self.life.take(lambda: self._on_drain_timeout(worker, timeout_s)),
            waited_for=not takes_over,
        )

        if self.roles.predecessor is not None:  # no standby takes over before that has left
            self.roles.predecessor.wait_for()

    def _call_standby(self) -> LifecycleEvent | None:
        """`CALL_STANDBY`: have the standby take over; else tell a worker that leaves that it is waited for."""
        event = self.takeover.call()
        if event is None and self.life.state in {State.DRAINING, State.RETIRING} and self.roles.active is not None:
            self.roles.active.wait_for()
        return event

    def _on_drain_timeout(self, worker: Incarnation, timeout_s: float) -> None:
        worker.parting.took_too_long(timeout_s)
        text = f"not done within {timeout_s:g} s (drain_timeout_s)"
        self.log.note("drain_timeout", text, generation=worker.generation)
        if worker is self.roles.active:
            self.life.step(LifecycleEvent.DRAIN_TIMEOUT)
        else:
            worker.kill()

    def _on_ended(self, pid: int | None) -> None:
        if pid is not None:
            self._pool.run_dir.forget_worker(pid)
        self._ended()

    def _on_changed(self) -> None:
        if self.life.state not in {State.REBUILDING, State.TRIPPED}:
            self.restarts.left_backoff()
        self._changed()
