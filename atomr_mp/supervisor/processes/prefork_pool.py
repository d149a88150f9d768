"""Worker processes that are forked ahead, and wait for their role."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.process.identity import wait_ended
from atomr_mp.process.spawn import WorkerProcess
from atomr_mp.process.zygote import NoForkError
from atomr_mp.protocol.messages import control
from atomr_mp.supervision.standby import MAX_FAILURES
from atomr_mp.supervisor.loop import Loop
from atomr_mp.transport import descriptors

NO_GENERATION: Final = 0
"""The generation of a process that is not an incarnation yet."""


class PreforkPool:
    """At most one such process for each device. Main thread only.

    Args:
        loop: The supervisor's loop.
        run_dir: Where processes are noted.
        prepare: Returns the orders for the preparation of a device's.
    """

    def __init__(self, loop: Loop, run_dir: HeldRunDirectory, prepare: Callable[[int], control.Prepare]) -> None:
        self._loop = loop
        self._run_dir = run_dir
        self._prepare = prepare
        self._waiting: dict[int, WorkerProcess] = {}
        self._leaving: set[WorkerProcess] = set()
        """Processes that were killed, and have not ended."""
        self._failures: dict[int, int] = {}
        """Number of processes in a row that have ended without being needed, by device."""

    @property
    def pids(self) -> set[int]:
        """All forked processes that wait or leave."""
        return {process.pid for process in (*self._waiting.values(), *self._leaving)}

    def fill(self, device: int, fork: Callable[[], WorkerProcess]) -> None:
        """Fork one for a device, unless several have ended in a row.

        Args:
            device: The device's index.
            fork: Makes a process; called again when one has ended by itself.
        """
        if device in self._waiting or self._failures.get(device, 0) >= MAX_FAILURES:
            return
        try:
            process = fork()
        except (NoForkError, errors.SetupFailed):  # the start of the worker reports it
            return
        self._waiting[device] = process
        self._run_dir.record_worker(process.pid, process.identity.start_ticks)
        with contextlib.suppress(OSError):  # it has ended, as its pidfd tells
            descriptors.send(process.control, control.FROM_SUPERVISOR.encode(self._prepare(device)), None)

        def ended(_events: int) -> None:
            self._failures[device] = self._failures.get(device, 0) + 1
            self._end(self._waiting.pop(device))
            self.fill(device, fork)

        self._loop.watch(process.pidfd, select.EPOLLIN, ended)

    def take(self, device: int) -> WorkerProcess | None:
        """Return a device's process, the caller's from now on; None if none lives."""
        process = self._waiting.pop(device, None)
        if process is None:
            return None
        if wait_ended([process.pidfd], 0):
            self._end(process)
            return None
        self._failures.pop(device, None)
        self._loop.forget(process.pidfd)
        return process

    def discard(self, device: int) -> None:
        """End a device's process, if there is one; does not wait."""
        process = self._waiting.pop(device, None)
        if process is None:
            return

        def ended(_events: int) -> None:
            self._leaving.remove(process)
            self._end(process)

        self._leaving.add(process)
        self._loop.forget(process.pidfd)
        self._loop.watch(process.pidfd, select.EPOLLIN, ended)
        process.kill()

    def renew(self) -> None:
        """End all processes: the orders for their preparation have changed."""
        self._failures.clear()
        for device in list(self._waiting):
            self.discard(device)

    def close(self) -> None:
        """End all processes, and wait for their ends."""
        processes = [*self._waiting.values(), *self._leaving]
        for process in processes:
            process.kill()
        for process in processes:
            self._end(process)
        self._waiting.clear()
        self._leaving.clear()

    def _end(self, process: WorkerProcess) -> None:
        self._loop.forget(process.pidfd)
        process.close()
        self._run_dir.forget_worker(process.pid)
