"""What happens to a device's processes, as events of the device's life: what they say, and their ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from atomr_mp import errors
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.devices import ActorInfo
from atomr_mp.supervision.lifecycle import LifecycleEvent, State, UnexpectedEventError
from atomr_mp.supervisor.device.incarnation import Incarnation
from atomr_mp.supervisor.device.listener import DeviceListener
from atomr_mp.supervisor.sessions.residents import ResidentKeeper
from atomr_mp.transport.descriptors import Descriptor

if TYPE_CHECKING:
    from atomr_mp.supervisor.device.device import SupervisedDevice


class WorkerEvents:
    """Owns a device's processes: is told of what happens to each, and feeds it into the lifecycle table.

    Args:
        device: The device.
        sessions: Who is told.
        residents: What outlives the processes.
        run_dir: Notes which processes there are.
        ended: Called after each process end, when it has been reaped.
    """

    def __init__(
        self,
        device: SupervisedDevice,
        sessions: DeviceListener,
        residents: ResidentKeeper,
        run_dir: HeldRunDirectory,
        ended: Callable[[], None],
    ) -> None:
        self._device = device
        self._sessions = sessions
        self._residents = residents
        self._run_dir = run_dir
        self._ended = ended

    def heard(self, worker: Incarnation, message: control.FromWorker, descriptor: Descriptor | None) -> None:
        """Take in what a process says."""
        device = self._device
        match message:
            case control.Ready(actors):
                self._device.life.take(lambda: self._on_ready(worker, actors))
            case control.SessionAdmitted(number):
                worker.admitting.add(number)
                self.caught_up(worker)
            case control.SessionClosed(number):
                worker.admitted.discard(number)
                worker.admitting.discard(number)
                self._sessions.acknowledged(device, worker.generation, number)
            case control.SlabExported():
                shared = None if descriptor is None else descriptor.share()
                self._sessions.exported(device, worker.generation, message, shared)
            case control.OfResident():
                self._residents.heard((device.index, worker.generation), message, descriptor)
            case control.SessionViolated(number, reason):
                device.note("violation", reason, session=number)
                self._sessions.violated(number, reason)
            case control.Fault(info, settled):
                self._on_fault(worker, info.error(), settled=settled)

    def hung(self, worker: Incarnation, fault: errors.WorkerHung, stacks: str) -> None:
        """A process makes no progress; nothing if it takes no calls any more.

        Args:
            worker: The process.
            fault: What the requests end with that are on it.
            stacks: Of all its threads, for the logs.
        """
        hung_ns = time.monotonic_ns()
        self._device.life.take(lambda: self._on_hung(worker, fault, stacks, hung_ns))

    def _on_hung(self, worker: Incarnation, fault: errors.WorkerHung, stacks: str, hung_ns: int) -> None:
        device = self._device
        if worker is device.active and device.state is State.READY:
            worker.fault, worker.hung_ns = fault, hung_ns
            device.output.add(f"--- device {device.index} generation {worker.generation} hung\n{stacks}")
            device.note("hung", fault.message, pid=worker.pid, where=fault.where, stacks=stacks)
            device.life.step(LifecycleEvent.HUNG)

    def garbled(self, worker: Incarnation, error: errors.ProtocolError) -> None:
        """End a process that says what is no message."""
        self._on_fault(worker, errors.SetupFailed(f"the worker broke the protocol: {error}"))

    def caught_up(self, worker: Incarnation) -> None:
        """Let clients call whom a worker has admitted, once it can read all that it is to know before their calls."""
        device = self._device
        if not worker.is_behind:
            admitting, worker.admitting = worker.admitting, set()
            for number in sorted(admitting):
                worker.admitted.add(number)
                if worker.is_ready and worker in {device.active, device.standby}:
                    self._sessions.admitted(device, number)

    def dies(self, worker: Incarnation) -> None:
        """A process has begun to end: a standby takes over."""
        self._device.life.take(lambda: self._on_dies(worker))

    def _on_dies(self, worker: Incarnation) -> None:
        device = self._device
        if worker is device.active:
            device.ends.restarts.add(worker)
            device.life.step(LifecycleEvent.END_OF_FILE)

    def stopped(self, worker: Incarnation) -> None:
        """Nothing of a process that dies runs any more: what it has not answered by now, it will not."""
        if worker is not self._device.standby:
            self._device.ends.foretell(worker)

    def hung_up(self, worker: Incarnation, *, dying: bool) -> None:
        """A process will say no more: that is the first sign of its end."""
        if worker is self._device.standby:  # at once: it must not be promoted
            worker.kill()
        else:
            self._device.life.take(lambda: self._on_hung_up(worker, dying=dying))

    def _on_hung_up(self, worker: Incarnation, *, dying: bool) -> None:
        device = self._device
        if worker is device.active:
            if dying:
                device.ends.restarts.add(worker)  # before anybody hears of it
            device.life.step(LifecycleEvent.END_OF_FILE)
        if dying:
            device.ends.tell(worker)  # the kernel may take long to take its memory down, and nobody need wait for that

    def exited(self, worker: Incarnation) -> None:
        """A process has ended."""
        self._device.life.take(lambda: self._on_exited(worker))

    def _on_exited(self, worker: Incarnation) -> None:
        device = self._device
        if worker is device.active:
            device.life.step(LifecycleEvent.EXITED)
        elif worker is device.standby:
            device.takeover.ended(worker)
        elif worker in device.quarantine.stuck:
            device.quarantine.unstuck(worker)
        else:
            device.life.step(LifecycleEvent.PREDECESSOR_EXITED)
        self._run_dir.forget_worker(worker.pid)
        self._ended()

    def survived(self, worker: Incarnation) -> None:
        """A process goes on though it was killed: it is stuck in the kernel, and nobody waits for it any longer."""
        self._device.life.take(lambda: self._on_survived(worker))

    def _on_survived(self, worker: Incarnation) -> None:
        device = self._device
        text = f"its worker was killed and has not ended within {device.plan.kill_timeout_s:g} s (kill_timeout_s)"
        device.note("unkillable", text, generation=worker.generation, pid=worker.pid)
        if worker is device.active:
            device.ends.restarts.add(worker)
            device.life.step(LifecycleEvent.KILL_TIMEOUT)
            device.reason = device.reason if device.state is State.STOPPED else device.quarantine.reason
            self._sessions.device_changed(device)
        elif worker is device.standby:
            device.takeover.ended(worker)
        else:
            device.life.step(LifecycleEvent.PREDECESSOR_EXITED)
        self._ended()

    def late(self, worker: Incarnation) -> None:
        """A process was not ready in time."""
        self._device.life.take(lambda: self._on_late(worker))

    def _on_late(self, worker: Incarnation) -> None:
        device = self._device
        if worker.fault is None:
            worker.fault = errors.SetupFailed(
                f"the worker was not ready within {device.plan.start_timeout_s:g} s (start_timeout_s)"
            )
        if worker is device.active:
            device.life.step(LifecycleEvent.START_TIMEOUT)
        else:
            worker.kill()

    def _on_ready(self, worker: Incarnation, actors: list[ActorInfo]) -> None:
        device = self._device
        worker.actors = actors
        worker.watch_threads()
        now_s = time.monotonic()
        if worker is device.active:
            worker.ready_s = worker.ready_s or now_s
            device.standbys.start_s = now_s - worker.started_s
            self._step_from_worker(worker, LifecycleEvent.READY)
        elif worker is device.standby:
            device.takeover.ready(worker)

    def _on_fault(self, worker: Incarnation, fault: errors.AtomrError, *, settled: bool = False) -> None:
        worker.fault = fault
        if worker is self._device.active:
            self._device.life.take(lambda: self._on_active_fault(worker, fault, settled=settled))
        else:  # at once: a standby that has failed must not be promoted
            worker.kill()

    def _on_active_fault(self, worker: Incarnation, fault: errors.AtomrError, *, settled: bool) -> None:
        device = self._device
        if worker is not device.active:
            worker.kill()
            return
        poisoned = isinstance(fault, errors.ContextPoisoned)
        self._step_from_worker(worker, LifecycleEvent.POISONED if poisoned else LifecycleEvent.FAULT)
        if worker is device.predecessor:  # it lives on for a moment, and nobody need wait for its end
            if settled:
                device.ends.foretell(worker)
            worker.freeze(lambda: device.ends.tell(worker))

    def _step_from_worker(self, worker: Incarnation, event: LifecycleEvent) -> None:
        """Step as a worker's message asks; a message out of its turn breaks the protocol, which is a fault."""
        life = self._device.life
        if not life.expects(event):
            unexpected = UnexpectedEventError(life.state, event)
            worker.fault, event = (
                errors.SetupFailed(f"the worker broke the protocol: {unexpected}"),
                LifecycleEvent.FAULT,
            )
        life.step(event)
