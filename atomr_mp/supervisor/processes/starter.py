"""Makes a device's processes, each by a plan, with its own generation and endpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.process.cgroup import CgroupParent, WorkerCgroup
from atomr_mp.process.files.logs import RotatedOutput
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.process.spawn import WorkerProcess
from atomr_mp.protocol.messages import control
from atomr_mp.supervision.reclaim import Worker
from atomr_mp.supervisor.plan import DevicePlan, Plan
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.foresight import Foresight
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.process_factory import ProcessFactory
from atomr_mp.transport.descriptors import Descriptor

Introduction = tuple[control.FromSupervisor, Descriptor | None]
"""A message to a new process, with a descriptor, which is the receiver's."""


class Introductions(NamedTuple):
    """The sources of the messages that introduce others to a new process."""

    worlds: Callable[[Worker], list[Introduction]]
    """Return the messages before its start: its worlds, with its files; raises OSError if no descriptor is left."""
    withdraw: Callable[[Worker, list[Introduction]], None]
    """Take these messages back, since no process could be made."""
    clients: Callable[[], Iterable[Introduction]]
    """Return the messages behind its start: every client."""


Adopt = Callable[[WorkerProcess, WorkerCgroup | None, float], Incarnation]
"""Take charge of a process that was just started, with its cgroup, and the time that it may take to end when killed."""


class Starter:
    """Makes the processes of one device, and removes the files that they leave in the run directory.

    Args:
        plan: The pool's plan.
        described: The device's part of it.
        log: The device's events.
        output: Where the processes print.
        adopt: Takes charge of each process.
        run_dir: Where sockets and logs are.
        epoch: The pool's.
        factory: Makes the processes.
        introductions: Messages that introduce worlds and clients to each process.
        foresight: Tells each process what to have ready.
    """

    def __init__(
        self,
        plan: Plan,
        described: DevicePlan,
        *,
        log: DeviceLog,
        output: RotatedOutput,
        adopt: Adopt,
        run_dir: HeldRunDirectory,
        epoch: bytes,
        factory: ProcessFactory,
        introductions: Introductions,
        foresight: Foresight,
    ) -> None:
        self.foresight: Final = foresight
        self._index: Final = described.index
        self._name: Final = described.name
        self._described: Final = described
        self._log = log
        self._output = output
        self._adopt = adopt
        self._last_generation = 0
        self._run_dir = run_dir
        self._epoch = epoch
        self._factory = factory
        self._introductions = introductions
        self._environment = described.whole_environment(os.environ)
        self._cgroups = CgroupParent.find() if plan.settings.cgroups else None
        self._left: list[WorkerCgroup] = []
        """Cgroups of ended workers whose children still run."""

    @property
    def last_generation(self) -> int:
        """The generation of the process that was started last, standbys included."""
        return self._last_generation

    def start(self, plan: Plan, *, standby: bool, other_code: bool = False) -> Incarnation:
        """Start a process under the next generation, by a plan.

        Args:
            plan: The plan.
            standby: Whether it stands by.
            other_code: Whether a reload has it run other code than the processes before.

        Raises:
            SetupFailed: No process could be made.
        """
        self._last_generation = generation = self._last_generation + 1
        self._output.new_incarnation(f"--- {self._described.title} generation {generation}")
        offers = self._offers(generation)
        try:
            process, cold = self._factory.make(self._index, generation, self._environment, self._output.fileno())
        except errors.SetupFailed:
            self._introductions.withdraw((self._index, generation), offers)
            raise
        if cold:
            text = f"a fresh interpreter is started: {cold}"
            self._log.note("cold_start", text, generation=generation, pid=process.pid)
        self._run_dir.record_worker(process.pid, process.identity.start_ticks)
        cgroup = None
        if self._cgroups is not None:
            cgroup = self._cgroups.add(f"device-{self._index}-{generation}", process.pid)
        worker = self._adopt(process, cgroup, plan.settings.kill_timeout_s)
        for offer, descriptor in offers:
            worker.tell(offer, descriptor)
        worker.tell(
            control.Start(
                pool=plan.settings.pool,
                epoch=self._epoch,
                device=self._index,
                name=self._name,
                backend=plan.backend,
                generation=generation,
                endpoint=self.endpoint(generation),
                actors=plan.actors_on(self._index),
                window=plan.settings.window,
                execution=plan.devices[self._index].execution,
                standby=standby,
                gpu=self._described.gpu,
                worker=self._described.worker,
                workers_per_gpu=self._described.workers_per_gpu,
            )
        )
        for introduction, descriptor in self._introductions.clients():
            worker.tell(introduction, descriptor)
        self.foresight.brief(worker, other_code=other_code)
        worker.expect_ready(plan.settings.start_timeout_s)
        return worker

    def _offers(self, generation: int) -> list[Introduction]:
        """Return the messages that a process gets before its start.

        Raises:
            SetupFailed: No descriptor is left for it.
        """
        try:
            return self._introductions.worlds((self._index, generation))
        except OSError as error:
            raise errors.SetupFailed(f"no files can be made for its worlds: {error.strerror}") from error

    def make_ahead(self) -> None:
        """Fork the next process before it is needed."""
        self._factory.make_ahead(self._index, self._environment, self._output.fileno())

    def discard_ahead(self) -> None:
        """End the process that was forked ahead: it may have the device's driver open."""
        self._factory.discard_ahead(self._index)

    def endpoint(self, generation: int) -> str:
        """Return where the process of a generation takes calls."""
        return f"ipc://{self._run_dir.worker_socket(self._index, generation)}"

    def clear(self, worker: Incarnation) -> None:
        """Remove a process's endpoint, so that it gets no further calls, and its cgroup as soon as that is empty."""
        self._run_dir.worker_socket(self._index, worker.generation).unlink(missing_ok=True)
        if worker.cgroup is not None:
            self._left.append(worker.cgroup)
            self.tidy()

    def tidy(self, timeout_s: float = 0.0) -> None:
        """Remove the cgroups that are empty by now; to be called when something has ended.

        Args:
            timeout_s: How long to wait for each.
        """
        self._left = [cgroup for cgroup in self._left if not cgroup.remove(timeout_s)]
