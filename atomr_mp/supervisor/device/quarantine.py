"""The reason why nothing is started on a device: a process that does not end, or a GPU that needs a reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.supervision.lifecycle import Action, LifecycleEvent, State
from atomr_mp.supervisor.device.life import DeviceLife
from atomr_mp.supervisor.device.roles import Roles
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.incarnation import Incarnation


class StuckOnGpu:
    """The killed processes of one GPU that have not ended: its driver may be stuck, for all of its devices."""

    def __init__(self) -> None:
        self.processes: Final[list[Incarnation]] = []
        self._listeners: Final[list[Callable[[], None]]] = []

    def listen(self, ended: Callable[[], None]) -> None:
        """Call a function whenever one of the processes has ended after all."""
        self._listeners.append(ended)

    def remove(self, worker: Incarnation) -> None:
        """Forget a process that has ended, and tell the GPU's devices."""
        self.processes.remove(worker)
        for ended in self._listeners:
            ended()


class Quarantine:
    """The reasons that keep a device out of use, if there are any.

    Args:
        index: The device's index.
        on_gpu: What is stuck of the device's GPU, shared by its devices.
        life: Its life.
        roles: Its processes.
        log: Its events.
    """

    def __init__(
        self,
        index: int,
        on_gpu: StuckOnGpu,
        life: DeviceLife,
        roles: Roles,
        log: DeviceLog,
    ) -> None:
        self._index = index
        self._on_gpu = on_gpu
        self._life = life
        self._roles = roles
        self._log = log
        self._stuck: list[Incarnation] = []
        self._sick = ""
        self._overruled = False
        on_gpu.listen(lambda: life.take(self._release))

    @property
    def stuck(self) -> list[Incarnation]:
        """Processes that were killed and have not ended; their requests have failed, their exit is awaited."""
        return self._stuck

    @property
    def reason(self) -> str:
        """Why nothing is started; empty if nothing is in the way."""
        if self._sick:
            return self._sick
        stuck = self._on_gpu.processes
        if stuck:
            pids = ", ".join(str(worker.pid) for worker in stuck)
            whose = "" if self._stuck else f" of device {stuck[0].device}, on the same GPU,"
            return (
                f"a killed worker{whose} has not ended (pid {pids}): it is stuck in the kernel, and nothing is started "
                "on its GPU before that has passed; see `dmesg`"
            )
        return ""

    def overrule(self) -> None:
        """Allow one start in spite of the reason, if there is one: an operator wants it."""
        self._overruled = bool(self.reason)

    def forbids(self) -> str:
        """Return why nothing may be started now, empty if it may; an operator's order holds once."""
        overruled, self._overruled = self._overruled, False
        return "" if overruled else self.reason

    def fall_sick(self, why: str, *, at_once: bool) -> None:
        """Keep the device out of use until it has recovered; may be called again.

        Args:
            why: The reason, for a person.
            at_once: Kill the worker, which is of no use any more; else it finishes its requests.
        """
        self._life.take(lambda: self._fall_sick(why, at_once=at_once))

    def recover(self, why: str) -> None:
        """Let the device be used again; the next start shows whether it is well."""
        self._life.take(lambda: self._recover(why))

    def hold(self, worker: Incarnation) -> None:
        """A killed process does not end; nothing is started before it has."""
        self._stuck.append(worker)
        self._on_gpu.processes.append(worker)

    def unstuck(self, worker: Incarnation) -> None:
        """Release the GPU's devices: a process of this one that was stuck has ended. This is part of a fact."""
        self._stuck.remove(worker)
        text = "the killed worker has ended after all"
        self._log.note("unstuck", text, generation=worker.generation, pid=worker.pid)
        self._on_gpu.remove(worker)

    def _fall_sick(self, why: str, *, at_once: bool) -> None:
        if self._sick != why:
            self._log.note("sick", why)
        self._sick = why
        if self._roles.standby is not None:
            self._life.act(Action.DISMISS)
        worker, life = self._roles.active, self._life
        if worker is None:
            return
        if at_once and life.state in {State.STARTING, State.READY, State.DRAINING}:
            if worker.parting.fault is None:
                worker.parting.failed(errors.DeviceUnavailable(why, device=self._index))
            life.step(LifecycleEvent.FAULT)
        elif life.state in {State.STARTING, State.READY}:
            worker.parting.wished("health")
            life.step(LifecycleEvent.DRAIN)

    def _recover(self, why: str) -> None:
        if self._sick:
            self._sick = ""
            self._log.note("recovered", why)
            self._release()

    def _release(self) -> None:
        """Go on, if all obstacles have gone."""
        life = self._life
        if self.reason:
            return
        if life.state is State.QUARANTINED:
            life.step(LifecycleEvent.RELEASED)
        elif life.state is State.READY:
            life.act(Action.WANT_STANDBY)
