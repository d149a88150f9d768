"""Messages of a device's processes: readiness, admitted sessions, memory that clients share with them."""

from __future__ import annotations

from collections.abc import Callable

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.devices import ActorInfo
from atomr_mp.supervision.lifecycle import LifecycleEvent, State
from atomr_mp.supervisor.device.death import Deaths
from atomr_mp.supervisor.device.life import DeviceLife
from atomr_mp.supervisor.device.listener import DeviceListener, ResidentListener, WorldListener
from atomr_mp.supervisor.device.roles import Roles
from atomr_mp.supervisor.device.takeover import Takeover
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.foresight import Foresight
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.transport.descriptors import Descriptor


class WorkerMessages:
    """Receives processes' messages, and hands them to the parts that they concern.

    Args:
        life: The device's life.
        roles: Its processes.
        log: Its events.
        sessions: Is told of messages that concern clients.
        residents: Is told of resident memory.
        worlds: Is told of epochs and mailboxes.
        takeover: Is told of a standby.
        foresight: Takes in what the worker is used for.
        deaths: Is told of a fault.
        replace: Replaces the worker; takes who asks for it, in a word, and the reason.
    """

    def __init__(
        self,
        *,
        life: DeviceLife,
        roles: Roles,
        log: DeviceLog,
        sessions: DeviceListener,
        residents: ResidentListener,
        worlds: WorldListener,
        takeover: Takeover,
        foresight: Foresight,
        deaths: Deaths,
        replace: Callable[[str, str], None],
    ) -> None:
        self._life = life
        self._roles = roles
        self._log = log
        self._sessions = sessions
        self._residents = residents
        self._worlds = worlds
        self._takeover = takeover
        self._foresight = foresight
        self._deaths = deaths
        self._replace = replace

    def heard(self, worker: Incarnation, message: control.FromWorker, descriptor: Descriptor | None) -> None:  # noqa: C901, PLR0912 - one case for each kind
        """Receive a process's message."""
        match message:
            case control.Ready(actors, codes):
                self._worlds.loaded(worker.key, codes)
                self._life.take(lambda: self._on_ready(worker, actors))
            case control.SessionAdmitted(number):
                worker.acknowledged(number)
                self.caught_up(worker)
            case control.SessionClosed(number):
                worker.closed(number)
                self._sessions.acknowledged(worker.key, number)
            case control.SlabExported():
                shared = None if descriptor is None else descriptor.share()
                self._sessions.exported(worker.key, message, shared)
            case control.Used():
                if worker is self._roles.active:
                    self._foresight.used(message, self._roles.standby)
            case control.Imported(modules):
                if worker is self._roles.active:
                    self._foresight.imported(modules, self._roles.standby)
            case control.Importing(name):
                self._foresight.importing(worker, name)
            case control.WarmingUp(method, limit_s):
                self._on_warming_up(worker, method, limit_s)
            case control.MemoryWanted(number):
                if number in worker.admitted and not worker.is_behind:  # else it asks again
                    self._sessions.memory_wanted(worker.device, number, worker.tell)
            case control.ResultSlab() | control.ResultSlabFreed():
                self._sessions.result_slab(worker.key, message, descriptor)
            case control.OfResident():
                self._residents.heard(worker.key, message, descriptor)
            case control.WorldMailbox():
                self._worlds.mailbox(worker.key, message, descriptor)
            case control.WorldRefused():
                self._worlds.refused(worker.key, message)
            case control.PartsWait():
                self._worlds.parts_wait(worker.key, message)
            case control.EpochJoined() | control.EpochLeft() | control.EpochBroken() | control.EpochHeld():
                self._worlds.heard(worker.key, message)
            case control.SessionViolated(number, reason):
                self._log.note("violation", reason, session=number)
                self._sessions.violated(number, reason)
            case control.Unsound(reason):
                if worker is self._roles.active:
                    self._replace("recycle", f"its worker is replaced: {reason}")
            case control.Fault(info, settled):
                self._deaths.failed(worker, info.error(), settled=settled)

    def garbled(self, worker: Incarnation, error: errors.ProtocolError) -> None:
        """End a process that has sent bytes that are no message."""
        self._deaths.garbled(worker, error)

    def caught_up(self, worker: Incarnation) -> None:
        """Let admitted clients call a worker, once it can read all messages that have to precede their calls."""
        for number in worker.admit():
            if worker.is_ready and worker in {self._roles.active, self._roles.standby}:
                self._sessions.admitted(worker.device, number)

    def _on_warming_up(self, worker: Incarnation, method: str, limit_s: float) -> None:
        """Show that a process calls a method with its example before it is ready."""
        if worker.was_ready or worker.leaving:
            return
        worker.warming_up(method, limit_s)
        if method:
            self._log.note("warm_up", f"warming up {method}", generation=worker.generation, pid=worker.pid)
        if worker is self._roles.active and self._life.state is State.STARTING:
            self._life.reason = f"warming up {method}" if method else "its worker starts"
            self._life.tell()

    def _on_ready(self, worker: Incarnation, actors: list[ActorInfo]) -> None:
        if worker is self._roles.active:
            worker.became_ready(actors)
            self._takeover.started(worker)
            self._deaths.step_as_told(worker, LifecycleEvent.READY)
        elif worker is self._roles.standby:
            self._takeover.ready(worker, actors)
