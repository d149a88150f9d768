"""The worker's compiler: whose turn it is, the disk cache, and a few processes at a time. All of it off the loop.

A thread looks jobs up in the cache, so that a hit waits for no compilation. Others have one process at a time each, and
stay: the kernel ends a process with the thread that has started it. One more ends whoever has waited too long.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp_workers.compiling.cache import CodeCache
from atomr_mp_workers.compiling.compiler_process import CompilerProcess
from atomr_mp_workers.compiling.jobs import CompiledCode, Job, LinkJob, check, size_of
from atomr_mp_workers.compiling.keys import key_of
from atomr_mp_workers.compiling.limits import CompileLimits
from atomr_mp_workers.compiling.toolkits import HOW_TO_INSTALL, Toolkit
from atomr_mp_workers.compiling.turns import CompileWork, Waiter, WorkStage, WorkTurns

PROCESSES: Final = 2
"""Most processes of a worker at a time."""


class Compilation(NamedTuple):
    """A finished job."""

    code: CompiledCode
    key: str
    """Its key in the cache, for `CodeCache.loading`."""
    cached: bool
    """Whether the cache had it."""


class Compiler:
    """Compiles and links for one worker.

    Args:
        toolkit: The toolkit, None if none is installed: each job is refused then.
        cache: The disk cache, None to do without; it stays the caller's.
        limits: What each job may take.
        confined: Whether the processes are confined, which `compiler_process.confines` says is possible.
    """

    def __init__(
        self, toolkit: Toolkit | None, cache: CodeCache | None, limits: CompileLimits, *, confined: bool
    ) -> None:
        self._toolkit: Final = toolkit
        self._cache: Final = cache
        self._limits: Final = limits
        self._confined: Final = confined
        self._changed: Final = threading.Condition(threading.Lock())
        """Guards the fields below, and tells the threads of changes."""
        self._turns: Final[WorkTurns[Job]] = WorkTurns()
        self._threads: list[threading.Thread] = []
        self._running: Final[set[CompilerProcess]] = set()
        self._closed = False

    def submit(self, job: Job, deadline_s: float, owner: Hashable = None) -> Future[Compilation]:
        """Have a job done; returns at once. Any thread.

        The future ends by the deadline, or a little later: with a `Compilation`, or with one of the errors of
        `CompilerProcess.answer`, or with `DeadlineExceeded` if the job is not done by then. It can be cancelled until
        then: a job whose callers have all cancelled is not begun, or is stopped. Callbacks run on any thread.

        Args:
            job: The job. One that is equal to another that waits or runs is done with that.
            deadline_s: When its result has to be there, on the monotonic clock.
            owner: The owner, who takes turns with others.

        Raises:
            InvalidRequest: The job is wrong.
            Unsupported: No compiler is installed, or an option is not allowed.
            Overloaded: Too many jobs wait.
            Cancelled: The compiler is closed.
        """
        job = check(job)
        toolkit = self._toolkit
        if toolkit is None:
            raise errors.Unsupported(HOW_TO_INSTALL)
        if isinstance(job, LinkJob) and toolkit.nvjitlink is None:
            raise errors.Unsupported("nvJitLink is not installed, which links; the extra nvrtc13 or nvrtc12 brings it")
        key, size = key_of(job, toolkit.digest), size_of(job)
        future: Future[Compilation] = Future()
        with self._changed:
            if self._closed:
                raise errors.Cancelled(_CLOSED)
            self._turns.check_room(owner, size)
            waiter = self._turns.add(key, job, owner, deadline_s, size, future)
            self._start_threads(toolkit)
            self._changed.notify_all()
        future.add_done_callback(partial(self._unwanted, waiter))
        return future

    def close(self) -> None:
        """End all jobs and processes, and wait for the threads. May be called twice; not for a callback."""
        with self._changed:
            self._closed = True
            for process in self._running:
                process.kill()
            waiters = list(self._turns.waiters())
            for waiter in waiters:
                self._turns.leave(waiter)
            threads = list(self._threads)
            self._changed.notify_all()
        _answer(waiters, errors.Cancelled(_CLOSED))
        for thread in threads:
            thread.join()

    def _start_threads(self, toolkit: Toolkit) -> None:
        if self._threads:
            return
        compiles = partial(self._compile, toolkit)
        works: list[Callable[[], None]] = [self._look_up, *[compiles] * PROCESSES, self._watch_deadlines]
        # Daemons: a source that never ends must not keep a worker alive that was told to leave.
        self._threads = [threading.Thread(target=work, name="compiler", daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def _next(self, stage: WorkStage) -> CompileWork[Job] | None:
        """Wait for the next work of a stage; return None once this is closed."""
        with self._changed:
            while not self._closed:
                if (work := self._turns.take(stage)) is not None:
                    return work
                self._changed.wait()
        return None

    def _look_up(self) -> None:
        while (work := self._next(WorkStage.NEW)) is not None:
            found = self._cached(work.key)
            if found is not None:
                self._end(work, found)
            else:
                with self._changed:
                    self._turns.missed(work)
                    self._changed.notify_all()
            del work, found

    def _compile(self, toolkit: Toolkit) -> None:
        while (work := self._next(WorkStage.WAITING)) is not None:
            # Another worker may have made it meanwhile.
            found = self._cached(work.key)
            if found is None:
                self._run(work, toolkit)
            else:
                self._end(work, found)
            del work, found

    def _run(self, work: CompileWork[Job], toolkit: Toolkit) -> None:
        """Do a job in a process: put its code into the cache, and then tell the callers.

        So an equal source that is sent after the answer finds it. They are told before the process has been taken down,
        which may take longer.
        """
        try:
            process = CompilerProcess(work.job, toolkit, self._limits, confined=self._confined)
        except (OSError, errors.ConfigurationError) as error:
            self._end(work, errors.Overloaded(f"nothing was compiled: no process could be started for it: {error}"))
            return
        with process:
            with self._changed:
                self._running.add(process)
                work.process, work.started_s = process, time.monotonic()
                if work.stage is WorkStage.OVER:  # nobody has waited for it since
                    process.kill()
            outcome: Compilation | BaseException
            try:
                outcome = Compilation(process.answer(), work.key, cached=False)
                if self._cache is not None:
                    self._cache.put(outcome.key, outcome.code)
            except BaseException as error:  # noqa: BLE001 - the callers are told, and the thread goes on
                outcome = error
            self._end(work, outcome)
            with self._changed:
                self._running.discard(process)
                work.process = None

    def _watch_deadlines(self) -> None:
        """Answer those whose deadline passes."""
        while True:
            with self._changed:
                if self._closed:
                    return
                due_s, now_s = self._turns.due_s(), time.monotonic()
                if due_s is None or due_s > now_s:
                    self._changed.wait(None if due_s is None else min(due_s - now_s, threading.TIMEOUT_MAX))
                    continue
                late = [waiter for waiter in self._turns.waiters() if waiter.deadline_s <= now_s]
                told = [(waiter, self._late(waiter, now_s)) for waiter in late]
            for waiter, error in told:
                _answer([waiter], error)

    def _late(self, waiter: Waiter, now_s: float) -> errors.AtomrError:
        """Take out a caller whose deadline has passed, and return its error; stop its job if no other waits for it."""
        work = waiter.work
        ran, stopped = work.stage is WorkStage.RUNNING and work.process is not None, self._leave(waiter)
        if not ran:
            return errors.DeadlineExceeded(
                "the time for compiling passed while other sources were compiled; this one was not: allow more time "
                f"({_TIME})"
            )
        how = "stopped" if stopped else "at work"
        return errors.DeadlineExceeded(
            f"the time for compiling passed: the compiler was {how} after {now_s - work.started_s:.2f} s over this "
            f"source; make it simpler, or allow more time ({_TIME})"
        )

    def _unwanted(self, waiter: Waiter, future: Future[Compilation]) -> None:
        """Take in that a caller waits no more. Any thread."""
        if future.cancelled():
            with self._changed:
                self._leave(waiter)

    def _leave(self, waiter: Waiter) -> bool:
        """Take out a caller, and stop its job if that runs and no other caller waits for it; return whether it did."""
        stops = self._turns.leave(waiter)
        if stops and waiter.work.process is not None:
            waiter.work.process.kill()
        self._changed.notify_all()  # an owner that was charged is no more
        return stops

    def _cached(self, key: str) -> Compilation | None:
        code = None if self._cache is None else self._cache.get(key)
        return None if code is None else Compilation(code, key, cached=True)

    def _end(self, work: CompileWork[Job], outcome: Compilation | BaseException) -> None:
        with self._changed:
            waiters = self._turns.end(work)
            self._changed.notify_all()  # the owner that was charged may have another one taken
        _answer(waiters, outcome)


def _answer(waiters: Iterable[Waiter], outcome: Compilation | BaseException) -> None:
    """Give callers the outcome that they have waited for; an error to each of its own, since callers add to it."""
    for waiter in waiters:
        future: Future[Compilation] = waiter.answer
        if not future.set_running_or_notify_cancel():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(copy.copy(outcome) if isinstance(outcome, errors.AtomrError) else outcome)
        else:
            future.set_result(outcome)


_TIME: Final = "`deadline_s`, less a quarter of a second for the answer, or a fifth of a short one"
_CLOSED: Final = "nothing was compiled: the worker ends"
