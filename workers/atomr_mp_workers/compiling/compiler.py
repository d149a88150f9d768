"""The worker's compiler: a bounded queue, the disk cache, and a few processes at a time. All of it off the loop.

A thread looks jobs up in the cache, so that a hit waits for no compilation. The others have one process at a time each,
and stay: the kernel ends a process with the thread that has started it.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp_workers.compiling.cache import CodeCache
from atomr_mp_workers.compiling.compiler_process import CompilerProcess
from atomr_mp_workers.compiling.jobs import CompiledCode, Job, LinkJob, check, size_of
from atomr_mp_workers.compiling.keys import key_of
from atomr_mp_workers.compiling.limits import CompileLimits
from atomr_mp_workers.compiling.toolkits import HOW_TO_INSTALL, Toolkit

PROCESSES: Final = 2
"""Most processes of a worker at a time."""

MAX_JOBS: Final = 64
"""Most jobs that wait or run."""

MAX_JOBS_BYTES: Final = 256 * 2**20
"""Most bytes of their sources and inputs."""


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
        self._lock: Final = threading.Lock()
        """Guards the fields below."""
        self._jobs = 0
        self._bytes = 0
        self._threads: list[threading.Thread] = []
        self._running: Final[set[CompilerProcess]] = set()
        self._closed = False
        self._lookups: Final[SimpleQueue[_Waiting | None]] = SimpleQueue()
        self._misses: Final[SimpleQueue[_Waiting | None]] = SimpleQueue()

    def submit(self, job: Job, deadline_s: float) -> Future[Compilation]:
        """Have a job done; returns at once. Any thread.

        The future ends by the deadline, or a little later: with a `Compilation`, or with one of the errors of
        `CompilerProcess.answer`, or with `DeadlineExceeded` if the job has not begun by then. A job that has not begun
        can be cancelled. Callbacks run on a thread of the compiler.

        Args:
            job: The job.
            deadline_s: When its result has to be there, on the monotonic clock.

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
        waiting = _Waiting(job, key_of(job, toolkit.digest), toolkit, deadline_s, size_of(job), Future())
        with self._lock:
            if self._closed:
                raise errors.Cancelled("nothing was compiled: the worker ends")
            if self._jobs >= MAX_JOBS or self._bytes + waiting.size > MAX_JOBS_BYTES:
                raise errors.Overloaded(
                    f"nothing was compiled: {self._jobs} sources with {self._bytes >> 20} MiB wait for this worker's "
                    f"compiler, which takes {MAX_JOBS} with {MAX_JOBS_BYTES >> 20} MiB; come again when some are done"
                )
            self._jobs += 1
            self._bytes += waiting.size
            self._start_threads()
            self._lookups.put(waiting)
        return waiting.future

    def close(self) -> None:
        """End all jobs and processes, and wait for the threads. May be called twice; not for a callback."""
        with self._lock:
            first, self._closed = not self._closed, True
            for process in self._running:
                process.kill()
            if first:
                self._lookups.put(None)
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _start_threads(self) -> None:
        if self._threads:
            return
        works = [self._look_up, *[self._compile] * PROCESSES]
        # Daemons: a source that never ends must not keep a worker alive that was told to leave.
        self._threads = [threading.Thread(target=work, name="compiler", daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def _look_up(self) -> None:
        while (waiting := self._lookups.get()) is not None:
            if self._drop(waiting):
                continue
            found = self._cached(waiting)
            if found is None:
                self._misses.put(waiting)
            elif waiting.future.set_running_or_notify_cancel():
                self._end(waiting, found)
            else:
                self._leave(waiting)
        for _ in range(PROCESSES):
            self._misses.put(None)

    def _compile(self) -> None:
        while (waiting := self._misses.get()) is not None:
            if self._drop(waiting):
                continue
            if not waiting.future.set_running_or_notify_cancel():
                self._leave(waiting)
                continue
            # Another job may have made it meanwhile, here or in another worker.
            found = self._cached(waiting)
            if found is None:
                self._run(waiting)
            else:
                self._end(waiting, found)
            del waiting, found

    def _run(self, waiting: _Waiting) -> None:
        """Do a job in a process; the result is there before the process has been taken down, which may take longer."""
        try:
            process = CompilerProcess(waiting.job, waiting.toolkit, self._limits, confined=self._confined)
        except (OSError, errors.ConfigurationError) as error:
            self._end(waiting, errors.Overloaded(f"nothing was compiled: no process could be started for it: {error}"))
            return
        with process:
            with self._lock:
                self._running.add(process)
                if self._closed:
                    process.kill()
            outcome: Compilation | BaseException
            try:
                outcome = Compilation(process.answer(waiting.deadline_s), waiting.key, cached=False)
            except BaseException as error:  # noqa: BLE001 - the caller is told, and the thread goes on
                outcome = error
            self._end(waiting, outcome)
            with self._lock:
                self._running.discard(process)
        if self._cache is not None and isinstance(outcome, Compilation):
            self._cache.put(outcome.key, outcome.code)

    def _cached(self, waiting: _Waiting) -> Compilation | None:
        code = None if self._cache is None else self._cache.get(waiting.key)
        return None if code is None else Compilation(code, waiting.key, cached=True)

    def _drop(self, waiting: _Waiting) -> bool:
        """End a job whose deadline has passed, or any if the compiler is closed; return whether it did."""
        error: errors.AtomrError
        if self._closed:
            error = errors.Cancelled("nothing was compiled: the worker ends")
        elif time.monotonic() >= waiting.deadline_s:
            error = errors.DeadlineExceeded("the deadline passed while other sources were compiled; this one was not")
        else:
            return False
        if waiting.future.set_running_or_notify_cancel():
            self._end(waiting, error)
        else:
            self._leave(waiting)
        return True

    def _end(self, waiting: _Waiting, outcome: Compilation | BaseException) -> None:
        self._leave(waiting)
        if isinstance(outcome, BaseException):
            waiting.future.set_exception(outcome)
        else:
            waiting.future.set_result(outcome)

    def _leave(self, waiting: _Waiting) -> None:
        with self._lock:
            self._jobs -= 1
            self._bytes -= waiting.size


class _Waiting(NamedTuple):
    """A job, and who waits for it."""

    job: Job
    key: str
    toolkit: Toolkit
    deadline_s: float
    size: int
    future: Future[Compilation]
