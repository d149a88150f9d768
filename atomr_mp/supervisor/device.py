"""One device under supervision: what happens to its processes goes into the lifecycle table, what comes out is done."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.process.cgroup import CgroupParent
from atomr_mp.process.events import EventLog, Scalar
from atomr_mp.process.logs import RotatedOutput
from atomr_mp.process.rundir import HeldRunDirectory
from atomr_mp.protocol import control
from atomr_mp.protocol.codec import ErrorInfo, clip
from atomr_mp.protocol.session import OUT_OF_USE, ActorInfo, DeviceInfo, Figures, IncarnationEnded, StandbyInfo
from atomr_mp.supervision import intensity
from atomr_mp.supervision.lifecycle import Action, Event, State, UnexpectedEventError, step
from atomr_mp.supervision.standby import StandbyMode, Turns
from atomr_mp.supervision.tally import Tally
from atomr_mp.supervisor.ending import Ending, error_of_requests
from atomr_mp.supervisor.incarnation import Incarnation
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.nursery import Nursery
from atomr_mp.supervisor.plan import DevicePlan, Plan
from atomr_mp.supervisor.quarantine import Quarantine
from atomr_mp.supervisor.residents import Residents
from atomr_mp.supervisor.restarts import Restarts
from atomr_mp.supervisor.standbys import Standbys
from atomr_mp.transport.descriptors import Descriptor

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

INFO_CHARS: Final = 1200
"""Longest text in what is told of a device: with 64 of them a welcome stays below the limit of a message, and one
actor's long message does not keep clients from connecting. The worker's log and the event log have it whole."""


FAULT_CHARS: Final = 300
"""Longest text of a past fault in a status, which has one for each device."""

QUIET_S: Final = 0.05
"""How long a poisoned process, which does nothing any more, outlives its standby's promotion: its context's end keeps
the device from others. On an H200 the standby's first answer took 2.2 ms with it, 3.9 ms and up to 60 ms without."""


class Sessions(Protocol):
    """What a device needs of the sessions."""

    def introductions(self, device: Device) -> Iterable[tuple[control.FromSupervisor, Descriptor | None]]:
        """Return what a device's worker must know of every client that may call; the descriptors are the receiver's."""

    def device_changed(self, device: Device, actors: list[ActorInfo] | None = None) -> None:
        """Tell every client the device's new state."""

    def incarnation_ended(self, device: Device, make: Callable[[int], IncarnationEnded]) -> None:
        """Tell every client that an incarnation has ended; `make` takes the session's number."""

    def suspected(self, device: Device, generation: int, running: int) -> None:
        """An incarnation has ended, by what may have been one of so many requests; `incarnation_ended` follows."""

    def incarnation_over(self, device: Device, generation: int) -> None:
        """A process has ended, and the device has let go of it."""

    def admitted(self, device: Device, number: int) -> None:
        """A worker, or a standby that is ready, has acknowledged a session."""

    def acknowledged(self, device: Device, generation: int, number: int) -> None:
        """A worker does nothing for a session any more."""

    def exported(
        self, device: Device, generation: int, message: control.SlabExported, descriptor: Descriptor | None
    ) -> None:
        """A worker has answered for a slab; the descriptor is the callee's."""

    def violated(self, number: int, reason: str) -> None:
        """A session broke the rules of the data plane."""


class Device:
    """A device's life, through all its incarnations.

    Args:
        plan: The pool's plan.
        device: This device's part of it.
        loop: The supervisor's loop.
        run_dir: Where sockets and logs are.
        log: The event log.
        epoch: The pool's.
        sessions: Who is told.
        nursery: Makes the processes.
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
        sessions: Sessions,
        nursery: Nursery,
        turns: Turns,
        residents: Residents,
        ended: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.index: Final = device.index
        self.name: Final = device.name
        self.notes: Final = device.notes
        self.state = State.STOPPED
        self.generation = 0
        """Of the active incarnation, or of the last that was."""
        self.reason = "not started yet"
        self.active: Incarnation | None = None
        """Whose states those of the table are."""
        self.standby: Incarnation | None = None
        """What waits to be the next, or has failed at that and is still to end."""
        self.predecessor: Incarnation | None = None
        """Whose place a standby has taken, and that is still to end."""
        self.quarantine: Final = Quarantine()
        self.last_fault = (0.0, "")
        """When an incarnation last ended that was not to, and how."""
        self.output: Final = RotatedOutput(run_dir.log(f"device-{device.index}"), max_bytes=plan.log_max_bytes)
        self._plan = plan
        self._device = device
        self._trial: Plan | None = None
        """What the next incarnation is started by, if not by the plan that holds."""
        self._in_use = plan
        """By which the active incarnation was started, and its standby is."""
        self._environment = {**os.environ, **device.environment}
        self._loop = loop
        self._run_dir = run_dir
        self._events = log
        self._epoch = epoch
        self._sessions = sessions
        self._nursery = nursery
        self._residents = residents
        self._ended = ended
        self._changed = changed
        self._cgroups = CgroupParent.find() if plan.cgroups else None
        self._ends: Final = Restarts()
        self._last_generation = 0
        """Of whatever was started last, a standby too."""
        self._actors: list[ActorInfo] = []
        self._tally: Final = Tally()
        self._lost: errors.AtomrError | None = None
        """How the last incarnation ended, if that was unplanned."""
        self._no_process: errors.AtomrError | None = None
        """Why no process could be made, if that is why there is none."""
        self._backoff: Timer | None = None
        self._delay_s = 0.0
        self._held_s = 0.0
        """Since when clients hold their calls for the next incarnation; 0 if they do not, or for the first."""
        self.standbys: Final = Standbys(
            self.index, StandbyMode(plan.standby), plan.intensity, loop, turns, self._standby_due
        )

    # --- what others ask -------------------------------------------------------------------------------------------

    @property
    def restarts(self) -> int:
        """Unplanned ends so far."""
        return self._ends.count

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
            endpoint=self._endpoint(self.generation) if admitted else "",
            admitted=admitted,
            pid=active.pid if active else 0,
            restarts=self.restarts,
            reason=clip(self.reason, INFO_CHARS),
            error=ErrorInfo.of(self._lost, INFO_CHARS) if self.state in OUT_OF_USE and self._lost else None,
            uuid=self._device.uuid,
            standby=StandbyInfo(standby.generation, self._endpoint(standby.generation)) if waits and standby else None,
        )

    def start(self) -> None:
        """Start the first incarnation."""
        self._feed(Event.START)

    def replace(self, event: str, why: str, *, anew: bool = False) -> None:
        """Replace the worker after it has finished what it holds; close an open circuit.

        Args:
            event: Whose wish that is, for the event log: "restart", "recycle", "reload".
            why: The same in words.
            anew: By a process that is started from now on, and not by the standby that there is.
        """
        self._note(event, why)
        if self.active is not None:
            self.active.wish = event
        if anew:
            self._dismiss()
        self.quarantine.overruled = bool(self.quarantine.reason)
        self.standbys.forgive()
        self._feed(Event.DRAIN)

    def try_plan(self, plan: Plan) -> None:
        """Start the next incarnation by another plan, and those after it by the one that holds."""
        self._trial = plan

    def take_plan(self, plan: Plan) -> None:
        """Start further incarnations by another plan."""
        self._plan, self._device, self._trial = plan, plan.devices[self.index], None
        self.standbys.policy = plan.intensity

    def stop(self) -> None:
        """Let the worker finish, and start no other."""
        self.reason = "the pool stops"
        if self.active is not None:
            self.active.wish = "stop"
        self.standbys.forget()
        self._feed(Event.STOP)

    def kill(self) -> None:
        """End all processes now; with `stop` before it, for good."""
        for worker in (*self.workers, *self.quarantine.stuck):
            worker.kill()

    @property
    def lost(self) -> errors.AtomrError | None:
        """How the last incarnation ended, if that was unplanned."""
        return self._lost

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it is on its way: no worker, no standby, and nothing of what was before them."""
        standby_comes = self.standby is not None and not self.standby.is_ready
        return self.state in {State.READY, *OUT_OF_USE} and self.predecessor is None and not standby_comes

    def figures(self) -> Figures:
        """Return what all incarnations have done, those that run among them."""
        workers = [worker for worker in (self.active, self.predecessor) if worker is not None]
        boards = [worker.board for worker in workers if worker.ending is None]  # else it is in the tally
        try:
            return self._tally.figures(boards)
        finally:
            for board in boards:
                board.release()

    # --- what happens ----------------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        """Take a step through the table and carry its actions out."""
        before = self.state
        self.state, actions = after = step(before, event)
        if before is State.REBUILDING and self._backoff is not None:
            self._backoff.cancel()
            self._backoff = None
        if self.state is not before:
            _LOG.debug("device %d: %s -> %s on %s", self.index, before, self.state, event)
        for action in actions:
            self._DO[action](self)
        # An action may have led further, and told the clients already.
        if before is not self.state is after.state and Action.PUBLISH not in actions:
            self._sessions.device_changed(self)
        if self.state is not before:
            self._changed()

    def _feed_from_worker(self, worker: Incarnation, event: Event) -> None:
        try:
            self._feed(event)
        except UnexpectedEventError as error:
            worker.fault = errors.SetupFailed(f"the worker broke the protocol: {error}")
            self._feed(Event.FAULT)

    def heard(self, worker: Incarnation, message: control.FromWorker, descriptor: Descriptor | None) -> None:
        """Take in what a process says."""
        match message:
            case control.Ready(actors):
                self._on_ready(worker, actors)
            case control.SessionAdmitted(number):
                worker.admitting.add(number)
                self.caught_up(worker)
            case control.SessionClosed(number):
                worker.admitted.discard(number)
                worker.admitting.discard(number)
                self._sessions.acknowledged(self, worker.generation, number)
            case control.SlabExported():
                shared = None if descriptor is None else descriptor.share()
                self._sessions.exported(self, worker.generation, message, shared)
            case control.OfResident():
                self._residents.heard((self.index, worker.generation), message, descriptor)
            case control.SessionViolated(number, reason):
                self._note("violation", reason, session=number)
                self._sessions.violated(number, reason)
            case control.Fault(info):
                self._on_fault(worker, info.error())

    def hung(self, worker: Incarnation, fault: errors.WorkerHung, stacks: str) -> None:
        """A process makes no progress; nothing if it takes no calls any more.

        Args:
            worker: The process.
            fault: What the requests end with that are on it.
            stacks: Of all its threads, for the logs.
        """
        if worker is self.active and self.state is State.READY:
            worker.fault, worker.hung_ns = fault, time.monotonic_ns()
            self.output.add(f"--- device {self.index} generation {worker.generation} hung\n{stacks}")
            self._note("hung", fault.message, pid=worker.pid, where=fault.where, stacks=stacks)
            self._feed(Event.HUNG)

    def _on_ready(self, worker: Incarnation, actors: list[ActorInfo]) -> None:
        worker.actors = actors
        now_s = time.monotonic()
        if worker is self.active:
            worker.ready_s = worker.ready_s or now_s
            self.standbys.start_s = now_s - worker.started_s
            self._feed_from_worker(worker, Event.READY)
        elif worker is self.standby and not worker.leaving and worker.ready_s is None:
            worker.ready_s = now_s
            worker.cancel_timer()
            self.standbys.ready()
            took_s = self.standbys.start_s = now_s - worker.started_s
            self._note(
                "standby_ready",
                f"ready to take over after {took_s * 1000:.0f} ms",
                generation=worker.generation,
                pid=worker.pid,
            )
            self._feed(Event.STANDBY_READY)

    def _on_fault(self, worker: Incarnation, fault: errors.AtomrError) -> None:
        worker.fault = fault
        if worker is self.active:
            poisoned = isinstance(fault, errors.ContextPoisoned)
            self._feed_from_worker(worker, Event.POISONED if poisoned else Event.FAULT)
        else:
            worker.kill()

    def garbled(self, worker: Incarnation, error: errors.ProtocolError) -> None:
        """End a process that says what is no message."""
        self._on_fault(worker, errors.SetupFailed(f"the worker broke the protocol: {error}"))

    def caught_up(self, worker: Incarnation) -> None:
        """Let clients call whom a worker has admitted, once it can read all that it is to know before their calls."""
        if not worker.is_behind:
            admitting, worker.admitting = worker.admitting, set()
            for number in sorted(admitting):
                worker.admitted.add(number)
                if worker is self.active or (worker is self.standby and worker.is_ready):
                    self._sessions.admitted(self, number)

    def hung_up(self, worker: Incarnation, *, dying: bool) -> None:
        """A process will say no more: that is the first sign of its end."""
        had_calls = worker is not self.standby
        if worker is self.active:
            if dying:
                self._ends.add(worker)  # before anybody hears of it
            self._feed(Event.END_OF_FILE)
        elif worker is self.standby:
            worker.kill()
        if dying and had_calls:
            self._tell_ending(worker)  # the kernel may take long to take its memory down, and nobody need wait for that

    def exited(self, worker: Incarnation) -> None:
        """A process has ended."""
        if worker is self.active:
            self._feed(Event.EXITED)
        elif worker is self.standby:
            self.standby = None
            self._end_standby(worker)
        elif worker in self.quarantine.stuck:
            self._end_stuck(worker)
        else:
            self._feed(Event.PREDECESSOR_EXITED)
        self._run_dir.forget_worker(worker.pid)
        self._ended()

    def survived(self, worker: Incarnation) -> None:
        """A process goes on though it was killed: it is stuck in the kernel, and nobody waits for it any longer."""
        text = f"its worker was killed and has not ended within {self._plan.kill_timeout_s:g} s (kill_timeout_s)"
        self._note("unkillable", text, generation=worker.generation, pid=worker.pid)
        if worker is self.active:
            self._ends.add(worker)
            self._feed(Event.KILL_TIMEOUT)
            self.reason = self.reason if self.state is State.STOPPED else self.quarantine.reason
            self._sessions.device_changed(self)
        elif worker is self.standby:
            self.standby = None
            self._end_standby(worker)
        else:
            self._feed(Event.PREDECESSOR_EXITED)
        self._ended()

    # --- quarantine ------------------------------------------------------------------------------------------------

    def note_health(self, measure: str, text: str) -> None:
        """Write down what the driver has reported of the GPU, beside whatever happens to the worker meanwhile."""
        self._note("gpu", text, measure=measure, pid=self.active.pid if self.active else 0)

    def fall_sick(self, why: str, *, at_once: bool) -> None:
        """Have nothing run on the device before it has recovered; may be called again.

        Args:
            why: The reason, for a person.
            at_once: What runs is of no use, and is killed; else it finishes what it holds.
        """
        if self.quarantine.sick != why:
            self._note("sick", why)
        self.quarantine.sick = why
        if self.standby is not None:
            self._dismiss()
        worker = self.active
        if worker is None:
            return
        if at_once and self.state in {State.STARTING, State.READY, State.DRAINING}:
            worker.fault = worker.fault or errors.DeviceUnavailable(why, device=self.index)
            self._feed(Event.FAULT)
        elif self.state in {State.STARTING, State.READY}:
            worker.wish = "health"
            self._feed(Event.DRAIN)

    def recover(self, why: str) -> None:
        """Let the device be used again; whether it is well, the next start shows."""
        if self.quarantine.sick:
            self.quarantine.sick = ""
            self._note("recovered", why)
            self._release()

    def _end_stuck(self, worker: Incarnation) -> None:
        self.quarantine.stuck.remove(worker)
        worker.close()
        self._residents.ended((self.index, worker.generation))
        self._note("unstuck", "the killed worker has ended after all", generation=worker.generation, pid=worker.pid)
        self._release()

    def _release(self) -> None:
        """Go on, if nothing is in the way any more."""
        if self.quarantine.reason:
            return
        if self.state is State.QUARANTINED:
            self._feed(Event.RELEASED)
        elif self.state is State.READY:
            self._want_standby()

    # --- processes -------------------------------------------------------------------------------------------------

    def _start_process(self, plan: Plan, *, standby: bool) -> Incarnation:
        """Start a process under the next generation, by a plan.

        Raises:
            SetupFailed: None could be made.
        """
        self._last_generation = generation = self._last_generation + 1
        self.output.new_incarnation(f"--- device {self.index} generation {generation}")
        process, cold = self._nursery.make(self.index, generation, self._environment, self.output.fileno())
        if cold:
            self._note("cold_start", f"a fresh interpreter is started: {cold}", generation=generation, pid=process.pid)
        self._run_dir.record_worker(process.pid, process.identity.start_ticks)
        cgroup = None
        if self._cgroups is not None:
            cgroup = self._cgroups.add(f"device-{self.index}-{generation}", process.pid)
        worker = Incarnation(self.index, process, self._loop, cgroup, self, plan.kill_timeout_s)
        worker.tell(
            control.Start(
                pool=plan.pool,
                epoch=self._epoch,
                device=self.index,
                name=self.name,
                backend=plan.backend,
                generation=generation,
                endpoint=self._endpoint(generation),
                actors=plan.actors,
                window=plan.window,
                execution=plan.devices[self.index].execution,
                standby=standby,
            )
        )
        for introduction, descriptor in self._sessions.introductions(self):
            worker.tell(introduction, descriptor)
        worker.timer = self._loop.call_later(plan.start_timeout_s, lambda: self._on_start_timeout(worker))
        return worker

    def _endpoint(self, generation: int) -> str:
        return f"ipc://{self._run_dir.worker_socket(self.index, generation)}"

    def _on_start_timeout(self, worker: Incarnation) -> None:
        if worker.fault is None:
            worker.fault = errors.SetupFailed(
                f"the worker was not ready within {self._plan.start_timeout_s:g} s (start_timeout_s)"
            )
        if worker is self.active:
            self._feed(Event.START_TIMEOUT)
        else:
            worker.kill()

    def _let_go(self, worker: Incarnation) -> None:
        """Forget a process that has ended, or never will, and have everybody forget it."""
        if worker.is_stuck:
            self.quarantine.stuck.append(worker)
        else:
            worker.close()
        self._run_dir.worker_socket(self.index, worker.generation).unlink(missing_ok=True)
        self._sessions.incarnation_over(self, worker.generation)
        self._residents.ended((self.index, worker.generation), stuck=worker.is_stuck)

    # --- what is to be done ----------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        if why := self.quarantine.forbids():
            self.generation, self._no_process = self._last_generation, errors.DeviceUnavailable(why, device=self.index)
            self._loop.call_later(0, self._on_no_process)
            return
        trial, self._trial = self._trial, None
        self._in_use = trial or self._plan
        if trial is None and self.standby is not None and not self.standby.leaving:
            self._use_standby()
            return
        self.standbys.forgive()
        try:
            self.active = self._start_process(self._in_use, standby=False)
        except errors.SetupFailed as error:
            self.generation, self._no_process = self._last_generation, error
            # The table's step must be complete before the next.
            self._loop.call_later(0, self._on_no_process)
            return
        self.generation = self.active.generation
        self.reason = "its worker starts"
        self._note("start", "a worker starts", pid=self.active.pid)

    def _on_no_process(self) -> None:
        self._feed(Event.EXITED)
        self._ended()

    def _use_standby(self) -> None:
        """Have the standby take the place of an incarnation that has ended."""
        worker = self._promoted()
        if worker.is_ready:
            self._feed(Event.READY)
        else:
            self.reason = "its worker, which was to stand by, still starts"
            self._note("start", "the standby, which still starts, is to take over", pid=worker.pid)

    def _promoted(self) -> Incarnation:
        """Make the standby the active incarnation; return it."""
        worker = self.active = self.standby
        assert worker is not None
        self.standby = None
        self.generation = worker.generation
        worker.tell(control.Promote())
        worker.promoted_s = time.monotonic()
        self.standbys.used()
        return worker

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
        self._note(event, text, pid=worker.pid, took_s=round(took_s, 4), away_s=round(away_s, 4))

    def _hold(self) -> None:
        self._held_s = time.monotonic()
        if self.active is not None and self.active.fault is not None:
            self.reason = self.active.fault.message

    def _drain(self) -> None:
        worker = self.active
        assert worker is not None
        worker.cancel_timer()
        self.reason = "its worker finishes what it holds"
        worker.drained = True
        worker.tell(control.Drain())
        worker.timer = self._loop.call_later(self._plan.drain_timeout_s, lambda: self._on_drain_timeout(worker))

    def _on_drain_timeout(self, worker: Incarnation) -> None:
        worker.late = f" after it had not finished within {self._plan.drain_timeout_s:g} s (drain_timeout_s)"
        self._note(
            "drain_timeout",
            f"not done within {self._plan.drain_timeout_s:g} s (drain_timeout_s)",
            generation=worker.generation,
        )
        if worker is self.active:
            self._feed(Event.DRAIN_TIMEOUT)
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
                self._note("fault", worker.fault.message, code=worker.fault.code)

    def _end(self) -> None:
        """Tell what became of the requests that were on the active incarnation, and let go of it."""
        worker, self.active = self.active, None
        if worker is None:  # none could be made
            self._lost = self._no_process
            self.reason = self._lost.message if self._lost else ""
            return
        self._lost = self._end_incarnation(worker)
        self.reason = self._lost.message if self._lost else "its worker has finished what it held"

    def _end_predecessor(self) -> None:
        worker, self.predecessor = self.predecessor, None
        assert worker is not None
        self._end_incarnation(worker)

    def _end_incarnation(self, worker: Incarnation) -> errors.AtomrError | None:
        """Tell what became of the requests that were on an incarnation; return why it ended, None if it was told to."""
        self._ends.add(worker)
        ending = worker.ending or self._tell_ending(worker)
        self._let_go(worker)
        event = "planned_end" if ending.planned else "end"
        self._note(event, ending.text, generation=worker.generation, **ending.facts)
        return None if ending.planned else ending.lost

    def _tell_ending(self, worker: Incarnation) -> Ending:
        """Tell what became of the requests that were on an incarnation, of which nothing runs any more."""
        board = worker.board
        ending = worker.ending = Ending(worker, board, suspecting=self._plan.max_suspicions > 0)
        self._tally.add(board, ending.in_a_word, lost=not ending.planned)
        board.release()
        if not (ending.planned or worker.wish):
            self.last_fault = (time.time(), clip(ending.lost.message, FAULT_CHARS))
        self._sessions.suspected(self, worker.generation, ending.suspects)
        self._sessions.incarnation_ended(self, ending.told)
        return ending

    def _ask_restart(self) -> None:
        lost = self._lost
        assert lost is not None
        self._ends.count += lost is self._no_process and not isinstance(lost, errors.DeviceUnavailable)
        if why := self.quarantine.reason:
            self.reason = why
            self._note("quarantined", why)
            self._feed(Event.QUARANTINE)
            return
        match self._verdict(lost):
            case intensity.Granted(delay_s):
                self._delay_s = delay_s
                event = Event.RESTART_GRANTED
            case intensity.Refused(reason):
                self.reason = reason if reason == lost.message else f"{reason}; the last: {lost.message}"
                self._note("circuit_open", self.reason)
                event = Event.RESTART_REFUSED
        self._feed(event)

    def _verdict(self, lost: errors.AtomrError) -> intensity.Verdict:
        return self._ends.verdict(self._plan.intensity, self.generation, lost)

    def forgive(self, generation: int, why: str) -> None:
        """Count the end of an incarnation no more: it was not the device's fault."""
        self._note("poison_request", why, generation=generation)
        if self._ends.forgive(generation) and self.state is State.STOPPED and generation == self.generation:
            self._feed(Event.START)  # it was this end that stopped it

    def _arm_backoff(self) -> None:
        if self._delay_s == 0:
            self._feed(Event.BACKOFF_OVER)
        else:
            self._note("back_off", f"the next start is in {self._delay_s:g} s")
            self._backoff = self._loop.call_later(self._delay_s, lambda: self._feed(Event.BACKOFF_OVER))

    def _reset_backoff(self) -> None:
        self._ends.succeeded()

    def _reset_intensity(self) -> None:
        self._ends.forget()

    # --- the standby -----------------------------------------------------------------------------------------------

    def _want_standby(self) -> None:
        if self.standbys.mode is StandbyMode.WARM:
            # After this step, which has something better to do first.
            self._loop.call_later(0, self._make_ahead)
        if self.standby is None and self.predecessor is None and not self.quarantine.reason:
            self.standbys.want()

    def _make_ahead(self) -> None:
        if self.state is State.READY:
            self._nursery.make_ahead(self.index, self._environment, self.output.fileno())

    def _standby_due(self) -> None:
        """It is our turn to start one."""
        if self.standby is None and self.predecessor is None and not self.quarantine.reason:
            self._feed(Event.STANDBY_DUE)
        if self.standby is None:
            self.standbys.not_now()

    def _spawn_standby(self) -> None:
        try:
            worker = self.standby = self._start_process(self._in_use, standby=True)
        except errors.SetupFailed as error:
            self._standby_failed(error.message, None)
            self._loop.call_later(0, lambda: self._feed(Event.STANDBY_LOST))
            return
        self._note("standby_start", "a standby starts", generation=worker.generation, pid=worker.pid)

    def _announce(self) -> None:
        self._sessions.device_changed(self)

    def _call_standby(self) -> None:
        standby = self.standby
        if standby is None or standby.leaving or self.quarantine.reason:
            return
        if not standby.listen():  # it may have died with the other
            standby.hang_up()
        active = self.active
        if standby is not self.standby or not standby.is_ready or active is None:
            return
        if not (active.drained or active.wish):
            lost = active.fault or error_of_requests(active)
            if isinstance(self._verdict(lost), intensity.Refused):
                return  # it will be said when the process has ended
            self._ends.add(active)
        self._feed(Event.TAKE_OVER)

    def _promote(self) -> None:
        assert self.predecessor is None
        self.predecessor = self.active
        self._promoted()

    def _dismiss(self) -> None:
        worker = self.standby
        self.standbys.forget()
        if worker is None or worker.leaving:
            return
        worker.wish = "dismiss"
        if not worker.is_ready:
            worker.kill()
            return
        worker.leaving = worker.drained = True
        worker.tell(control.Drain())
        worker.timer = self._loop.call_later(self._plan.drain_timeout_s, worker.kill)

    def _end_standby(self, worker: Incarnation) -> None:
        """A standby's process has ended."""
        if worker.wish:
            self._note("planned_end", "its standby has left", generation=worker.generation, pid=worker.pid)
        else:
            why = worker.fault.message if worker.fault else worker.end
            self._standby_failed(why, worker)
        announced = worker.ready_s is not None
        self._let_go(worker)
        self._feed(Event.STANDBY_LOST)
        if announced:
            self._sessions.device_changed(self)

    def _standby_failed(self, why: str, worker: Incarnation | None) -> None:
        ready_for_s = None
        if worker is not None and worker.ready_s is not None:
            ready_for_s = time.monotonic() - worker.ready_s
        generation = self._last_generation if worker is None else worker.generation
        pid = worker.pid if worker else 0
        self._note("standby_end", f"its standby has ended: {why}", generation=generation, pid=pid)
        if self.standbys.failed(why, ready_for_s):
            self._note("standby_failed", self.standbys.note, generation=generation)

    _DO: Final[dict[Action, Callable[[Device], None]]] = {
        Action.SPAWN: _spawn,
        Action.PUBLISH: _publish,
        Action.HOLD: _hold,
        Action.DRAIN: _drain,
        Action.KILL: _kill,
        Action.END: _end,
        Action.ASK_RESTART: _ask_restart,
        Action.ARM_BACKOFF: _arm_backoff,
        Action.RESET_BACKOFF: _reset_backoff,
        Action.RESET_INTENSITY: _reset_intensity,
        Action.WANT_STANDBY: _want_standby,
        Action.SPAWN_STANDBY: _spawn_standby,
        Action.ANNOUNCE: _announce,
        Action.CALL_STANDBY: _call_standby,
        Action.PROMOTE: _promote,
        Action.END_PREDECESSOR: _end_predecessor,
        Action.DISMISS: _dismiss,
    }

    def _note(self, event: str, text: str, generation: int | None = None, **facts: Scalar) -> None:
        """Write an event into the log and onto the screen."""
        generation = self.generation if generation is None else generation
        _LOG.info("device %d generation %d: %s", self.index, generation, text)
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
