"""One process of the compiler as the worker sees it: its start, its answer, its end. An edge; Linux only.

It is started by exec, never by a fork alone: a worker has threads and a CUDA context. It gets three pipes and no other
descriptor. Whatever it does, `answer` returns or raises within the longest time of a job.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from typing import IO, Final, Self

from atomr_mp import errors
from atomr_mp.process import interpreter
from atomr_mp_workers.compiling import exchange, log_lines
from atomr_mp_workers.compiling.confinement import confinement
from atomr_mp_workers.compiling.exchange import Answer, CodeAnswer, RefusedAnswer, Setup, UnfitAnswer
from atomr_mp_workers.compiling.jobs import MAX_LOG_CHARS, CompiledCode, CompileJob, Job, LinkJob, kind_of
from atomr_mp_workers.compiling.limits import CompileLimits
from atomr_mp_workers.compiling.toolkits import Toolkit

MODULE: Final = "atomr_mp_workers.compiling.process"

KEPT: Final = (
    *("HOME", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONNOUSERSITE"),
    *("PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE"),
)
"""Variables of the environment that the process gets: what it takes to start Python. Others may hold secrets."""

MAX_SHOWN_BYTES: Final = 4096
"""How much is kept of what the process prints, for a job that it cannot do at all."""

PIECE_BYTES: Final = 2**16

EXIT_WAIT_S: Final = 0.2
"""How long a process that has closed its end of the pipe may take to end before it is killed."""


class CompilerProcess:
    """A process of the compiler that was started for one job.

    Args:
        job: The job, as `jobs.check` returns it.
        toolkit: The toolkit.
        limits: What it may take.
        confined: Whether it gives up the reach for files and processes before it reads the job.

    Raises:
        OSError: The system refused to start it.
        ConfigurationError: Python does not know its own path.
    """

    def __init__(self, job: Job, toolkit: Toolkit, limits: CompileLimits, *, confined: bool) -> None:
        self._job: Final = job
        self._toolkit: Final = toolkit
        self._limits: Final = limits
        self._popen: Final = subprocess.Popen(
            interpreter.module(MODULE, str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env={name: os.environ[name] for name in KEPT if name in os.environ},
        )
        self._began_s: Final = time.monotonic()
        try:
            self._pidfd = os.pidfd_open(self._popen.pid)
        except OSError:
            self._popen.kill()
            self._close()
            self._popen.wait()
            raise
        self._answer: Final = bytearray()
        self._printed: Final = bytearray()
        self._killed = False
        setup = Setup(
            str(toolkit.nvrtc),
            str(toolkit.builtins),
            str(toolkit.nvjitlink or ""),
            tuple(map(str, toolkit.includes)),
            isinstance(job, LinkJob),
            limits.memory_bytes,
            limits.cpu_s,
            limits.idle,
            confined,
        )
        words = exchange.SETUP.encode(setup), exchange.JOB.encode(job)
        self._unsent = memoryview(b"".join(map(exchange.framed, words)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._popen.pid

    def kill(self) -> None:
        """End the process, and with it the job; `answer` raises. Any thread, before `end` only; may be called twice."""
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def answer(self) -> CompiledCode:
        """Return the result; it is the job's, or an error. It is there by the end of the longest time of a job.

        Raises:
            CompilationFailed: The job failed, the process crashed, or it took too long.
            Unsupported: The toolkit cannot be used here.
            Cancelled: The process was killed by `kill`.
        """
        until_s = self._began_s + self._limits.wall_s
        if not self._exchange(until_s):
            raise self._late()
        answer = self._decoded()
        if answer is None:
            raise self._ended(until_s)
        folders = list(map(str, self._toolkit.includes))
        if isinstance(answer, UnfitAnswer):
            raise errors.Unsupported(f"the compiler cannot be used here: {_printable(answer.why)}")
        log = log_lines.messages(answer.log, MAX_LOG_CHARS, folders)
        if isinstance(answer, RefusedAnswer):
            raise errors.CompilationFailed(self._refusal(answer.status, log), log=log)
        return CompiledCode(kind_of(self._job), answer.code, answer.lowered, log)

    def end(self) -> None:
        """End the process if it has not ended, and take its status. May be called twice."""
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._close()
        self._popen.wait()
        os.close(self._pidfd)
        self._pidfd = -1

    def _close(self) -> None:
        for pipe in self._pipes():
            pipe.close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        stdin, stdout, stderr = self._popen.stdin, self._popen.stdout, self._popen.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        return stdin, stdout, stderr

    def _exchange(self, until_s: float) -> bool:
        """Send the job and take the answer; return False if the time was not enough.

        The job's pipe stays open: its end would tell the process that the worker has ended.
        """
        stdin, stdout, stderr = (pipe.fileno() for pipe in self._pipes())
        poll = select.poll()
        for descriptor, events in ((stdin, select.POLLOUT), (stdout, select.POLLIN), (stderr, select.POLLIN)):
            os.set_blocking(descriptor, False)
            poll.register(descriptor, events)
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            for descriptor, _ in poll.poll(left_s * 1000 + 1):
                if descriptor == stdin:
                    if not self._send(stdin):
                        poll.unregister(stdin)
                elif descriptor == stderr:
                    part = _read(stderr)
                    self._printed.extend((part or b"")[: MAX_SHOWN_BYTES - len(self._printed)])
                    if part == b"":
                        poll.unregister(stderr)
                elif self._take(_read(stdout)):
                    return True

    def _send(self, descriptor: int) -> bool:
        """Write some of the job; return whether some is left."""
        try:
            self._unsent = self._unsent[os.write(descriptor, self._unsent[:PIECE_BYTES]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:  # its end tells why
            return False
        return bool(self._unsent)

    def _take(self, part: bytes | None) -> bool:
        """Take a part of the answer, b"" for its end; return whether the answer is there, or can be no more."""
        if part is None:
            return False
        self._answer.extend(part)
        return not part or len(self._answer) >= min(self._announced(), exchange.MAX_ANSWER_BYTES)

    def _announced(self) -> int:
        """Return the length that the answer says to have, with its head."""
        head = self._answer[: exchange.LENGTH_BYTES]
        if len(head) < exchange.LENGTH_BYTES:
            return exchange.MAX_ANSWER_BYTES
        return exchange.LENGTH_BYTES + int.from_bytes(head, "little")

    def _decoded(self) -> Answer | None:
        """Return the answer, None if there is none.

        Raises:
            CompilationFailed: The compiler never gives such an answer.
        """
        if not self._answer or self._killed:
            return None
        if len(self._answer) != self._announced():
            if len(self._answer) < min(self._announced(), exchange.MAX_ANSWER_BYTES):
                return None  # it ended in the middle
            raise self._nonsense("it is too long")
        try:
            answer = exchange.ANSWER.decode(memoryview(self._answer)[exchange.LENGTH_BYTES :])
        except errors.ProtocolError as error:
            raise self._nonsense(error.message) from error
        names = self._job.names if isinstance(self._job, CompileJob) else ()
        if isinstance(answer, CodeAnswer) and answer.lowered.keys() != set(names):
            raise self._nonsense("it has other names")
        return answer

    def _refusal(self, status: str, log: str) -> str:
        what, lines = "the source was not compiled", log.split("\n")
        if isinstance(self._job, LinkJob):
            what = f"the codes were not linked for {self._job.architecture} (`arch` names another architecture)"
        first = next(filter(log_lines.is_error, lines), "")
        if first.startswith(_NAME_MAP):
            named = next((found[1] for line in lines if (found := _NAMED.search(line))), "")
            what = f"{what}: `names` has {named or 'a name'!r:.200}, which is no kernel's or global's name there"
        more = "; `log` has the messages" if log else ""
        return f"{what}: {(first or _printable(status))[:500]}{more}"

    def _nonsense(self, why: str) -> errors.CompilationFailed:
        return errors.CompilationFailed(
            f"the compiler's process gave an answer that no compiler gives ({_printable(why)[:200]}): the source may "
            "have taken it over. Nothing of it was used; make the source simpler"
        )

    def _late(self) -> errors.AtomrError:
        return errors.CompilationFailed(
            f"the compiler was stopped after {time.monotonic() - self._began_s:.1f} s over this source: "
            f"{self._limits.wall_s:g} s are the most; make it simpler, or compile when less is going on",
            signal="SIGKILL",
        )

    def _ended(self, until_s: float) -> errors.AtomrError:
        """Return the error of a process that has ended without an answer."""
        if self._killed:
            return errors.Cancelled("the compiler was stopped: nobody waits for this source any more")
        left_s = max(0.0, min(until_s - time.monotonic(), EXIT_WAIT_S))
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        if not ended.poll(left_s * 1000):
            return self._nonsense("it closed its pipe and went on")
        status = self._popen.wait()
        if status == -signal.SIGXCPU:
            return errors.CompilationFailed(
                f"the compiler was stopped over this source: {self._limits.cpu_s} s of processor time are the most; "
                "make it simpler, such as with fewer templates, macros or unrolled loops",
                signal="SIGXCPU",
            )
        if status == -signal.SIGKILL:
            return errors.CompilationFailed(
                "the compiler's process was killed, as by the system when memory runs out, or by hand: that says "
                "nothing of the source; compile it again",
                signal="SIGKILL",
            )
        if status < 0:
            return errors.CompilationFailed(
                f"the compiler crashed over this source ({_signal_name(-status)}): it nests too deep, or needs more "
                f"than {self._limits.memory_bytes >> 20} MiB of memory; make it simpler",
                signal=_signal_name(-status),
            )
        return errors.CompilationFailed(
            f"the compiler's process ended with status {status} and without an answer: "
            f"{_printable(self._printed.decode(errors='replace')) or 'it printed nothing'}"
        )


_NAME_MAP: Final = "__nv_name_map("
"""Begins NVRTC's messages about a name expression."""

_NAMED: Final = re.compile(r'Input name expression was: " ?([^"]{1,4096})"')


def confines() -> bool:
    """Return whether the compiler's process can be confined here; without it only local clients may compile."""
    return confinement().complete


def _read(descriptor: int) -> bytes | None:
    """Read a part, b"" at the end; None if there is nothing yet."""
    try:
        return os.read(descriptor, PIECE_BYTES)
    except BlockingIOError:
        return None


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text).strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
