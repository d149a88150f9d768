"""One device under supervision: what happens to its worker goes into the lifecycle table, what comes out is done."""

from __future__ import annotations

import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.process.cgroup import CgroupParent, WorkerCgroup
from atomr_mp.process.events import EventLog, Scalar
from atomr_mp.process.logs import RotatedOutput
from atomr_mp.process.rundir import HeldRunDirectory
from atomr_mp.process.spawn import ExitCause, WorkerProcess, spawn
from atomr_mp.protocol import control
from atomr_mp.protocol.board import BoardReader
from atomr_mp.protocol.codec import MAX_SESSION_MESSAGE_BYTES, ErrorInfo, clip
from atomr_mp.protocol.session import ActorInfo, DeviceInfo, IncarnationEnded
from atomr_mp.supervision import intensity
from atomr_mp.supervision.directives import Directive, directive
from atomr_mp.supervision.lifecycle import Action, Event, State, UnexpectedEventError, step
from atomr_mp.supervision.tally import Tally
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.plan import DevicePlan, Plan
from atomr_mp.transport import descriptors
from atomr_mp.transport.descriptors import Descriptor

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

INFO_CHARS: Final = 1200
"""Longest text in what is told of a device: with 64 of them a welcome stays below the limit of a message, and one
actor's long message does not keep clients from connecting. The worker's log and the event log have it whole."""


FAULT_CHARS: Final = 300
"""Longest text of a past fault in a status, which has one for each device."""


class Sessions(Protocol):
    """What a device needs of the sessions."""

    def introductions(self, device: Device) -> Iterable[tuple[control.FromSupervisor, Descriptor | None]]:
        """Return what a device's worker must know of every client that may call; the descriptors are the receiver's."""

    def device_changed(self, device: Device, actors: list[ActorInfo] | None = None) -> None:
        """Tell every client the device's new state."""

    def incarnation_ended(self, device: Device, make: Callable[[int], IncarnationEnded]) -> None:
        """Tell every client that an incarnation has ended; `make` takes the session's number."""

    def incarnation_over(self, device: Device, generation: int) -> None:
        """An incarnation has ended, and the device has let go of it."""

    def admitted(self, device: Device, number: int) -> None:
        """A worker has acknowledged a session."""

    def acknowledged(self, device: Device, number: int) -> None:
        """A worker does nothing for a session any more."""

    def exported(self, device: Device, message: control.SlabExported, descriptor: Descriptor | None) -> None:
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
        sessions: Who is told.
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
        ended: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.index: Final = device.index
        self.name: Final = device.name
        self.notes: Final = device.notes
        self.state = State.STOPPED
        self.generation = 0
        self.restarts = 0
        """Unplanned ends so far."""
        self.reason = "not started yet"
        self.admitted: set[int] = set()
        """Sessions that the current incarnation has acknowledged."""
        self.process: WorkerProcess | None = None
        self.tally: Final = Tally()
        self.last_fault = (0.0, "")
        """When an incarnation last ended that was not to, and how."""
        self.output: Final = RotatedOutput(run_dir.log(f"device-{device.index}"), max_bytes=plan.log_max_bytes)
        self._plan = plan
        self._device = device
        self._trial: Plan | None = None
        """What the next incarnation is started by, if not by the plan that holds."""
        self._environment = {**os.environ, **device.environment}
        self._loop = loop
        self._run_dir = run_dir
        self._events = log
        self._epoch = epoch
        self._sessions = sessions
        self._ended = ended
        self._changed = changed
        self._cgroups = CgroupParent.find() if plan.cgroups else None
        self._cgroup: WorkerCgroup | None = None
        self._history = intensity.History.EMPTY
        self._unsent: deque[tuple[bytes, Descriptor | None]] = deque()
        self._hears = False
        """The control channel of the current incarnation has not ended."""
        self._admitting: set[int] = set()
        """Sessions that the current incarnation has acknowledged before all that it is to know of them was sent."""
        self._actors: list[ActorInfo] = []
        self._cause = ExitCause()
        self._wish = ""
        """Whose wish the end of the current incarnation is, as for `replace`; empty if it is nobody's."""
        self._lost: errors.AtomrError | None = None
        """How the last incarnation ended, if that was unplanned."""
        self._fault: errors.AtomrError | None = None
        """Why the current incarnation ends, as far as it said so itself or we decided."""
        self._late = ""
        """That the current incarnation was killed because its drain took too long, in words."""
        self._timer: Timer | None = None
        self._delay_s = 0.0
        self._spawned_s = 0.0
        self._held_s = 0.0
        """Since when clients hold their calls for the next incarnation; 0 if they do not, or for the first."""

    # --- what others ask -------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """ZeroMQ address of the current incarnation."""
        return f"ipc://{self._run_dir.worker_socket(self.index, self.generation)}"

    @property
    def actors(self) -> list[ActorInfo]:
        """What the latest incarnation that was ready offers."""
        return self._actors

    @property
    def board(self) -> BoardReader | None:
        """The board of the current incarnation, if there is one."""
        return None if self.process is None else BoardReader(self.process.board)

    def info(self, session_number: int) -> DeviceInfo:
        """Return the device as a session may see it."""
        admitted = self.state is State.READY and session_number in self.admitted
        return DeviceInfo(
            index=self.index,
            name=self.name,
            state=self.state,
            generation=self.generation,
            endpoint=self.endpoint if admitted else "",
            admitted=admitted,
            pid=self.process.pid if self.process else 0,
            restarts=self.restarts,
            reason=clip(self.reason, INFO_CHARS),
            error=ErrorInfo.of(self._lost, INFO_CHARS) if self.state is State.STOPPED and self._lost else None,
            uuid=self._device.uuid,
        )

    def start(self) -> None:
        """Start the first incarnation."""
        self._feed(Event.START)

    def replace(self, event: str, why: str) -> None:
        """Replace the worker after it has finished what it holds; close an open circuit.

        Args:
            event: Whose wish that is, for the event log: "restart", "recycle", "reload".
            why: The same in words.
        """
        self._note(event, why)
        self._wish = event
        self._feed(Event.DRAIN)

    def try_plan(self, plan: Plan) -> None:
        """Start the next incarnation by another plan, and those after it by the one that holds."""
        self._trial = plan

    def take_plan(self, plan: Plan) -> None:
        """Start further incarnations by another plan."""
        self._plan, self._device, self._trial = plan, plan.devices[self.index], None

    def stop(self) -> None:
        """Let the worker finish, and start no other."""
        self.reason = "the pool stops"
        self._wish = "stop"
        self._feed(Event.STOP)

    def kill(self) -> None:
        """End the worker now; with `stop` before it, for good."""
        if self.process is not None:
            self.process.kill()

    @property
    def lost(self) -> errors.AtomrError | None:
        """How the last incarnation ended, if that was unplanned."""
        return self._lost

    @property
    def age_s(self) -> float:
        """How long the current incarnation has been running."""
        return time.monotonic() - self._spawned_s

    def runs(self, generation: int) -> bool:
        """Return whether an incarnation is the current one, and has not ended."""
        return self.process is not None and self.generation == generation

    @property
    def is_behind(self) -> bool:
        """Whether messages to the worker wait here, since it has not read earlier ones."""
        return bool(self._unsent)

    def tell(self, message: control.FromSupervisor, descriptor: Descriptor | None = None) -> bool:
        """Send the worker a message; one that it does not take yet is queued.

        Args:
            message: The message.
            descriptor: Travels with it; owned from here on.

        Returns:
            Whether there is a worker, be it one that does not listen any more.
        """
        if self._hears:
            self._unsent.append((control.FROM_SUPERVISOR.encode(message), descriptor))
            self._flush()
        elif descriptor is not None:
            descriptor.close()
        return self.process is not None

    # --- what happens ----------------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        """Take a step through the table and carry its actions out."""
        before = self.state
        self.state, actions = after = step(before, event)
        if before is State.REBUILDING:
            self._cancel_timer()  # that of the back-off
        if self.state is not before:
            _LOG.debug("device %d: %s -> %s on %s", self.index, before, self.state, event)
        for action in actions:
            self._DO[action](self)
        # An action may have led further, and told the clients already.
        if before is not self.state is after.state and Action.PUBLISH not in actions:
            self._sessions.device_changed(self)
        if self.state is not before:
            self._changed()

    def _feed_from_worker(self, event: Event) -> None:
        try:
            self._feed(event)
        except UnexpectedEventError as error:
            self._fault = errors.SetupFailed(f"the worker broke the protocol: {error}")
            self._feed(Event.FAULT)

    def _on_control(self, events: int) -> None:
        process = self.process
        assert process is not None
        if events & select.EPOLLOUT:
            self._flush()
        if events & ~select.EPOLLOUT and not self._read_control(process):
            self._stop_telling(process)
            self._feed(Event.END_OF_FILE)

    def _read_control(self, process: WorkerProcess) -> bool:
        """Take in what the worker has said; return False at its end of file."""
        while process is self.process:
            try:
                packet, descriptor = descriptors.receive(process.control, MAX_SESSION_MESSAGE_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            try:
                if not packet:
                    return False
                self._hear(control.FROM_WORKER.decode(packet), descriptor)
            except errors.ProtocolError as error:
                self._fault = errors.SetupFailed(f"the worker broke the protocol: {error}")
                self._feed(Event.FAULT)
            finally:
                if descriptor is not None:
                    descriptor.close()
        return True

    def _hear(self, message: control.FromWorker, descriptor: Descriptor | None) -> None:
        match message:
            case control.Ready(actors):
                self._actors = actors
                self._feed_from_worker(Event.READY)
            case control.SessionAdmitted(number):
                self._admitting.add(number)
                self._admit()
            case control.SessionClosed(number):
                self.admitted.discard(number)
                self._admitting.discard(number)
                self._sessions.acknowledged(self, number)
            case control.SlabExported():
                self._sessions.exported(self, message, None if descriptor is None else descriptor.share())
            case control.SessionViolated(number, reason):
                self._note("violation", reason, session=number)
                self._sessions.violated(number, reason)
            case control.Fault(info):
                self._fault = info.error()
                poisoned = isinstance(self._fault, errors.ContextPoisoned)
                self._feed_from_worker(Event.POISONED if poisoned else Event.FAULT)

    def _on_exit(self, _events: int) -> None:
        """The pidfd says that the process has ended."""
        process = self.process
        assert process is not None
        self._read_control(process)  # its last words
        self._loop.forget(process.pidfd)
        self._stop_telling(process)
        self._cause = process.reap()
        self._run_dir.forget_worker(process.pid)
        if self._cgroup is not None:
            self._cgroup.kill()
            self._cgroup.remove()
            self._cgroup = None
        self._feed(Event.EXITED)
        self._ended()

    # --- what is to be done ----------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        self._cancel_timer()
        plan, self._trial = self._trial or self._plan, None
        self.generation += 1
        self._fault = None
        self._cause = ExitCause()
        self._late = self._wish = ""
        self._spawned_s = time.monotonic()
        self.output.new_incarnation(f"--- device {self.index} generation {self.generation}")
        try:
            process = spawn(
                pool=plan.pool,
                device=self.index,
                generation=self.generation,
                env=self._environment,
                output_fd=self.output.fileno(),
                core_dumps=plan.core_dumps,
            )
        except errors.SetupFailed as error:
            self._fault = error
            # The table's step must be complete before the next.
            self._loop.call_later(0, self._on_no_process)
            return
        self.process = process
        self.reason = "its worker starts"
        self._run_dir.record_worker(process.pid, process.identity.start_ticks)
        if self._cgroups is not None:
            self._cgroup = self._cgroups.add(f"device-{self.index}-{self.generation}", process.pid)
        self._loop.watch(process.pidfd, select.EPOLLIN, self._on_exit)
        self._loop.watch(process.control.fileno(), select.EPOLLIN, self._on_control)
        self._hears = True
        self._note("start", "a worker starts", pid=process.pid)
        self.tell(
            control.Start(
                pool=plan.pool,
                epoch=self._epoch,
                device=self.index,
                name=self.name,
                backend=plan.backend,
                generation=self.generation,
                endpoint=self.endpoint,
                actors=plan.actors,
                window=plan.window,
                execution=plan.devices[self.index].execution,
            )
        )
        for introduction, descriptor in self._sessions.introductions(self):
            self.tell(introduction, descriptor)
        self._timer = self._loop.call_later(plan.start_timeout_s, self._on_start_timeout)

    def _on_no_process(self) -> None:
        self._feed(Event.EXITED)
        self._ended()

    def _on_start_timeout(self) -> None:
        if self._fault is None:
            self._fault = errors.SetupFailed(
                f"the worker was not ready within {self._plan.start_timeout_s:g} s (start_timeout_s)"
            )
        self._feed(Event.START_TIMEOUT)

    def _publish(self) -> None:
        self._cancel_timer()
        now_s = time.monotonic()
        took_s, away_s = now_s - self._spawned_s, now_s - (self._held_s or now_s)
        self._held_s = 0.0
        self.reason = ""
        waited = f"; calls had to wait for {away_s * 1000:.0f} ms" if away_s else ""
        self._note(
            "ready",
            f"ready after {took_s * 1000:.0f} ms{waited}",
            pid=self.process.pid if self.process else 0,
            took_s=round(took_s, 4),
            away_s=round(away_s, 4),
        )
        self._sessions.device_changed(self, self._actors)

    def _hold(self) -> None:
        self._held_s = time.monotonic()
        if self._fault is not None:
            self.reason = self._fault.message

    def _drain(self) -> None:
        self._cancel_timer()
        self.reason = "its worker finishes what it holds"
        self.tell(control.Drain())
        self._timer = self._loop.call_later(self._plan.drain_timeout_s, self._on_drain_timeout)

    def _on_drain_timeout(self) -> None:
        self._late = f" after it had not finished within {self._plan.drain_timeout_s:g} s (drain_timeout_s)"
        self._note("drain_timeout", f"not done within {self._plan.drain_timeout_s:g} s (drain_timeout_s)")
        self._feed(Event.DRAIN_TIMEOUT)

    def _kill(self) -> None:
        if self._fault is not None:
            self._note("fault", self._fault.message, code=self._fault.code)
        if self.process is not None:
            self.process.kill()

    def _end(self) -> None:
        """Tell what became of the requests that were on the incarnation, and let go of it."""
        self._cancel_timer()
        process, cause = self.process, self._cause
        planned = self.state in {State.STARTING, State.STOPPED} and cause.status == 0
        error = self._error_of_requests(cause)
        lost = self._fault or error
        self._lost = None if planned else lost
        self.reason = lost.message
        if process is None:
            return
        board = BoardReader(process.board)
        started: dict[int, list[int]] = {}
        running: dict[int, list[int]] = {}
        for entry in board.entries():
            started.setdefault(entry.session, []).append(entry.request_id)
            if entry.ended_ns == 0:
                running.setdefault(entry.session, []).append(entry.request_id)
        count = sum(map(len, running.values()))
        number = "" if cause.signal is None else f" (signal {cause.signal})"
        self._note(
            "planned_end" if planned else "end",
            "left as it was told"
            if planned
            else f"ended: {cause.describe()}{number}{self._late}, {count or 'no'} request{'' if count == 1 else 's'} "
            f"{'was' if count == 1 else 'were'} running",
            pid=process.pid,
            running=count,
            age_s=round(self.age_s, 3),
            **({"status": cause.status} if cause.signal is None else {"signal": cause.signal}),
        )
        self.tally.add(board, self._cause_in_a_word(cause), lost=not planned)
        if not (planned or self._wish):
            self.last_fault = (time.time(), clip(lost.message, FAULT_CHARS))
        info, since_ns = ErrorInfo.of(error), board.known_since_ns()

        def make(number: int) -> IncarnationEnded:
            return IncarnationEnded(
                device=self.index,
                generation=process.generation,
                planned=planned,
                error=info,
                started=started.get(number, []),
                known_since_ns=since_ns,
                running=running.get(number, []),
            )

        self._sessions.incarnation_ended(self, make)
        board.release()
        process.close()
        self.process = None
        self.admitted.clear()
        self._admitting.clear()
        self._run_dir.worker_socket(self.index, process.generation).unlink(missing_ok=True)
        self._sessions.incarnation_over(self, process.generation)

    def _error_of_requests(self, cause: ExitCause) -> errors.AtomrError:
        """Return what the requests that were on the incarnation end with."""
        if isinstance(self._fault, errors.ContextPoisoned):
            self._fault.device, self._fault.generation = self.index, self.generation
            return self._fault
        return errors.WorkerLost(
            f"device {self.index}'s worker (generation {self.generation}) {cause.describe()}{self._late}",
            device=self.index,
            generation=self.generation,
            cause=cause.describe(),
        )

    def _cause_in_a_word(self, cause: ExitCause) -> str:
        if self._late:
            return "drain_timeout"
        if self._wish:
            return self._wish
        if self._fault is not None:
            return self._fault.code
        return cause.signal_name.lower() or "exit"

    def _ask_restart(self) -> None:
        lost = self._lost
        assert lost is not None
        self.restarts += 1
        if directive(lost) in {Directive.STOP, Directive.ESCALATE}:
            verdict: intensity.Verdict = intensity.Refused(lost.message)
        else:
            self._history, verdict = intensity.ask(self._plan.intensity, self._history, time.monotonic())
        match verdict:
            case intensity.Granted(delay_s):
                self._delay_s = delay_s
                event = Event.RESTART_GRANTED
            case intensity.Refused(reason):
                self.reason = reason if reason == lost.message else f"{reason}; the last: {lost.message}"
                self._note("circuit_open", self.reason)
                event = Event.RESTART_REFUSED
        self._feed(event)

    def _arm_backoff(self) -> None:
        if self._delay_s == 0:
            self._feed(Event.BACKOFF_OVER)
        else:
            self._note("back_off", f"the next start is in {self._delay_s:g} s")
            self._timer = self._loop.call_later(self._delay_s, lambda: self._feed(Event.BACKOFF_OVER))

    def _reset_backoff(self) -> None:
        self._history = intensity.succeeded(self._history)

    def _reset_intensity(self) -> None:
        self._history = intensity.History.EMPTY

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
    }

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _admit(self) -> None:
        """Let clients call whom the worker has admitted, once it can read all that it is to know before their calls."""
        if not self._unsent:
            admitting, self._admitting = self._admitting, set()
            for number in sorted(admitting):
                self.admitted.add(number)
                self._sessions.admitted(self, number)

    def _flush(self) -> None:
        process = self.process
        assert process is not None
        while self._unsent:
            packet, descriptor = self._unsent[0]
            try:
                descriptors.send(process.control, packet, None if descriptor is None else descriptor.fileno())
            except BlockingIOError:
                self._loop.rewatch(process.control.fileno(), select.EPOLLIN | select.EPOLLOUT)
                return
            except OSError:  # its end of file will tell
                self._drop_unsent()
                return
            self._unsent.popleft()
            if descriptor is not None:
                descriptor.close()
        self._loop.rewatch(process.control.fileno(), select.EPOLLIN)
        self._admit()

    def _stop_telling(self, process: WorkerProcess) -> None:
        self._hears = False
        self._loop.forget(process.control.fileno())
        self._drop_unsent()

    def _drop_unsent(self) -> None:
        for _, descriptor in self._unsent:
            if descriptor is not None:
                descriptor.close()
        self._unsent.clear()

    def _note(self, event: str, text: str, **facts: Scalar) -> None:
        """Write an event into the log and onto the screen."""
        _LOG.info("device %d generation %d: %s", self.index, self.generation, text)
        self._events.append(
            {
                "time": time.time(),
                "event": event,
                "device": self.index,
                "generation": self.generation,
                "text": text,
                **facts,
            }
        )
