"""Why nothing is to be started on a device: a process that does not end, or a GPU that needs a reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atomr_mp import errors
from atomr_mp.supervision.lifecycle import LifecycleEvent, State

if TYPE_CHECKING:
    from atomr_mp.supervisor.device.device import SupervisedDevice
    from atomr_mp.supervisor.device.incarnation import Incarnation


class Quarantine:
    """What keeps a device from being used, as far as there is something.

    Args:
        device: The device.

    Attributes:
        stuck: Processes that were killed and have not ended; their requests have failed, their exit is awaited.
        sick: Why the GPU cannot be used, for a person; empty if it can, as far as is known.
        overruled: An operator wants a start in spite of all that.
    """

    def __init__(self, device: SupervisedDevice) -> None:
        self.stuck: list[Incarnation] = []
        self.sick = ""
        self.overruled = False
        self._device = device

    @property
    def reason(self) -> str:
        """Why nothing is started; empty if nothing is in the way."""
        if self.sick:
            return self.sick
        if self.stuck:
            pids = ", ".join(str(worker.pid) for worker in self.stuck)
            return (
                f"a killed worker has not ended (pid {pids}): it is stuck in the kernel, and nothing is started on its "
                "device before that has passed; see `dmesg`"
            )
        return ""

    def forbids(self) -> str:
        """Return why nothing may be started now, empty if it may; an operator's order holds once."""
        overruled, self.overruled = self.overruled, False
        return "" if overruled else self.reason

    def fall_sick(self, why: str, *, at_once: bool) -> None:
        """Have nothing run on the device before it has recovered; may be called again.

        Args:
            why: The reason, for a person.
            at_once: What runs is of no use, and is killed; else it finishes what it holds.
        """
        self._device.life.take(lambda: self._fall_sick(why, at_once=at_once))

    def _fall_sick(self, why: str, *, at_once: bool) -> None:
        device = self._device
        if self.sick != why:
            device.note("sick", why)
        self.sick = why
        if device.standby is not None:
            device.takeover.dismiss()
        worker = device.active
        if worker is None:
            return
        if at_once and device.state in {State.STARTING, State.READY, State.DRAINING}:
            worker.fault = worker.fault or errors.DeviceUnavailable(why, device=device.index)
            device.life.step(LifecycleEvent.FAULT)
        elif device.state in {State.STARTING, State.READY}:
            worker.wish = "health"
            device.life.step(LifecycleEvent.DRAIN)

    def recover(self, why: str) -> None:
        """Let the device be used again; whether it is well, the next start shows."""
        self._device.life.take(lambda: self._recover(why))

    def _recover(self, why: str) -> None:
        if self.sick:
            self.sick = ""
            self._device.note("recovered", why)
            self._release()

    def unstuck(self, worker: Incarnation) -> None:
        """A process has ended that was thought never to; this is part of a fact."""
        self.stuck.remove(worker)
        self._device.forget_stuck(worker)
        self._device.note(
            "unstuck", "the killed worker has ended after all", generation=worker.generation, pid=worker.pid
        )
        self._release()

    def _release(self) -> None:
        """Go on, if nothing is in the way any more."""
        if self.reason:
            return
        if self._device.state is State.QUARANTINED:
            self._device.life.step(LifecycleEvent.RELEASED)
        elif self._device.state is State.READY:
            self._device.takeover.want()
