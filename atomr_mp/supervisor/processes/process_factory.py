"""Makes workers' processes: forked from a zygote, maybe ahead, or else started in an interpreter of their own."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import Final

from atomr_mp import errors
from atomr_mp.process.files.events import EventLog
from atomr_mp.process.files.logs import RotatedOutput
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.process.spawn import WorkerProcess, spawn
from atomr_mp.process.zygote import NoForkError, Zygote
from atomr_mp.process.zygote_process import ZygoteProcess
from atomr_mp.protocol.messages import control
from atomr_mp.supervision.standby import StandbyState, delay_s, failures_after
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.plan import Plan, thread_limits
from atomr_mp.supervisor.processes.prefork_pool import NO_GENERATION, PreforkPool

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

WARM_S: Final = 20.0
"""How long the devices' first start waits for the zygote."""


class ProcessFactory:
    """Makes workers' processes, and keeps the zygote alive.

    Args:
        plan: The pool's plan.
        loop: The supervisor's loop.
        run_dir: Where its log is.
        log: The event log.
        early: The first zygote's process, if it was started already.
    """

    def __init__(
        self, plan: Plan, loop: Loop, run_dir: HeldRunDirectory, log: EventLog, early: ZygoteProcess | None = None
    ) -> None:
        self.note = ""
        """Why workers are started cold, for a person."""
        self.ended = 0
        """Number of zygotes that have ended."""
        self.output: Final = RotatedOutput(run_dir.log("zygote"))
        self._plan = plan
        self._loop = loop
        self._run_dir = run_dir
        self._events = log
        self._reserve = PreforkPool(loop, run_dir, self._prepare)
        self._zygote: Zygote | None = None
        self._early = early
        self._failures = 0
        self._warm_s: float | None = None
        """Time since which it forks."""
        self._preloaded: list[str] = []
        """Further modules that the zygote was ordered to import."""
        self._begin: Callable[[], None] | None = None
        self._patience: Timer | None = None
        """Calls `_begin` in the end, even without a zygote."""
        self._timer: Timer | None = None
        self._closed = False

    @property
    def state(self) -> StandbyState:
        """State of the zygote."""
        if self._warm_s is not None:
            return StandbyState.FAILED if self.note else StandbyState.READY
        return StandbyState.STARTING if self._zygote is not None or self._timer is not None else StandbyState.FAILED

    @property
    def pid(self) -> int:
        """The zygote's process, 0 if there is none."""
        return self._zygote.pid if self._zygote is not None else 0

    @property
    def pids(self) -> set[int]:
        """All processes that do not belong to a device yet."""
        return {self.pid} | self._reserve.pids

    def open(self, begin: Callable[[], None]) -> None:
        """Start the zygote; call `begin` once workers can be made as they should."""
        self._await(begin)
        self._start()

    def take_plan(self, plan: Plan) -> None:
        """Make further processes by another plan. Processes made ahead end, since their imports may be outdated."""
        self._plan = plan
        self._reserve.renew()

    def renew(self, then: Callable[[], None] = lambda: None, *, if_outdated: bool = False) -> None:
        """Start the zygote anew, since what it has imported may have changed.

        Args:
            then: Called once workers can be made as they should, maybe at once.
            if_outdated: Do so only if the plan names other modules than it has imported.
        """
        if if_outdated and self._preloaded == self._preload:
            then()
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._zygote is not None:
            self._close_zygote(self._zygote)
        self._failures = 0
        self._await(then)
        self._start()

    def make(
        self, device: int, generation: int, environment: Mapping[str, str], output_fd: int
    ) -> tuple[WorkerProcess, str]:
        """Return a new worker's process, and why it was started cold, if it was.

        Raises:
            SetupFailed: None could be made.
        """
        try:
            made = self._reserve.take(device) or self._fork(environment, output_fd)
            made.generation = generation
            self.note = ""
            return made, ""
        except NoForkError as error:
            reason = self.note = str(error)
        process = spawn(
            pool=self._plan.settings.pool,
            device=device,
            generation=generation,
            env=environment,
            output_fd=output_fd,
            core_dumps=self._plan.settings.core_dumps,
        )
        return process, reason

    def make_ahead(self, device: int, environment: Mapping[str, str], output_fd: int) -> None:
        """Fork the process that `make` returns next."""
        if not self._closed:
            self._reserve.fill(device, lambda: self._fork(environment, output_fd))

    def discard_ahead(self, device: int) -> None:
        """End the process that was made ahead for a device, which does not start soon."""
        self._reserve.discard(device)

    def _prepare(self, device: int) -> control.Prepare:
        """Return the orders for a process that is made ahead for a device: it imports that device's actors alone."""
        return control.Prepare(self._plan.backend, self._plan.actors_on(device))

    def _fork(self, environment: Mapping[str, str], output_fd: int) -> WorkerProcess:
        if self._zygote is None:
            raise NoForkError(self.note or "there is no zygote just now")
        core_dumps = self._plan.settings.core_dumps
        return self._zygote.fork(environment, output_fd, generation=NO_GENERATION, core_dumps=core_dumps)

    def retry(self) -> None:
        """Start a zygote again, if attempts were given up."""
        if self._zygote is None and self._timer is None:
            self._failures = 0
            self._start()

    def close(self) -> None:
        """End the zygote and the processes forked ahead; no further worker is made. May be called twice."""
        self._begin = None
        self._closed = True
        self._reserve.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._zygote is not None:
            self._close_zygote(self._zygote)
        self.output.close()

    @property
    def _preload(self) -> list[str]:
        """Modules that the zygote has to import besides the runtime."""
        settings = self._plan.settings
        return settings.preload if settings.standby == "warm" else []

    def _start(self) -> None:
        self._timer = None
        self.output.new_incarnation("--- zygote")
        self._preloaded = self._preload
        early, self._early = self._early, None
        try:
            # What it imports may read the limits only once.
            limits = thread_limits(self._plan.devices[0].threads, os.environ)
            zygote = Zygote(
                early,
                self._plan.settings.pool,
                str(self._run_dir.path),
                self._plan.backend,
                self._preloaded,
                self.output.fileno(),
                limits,
            )
        except errors.SetupFailed as error:
            self._failed(error.message)
            return
        self._zygote = zygote
        self._run_dir.record_worker(zygote.pid, zygote.identity.start_ticks)
        self._loop.watch(zygote.pidfd, select.EPOLLIN, lambda _: self._on_exit(zygote))
        self._loop.watch(zygote.channel.fileno(), select.EPOLLIN, lambda _: self._on_word(zygote))

    def _on_word(self, zygote: Zygote) -> None:
        """The zygote has done its imports, or has hung up, as the pidfd will tell."""
        self._loop.forget(zygote.channel.fileno())  # from now on it speaks only when asked
        zygote.listen()
        if zygote.missing is not None:
            self._warm_s = time.monotonic()
            self.note = ""
            missing = f"; it could not import {'; '.join(zygote.missing)}" if zygote.missing else ""
            self._tell("zygote_ready", f"workers are forked from a process that has imported what they need{missing}")
            self._begin_now()

    def _on_exit(self, zygote: Zygote) -> None:
        warm_for_s = None if self._warm_s is None else time.monotonic() - self._warm_s
        self._failed(f"the zygote {self._close_zygote(zygote)}", warm_for_s)

    def _close_zygote(self, zygote: Zygote) -> str:
        self._zygote = self._warm_s = None
        self._loop.forget(zygote.pidfd)
        self._loop.forget(zygote.channel.fileno())
        how = zygote.close()
        self._run_dir.forget_worker(zygote.pid)
        return how

    def _failed(self, why: str, warm_for_s: float | None = None) -> None:
        self.ended += 1
        self._failures = failures_after(self._failures, warm_for_s)
        delay = delay_s(self._plan.settings, self._failures)
        self.note = why
        if delay is None:
            self.note += f"; {self._failures} have ended in a row, and none is started any more"
        else:
            self._timer = self._loop.call_later(delay, self._start)
        self._tell("zygote_end", f"{self.note}; workers are started cold meanwhile")
        if delay is None:
            self._begin_now()

    def _await(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self._loop.call_later(WARM_S, self._begin_now)

    def _begin_now(self) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()

    def _tell(self, event: str, text: str) -> None:
        _LOG.info("%s", text)
        self._events.append({"time": time.time(), "event": event, "text": text, "pid": self.pid or None})
