"""The processes of a world's devices: what a world asks of them and tells them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.process.scheduling import is_stopped, standstill
from atomr_mp.protocol.messages import control
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.transport.descriptors import Descriptor


class WorldProcesses(Protocol):
    """The processes of a world's devices."""

    def tell(
        self, device: int, generation: int, message: control.FromSupervisor, descriptor: Descriptor | None = None
    ) -> None:
        """Send a message to a process if it is there; the descriptor is the callee's."""

    def replace(self, device: int, generation: int, why: str, word: str) -> None:
        """Have a process replaced that does not do what it was asked; `word` says why to programs."""

    def state(self, device: int) -> str:
        """Return in words how a device is: "is starting"."""

    def drain_timeout_s(self, device: int) -> float:
        """Return how long a process of a device has for what it runs, before a planned end."""

    def is_stopped(self, device: int, generation: int) -> bool:
        """Return whether a process is stopped by a signal."""

    def standstill(self, device: int, generation: int) -> str:
        """Return in words why a process stands still, and what has it go on; "" if it runs or is not there."""


class DeviceProcesses:
    """The processes of all devices, as worlds see them.

    Args:
        devices: The pool's devices, by index.
    """

    def __init__(self, devices: Sequence[SupervisedDevice]) -> None:
        self._devices: Final = devices

    def tell(
        self, device: int, generation: int, message: control.FromSupervisor, descriptor: Descriptor | None = None
    ) -> None:
        """Send a message to a process if it is there; the descriptor is the callee's."""
        worker = self._devices[device].roles.of(generation)
        if worker is not None:
            worker.tell(message, descriptor)
        elif descriptor is not None:
            descriptor.close()

    def replace(self, device: int, generation: int, why: str, word: str) -> None:
        """Have a process replaced that does not do what it was asked; `word` says why to programs."""
        found = self._devices[device]
        worker = found.roles.of(generation)
        if worker is not None:
            found.deaths.failed(worker, errors.DeviceUnavailable(why, device=device), word=word)

    def state(self, device: int) -> str:
        """Return in words how a device is."""
        life = self._devices[device].life
        if life.state is State.READY:
            return "is about to be replaced"
        return f"is {life.state}: {life.reason}" if life.reason else f"is {life.state}"

    def is_stopped(self, device: int, generation: int) -> bool:
        """Return whether a process is stopped by a signal."""
        worker = self._devices[device].roles.of(generation)
        return worker is not None and is_stopped(worker.pid)

    def standstill(self, device: int, generation: int) -> str:
        """Return in words why a process stands still, and what has it go on; "" if it runs or is not there."""
        worker = self._devices[device].roles.of(generation)
        still = None if worker is None else standstill(worker.pid)
        return "" if worker is None or still is None else f"pid {worker.pid} is {still.why}; {still.remedy}"

    def drain_timeout_s(self, device: int) -> float:
        """Return how long a process of a device has for what it runs, before a planned end."""
        return self._devices[device].plans.held.settings.drain_timeout_s
