"""Makes a device's processes: each by a plan, under a generation and at an endpoint of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from atomr_mp.process.cgroup import CgroupParent, WorkerCgroup
from atomr_mp.process.files.logs import RotatedOutput
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.protocol.messages import control
from atomr_mp.supervisor.device.incarnation import Incarnation
from atomr_mp.supervisor.device.process_factory import ProcessFactory
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.plan import DevicePlan, Plan
from atomr_mp.transport.descriptors import Descriptor

if TYPE_CHECKING:
    from atomr_mp.supervisor.device.device import SupervisedDevice
    from atomr_mp.supervisor.device.worker_events import WorkerEvents

Introductions = Callable[[], Iterable[tuple[control.FromSupervisor, Descriptor | None]]]
"""Return what a process must know of every client that may call; the descriptors are the receiver's."""


class Starter:
    """Makes the processes of one device, and takes away what they leave in the run directory.

    Args:
        device: The device.
        owner: Owns the processes.
        plan: The pool's plan.
        described: The device's part of it.
        loop: The supervisor's loop.
        run_dir: Where sockets and logs are.
        epoch: The pool's.
        factory: Makes the processes.
        introductions: What each must know of the clients.
    """

    def __init__(
        self,
        device: SupervisedDevice,
        owner: WorkerEvents,
        plan: Plan,
        described: DevicePlan,
        *,
        loop: Loop,
        run_dir: HeldRunDirectory,
        epoch: bytes,
        factory: ProcessFactory,
        introductions: Introductions,
    ) -> None:
        self.output: Final = RotatedOutput(run_dir.log(f"device-{device.index}"), max_bytes=plan.log_max_bytes)
        """What the processes print."""
        self.last_generation = 0
        """Of whatever was started last, a standby too."""
        self._device = device
        self._owner = owner
        self._loop = loop
        self._run_dir = run_dir
        self._epoch = epoch
        self._factory = factory
        self._introductions = introductions
        self._environment = {**os.environ, **described.environment}
        self._cgroups = CgroupParent.find() if plan.cgroups else None
        self._left: list[WorkerCgroup] = []
        """Of processes that have ended, and whose own still end."""

    def start(self, plan: Plan, *, standby: bool) -> Incarnation:
        """Start a process under the next generation, by a plan.

        Raises:
            SetupFailed: None could be made.
        """
        device = self._device
        self.last_generation = generation = self.last_generation + 1
        self.output.new_incarnation(f"--- device {device.index} generation {generation}")
        process, cold = self._factory.make(device.index, generation, self._environment, self.output.fileno())
        if cold:
            device.note("cold_start", f"a fresh interpreter is started: {cold}", generation=generation, pid=process.pid)
        self._run_dir.record_worker(process.pid, process.identity.start_ticks)
        cgroup = None
        if self._cgroups is not None:
            cgroup = self._cgroups.add(f"device-{device.index}-{generation}", process.pid)
        worker = Incarnation(device.index, process, self._loop, cgroup, self._owner, plan.kill_timeout_s)
        worker.tell(
            control.Start(
                pool=plan.pool,
                epoch=self._epoch,
                device=device.index,
                name=device.name,
                backend=plan.backend,
                generation=generation,
                endpoint=self.endpoint(generation),
                actors=plan.actors,
                window=plan.window,
                execution=plan.devices[device.index].execution,
                standby=standby,
            )
        )
        for introduction, descriptor in self._introductions():
            worker.tell(introduction, descriptor)
        worker.timer = self._loop.call_later(plan.start_timeout_s, lambda: self._owner.late(worker))
        return worker

    def make_ahead(self) -> None:
        """Have the next process forked before it is needed."""
        self._factory.make_ahead(self._device.index, self._environment, self.output.fileno())

    def discard_ahead(self) -> None:
        """End the process that was forked for that: it may have the device's driver open."""
        self._factory.discard_ahead(self._device.index)

    def endpoint(self, generation: int) -> str:
        """Return where the process of a generation takes calls."""
        return f"ipc://{self._run_dir.worker_socket(self._device.index, generation)}"

    def clear(self, worker: Incarnation) -> None:
        """Take a process's endpoint away, whom nobody is to call any more, and its cgroup as soon as that is empty."""
        self._run_dir.worker_socket(self._device.index, worker.generation).unlink(missing_ok=True)
        if worker.cgroup is not None:
            self._left.append(worker.cgroup)
            self.tidy()

    def tidy(self, timeout_s: float = 0.0) -> None:
        """Remove the cgroups that are empty by now; to be called when something has ended.

        Args:
            timeout_s: How long each is waited for.
        """
        self._left = [cgroup for cgroup in self._left if not cgroup.remove(timeout_s)]
