"""Start a worker process and hold it: its control channel, its board, its end. An edge; main thread only.

The kernel tells of the end by the pidfd; whoever polls it then calls `WorkerProcess.reap`. Until that call
the pid, and the process group of the same number, cannot be used again by anything else, so killing is always
safe.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from atomr_mp import errors
from atomr_mp.process import interpreter, oom
from atomr_mp.process.identity import Identity, stat_fields, wait_ended
from atomr_mp.protocol.board import BOARD_BYTES, prepare
from atomr_mp.protocol.codec import MAX_SESSION_MESSAGE_BYTES

WORKER_MODULE: Final = "atomr_mp_workers"


@dataclass(frozen=True)
class ExitCause:
    """The end of a process: its `status` or `signal`, or neither if other code has reaped it."""

    status: int | None = None
    signal: int | None = None

    @property
    def signal_name(self) -> str:
        """The signal that ended it, as "SIGKILL"; empty if none did."""
        return "" if self.signal is None else _signal_name(self.signal)

    def describe(self) -> str:
        """Return it in words, for errors and logs."""
        if self.signal is not None:
            return f"killed by {_signal_name(self.signal)}"
        if self.status is not None:
            return f"exited with status {self.status}"
        return "ended, how is not known"


class WorkerProcess:
    """A worker that was started and not yet reaped; made by `spawn` or `adopt_forked`.

    Attributes:
        pid: Its pid, which is also the number of its process group.
        generation: The incarnation it runs.
        identity: The process, told from later ones with the same pid; `identity.start_ticks` is what
            `rundir.HeldRunDirectory.record_worker` takes.
        pidfd: Readable when it has ended; -1 after `reap`.
        control: Our end of the control channel: SOCK_SEQPACKET, non-blocking. Its end of file is a hint, no
            more.
        board: The worker's board, `BOARD_BYTES`, written by the worker. A view made from it stays readable
            after `close`, until it is released.
    """

    def __init__(
        self,
        pid: int,
        pidfd: int,
        control: socket.socket,
        board: mmap.mmap,
        generation: int,
        popen: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.pid = pid
        self.generation = generation
        self.identity = Identity.of(pid)
        self.pidfd = pidfd
        self.control = control
        self.board = memoryview(board)
        self._map = board
        self._popen = popen
        self._cause: ExitCause | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self._cause is None else self._cause.describe()
        return f"<WorkerProcess pid {self.pid} generation {self.generation}, {state}>"

    def kill(self) -> None:
        """Send SIGKILL to the worker and its process group; nothing once it is reaped. Does not wait."""
        if self._cause is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)  # the worker may have left its group
        # PermissionError: nobody is left in the group but processes that changed their user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Send SIGSTOP to the worker and its process group; nothing once it is reaped. Does not wait."""
        if self._cause is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGSTOP)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # as for `kill`
            os.killpg(self.pid, signal.SIGSTOP)

    def frozen(self) -> bool:
        """Return, once, whether all its threads have stopped, for whichever reason; one in the kernel may take long."""
        if self._cause is not None:
            return False
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PIDFD, self.pidfd, os.WSTOPPED | os.WNOHANG) is not None
        return False

    def open_threads(self) -> list[int]:
        """Return pidfds of its oldest threads, the caller's; none before Linux 6.9.

        When a process is killed, its threads end at once, but for the last, which takes its memory down.
        """
        pidfds: list[int] = []
        with contextlib.suppress(OSError):  # those before one that fails stay
            for thread in self._threads():
                with contextlib.suppress(ProcessLookupError):  # it has ended since
                    pidfds.append(os.pidfd_open(thread, _PIDFD_THREAD))
                if len(pidfds) == WATCHED_THREADS:
                    break
        return pidfds

    def dying(self) -> ExitCause | None:
        """Return how it ends, if it has begun to end; None if it lives, or if that is unknown.

        If its descriptors are closed too, or it is not `running`, no thread of it runs any more. The kernel still takes
        its memory down, which can take long, a GPU's most of all; `pidfd` is readable only after that.
        """
        try:
            fields = stat_fields(self.pid)
        except OSError:  # no descriptor is left to look by, for one
            return None
        flags, status = int(fields[_FLAGS]), int(fields[_EXIT_CODE])
        if not (flags & _PF_EXITING and status):  # 0 also stands for what we may not know
            return None
        code = os.waitstatus_to_exitcode(status)
        return ExitCause(status=code) if code >= 0 else ExitCause(signal=-code)

    def running(self) -> bool:
        """Return whether one of its threads may still run; a thread that has begun to end does not."""
        try:
            return any(self._threads())
        except OSError:
            return True  # unknown

    def _threads(self) -> Iterator[int]:
        """Yield its threads that have not begun to end, oldest first."""
        for thread in sorted(map(int, os.listdir(f"/proc/{self.pid}/task"))):  # noqa: PTH208 - as `stat_fields`
            with contextlib.suppress(ProcessLookupError):  # it has ended
                if not int(stat_fields(thread)[_FLAGS]) & _PF_EXITING:
                    yield thread

    def reap(self) -> ExitCause:
        """Kill the rest of the process group, take the exit status, close the pidfd; say how it ended.

        To be called once `pidfd` is readable. By then processes that the worker had started are children of
        the subreaper, `adopt.kill_adopted` ends those that left the group and reaps them all. A second call
        gives the same answer.

        Raises:
            RuntimeError: The process still runs; nothing was done.
        """
        if self._cause is not None:
            return self._cause
        if not wait_ended([self.pidfd], 0):
            raise RuntimeError(f"worker process {self.pid} still runs")
        self.kill()  # first: with the leader reaped the group's number could be given to others
        self._cause = _take_exit_cause(self.pid)
        self._forget_popen(self._cause)
        os.close(self.pidfd)
        self.pidfd = -1
        return self._cause

    def close(self) -> None:
        """Release everything; may be called twice.

        A process that still runs is killed and waited for, at most `CLOSE_WAIT_S`: one that survives SIGKILL
        is stuck in the kernel, and stays for the init process.
        """
        if self._cause is None:
            self.kill()
            if wait_ended([self.pidfd], CLOSE_WAIT_S):
                self.reap()
            else:
                self._cause = ExitCause()
                self._forget_popen(self._cause)
                os.close(self.pidfd)
                self.pidfd = -1
        self.control.close()
        self.board.release()
        with contextlib.suppress(BufferError):  # somebody reads on; their last view unmaps it
            self._map.close()

    def _forget_popen(self, cause: ExitCause) -> None:
        """Keep `subprocess` from waiting for the pid by itself, and from warning that its end was not waited for."""
        if self._popen is not None:
            self._popen.returncode = cause.status or -(cause.signal or 0)


def spawn(
    *,
    pool: str,
    device: int,
    generation: int,
    env: Mapping[str, str],
    output_fd: int,
    argv: Sequence[str] = (),
    core_dumps: bool = False,
) -> WorkerProcess:
    """Start a worker process in a process group of its own.

    It gets its end of the control channel (`--control-fd`), the descriptor of its board (`--board-fd`), our
    pid to compare its parent with (`--parent`) and a title that is only there for `ps` to show (`--title`);
    no other descriptor but standard input (/dev/null), output and error.

    Args:
        pool: The pool's name.
        device: The device's index in the pool.
        generation: The incarnation.
        env: Its whole environment.
        output_fd: Takes its standard output and error; stays the caller's.
        argv: The command to run instead of the workers' package; the options above are added.
        core_dumps: Leave the limit of core dumps as it is. Otherwise a crash writes none: with gigabytes
            mapped the dump would delay the death by as long as it takes to write.

    Raises:
        SetupFailed: The kernel refused (processes, descriptors, memory); nothing is left behind.
        RuntimeError: Called from another thread than the main one, whose end would be the worker's end too.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("workers are started from the main thread only: they end with the thread that started them")
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        # Inherited from whoever started us, it makes the kernel reap by itself: no exit status, no safe kill.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command = [*(argv or interpreter.module(WORKER_MODULE))]
    title = f"atomr-mp {pool} device {device} generation {generation}"

    def start(control_fd: int, board_fd: int) -> subprocess.Popen[bytes]:
        fds = ["--control-fd", str(control_fd), "--board-fd", str(board_fd)]
        return subprocess.Popen(
            [*command, *fds, "--parent", str(os.getpid()), "--title", title],
            stdin=subprocess.DEVNULL,
            stdout=output_fd,
            stderr=output_fd,
            env=dict(env),
            pass_fds=(control_fd, board_fd),
            process_group=0,  # set before exec, and the call returns after exec
        )

    try:
        return _make(start, generation, core_dumps=core_dumps)
    except OSError as error:
        raise errors.SetupFailed(f"no process could be started for device {device} ({command[0]}): {error}") from error


def adopt_forked(fork: Callable[[int, int], int], *, generation: int, core_dumps: bool = False) -> WorkerProcess:
    """Make a worker process that becomes a child by adoption, and hold it.

    Args:
        fork: Makes the process: takes its end of the control channel and the descriptor of its board, which stay
            ours, and returns its pid once it is our child. It raises what it likes; nothing is left behind then.
        generation: The incarnation.
        core_dumps: As for `spawn`.

    Raises:
        SetupFailed: The kernel refused (descriptors, memory), or the process has ended already.
    """
    try:
        return _make(fork, generation, core_dumps=core_dumps)
    except OSError as error:
        raise errors.SetupFailed(f"no process could be forked: {error}") from error


def _make(
    start: Callable[[int, int], int | subprocess.Popen[bytes]], generation: int, *, core_dumps: bool
) -> WorkerProcess:
    """Make a worker's channel and board, then its process, and hold all of them; leave nothing behind if one fails."""
    with contextlib.ExitStack() as undo:
        ours, theirs = _control_pair()
        undo.enter_context(ours)
        board_fd, board = _make_board()
        undo.callback(board.close)
        try:
            started = start(theirs.fileno(), board_fd)
        finally:
            theirs.close()
            os.close(board_fd)
        pid, popen = (started, None) if isinstance(started, int) else (started.pid, started)
        if popen is not None:
            undo.callback(abandon, popen)
        pidfd = os.pidfd_open(pid)  # only we reap it, so the number is still its own
        undo.callback(os.close, pidfd)
        if not core_dumps:
            _prevent_core_dumps(pid)
        oom.offer(pid)
        worker = WorkerProcess(pid, pidfd, ours, board, generation, popen)
        undo.pop_all()
        return worker


def _control_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(0)
    for end in (ours, theirs):
        # The kernel doubles the value and caps it at twice net.core.wmem_max, which is 208 KiB where nobody
        # raised it: the longest packet is then 416 KiB less 32 bytes. A longer one is refused with EMSGSIZE
        # (unix_dgram_sendmsg() in net/unix/af_unix.c).
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_SESSION_MESSAGE_BYTES)
    return ours, theirs


def _make_board() -> tuple[int, mmap.mmap]:
    """Return a descriptor to hand on and our mapping; sealed, so no side can make the other fault."""
    fd = os.memfd_create("atomr-mp-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, BOARD_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        board = mmap.mmap(fd, BOARD_BYTES)
    except OSError:
        os.close(fd)
        raise
    prepare(memoryview(board))
    return fd, board


def _prevent_core_dumps(pid: int) -> None:
    # 1, not 0: the limit does not hold for dumps piped to a program (systemd-coredump, apport), but 1 is the
    # value by which the kernel prevents those too (do_coredump() in fs/coredump.c), and for files it is too
    # small.
    _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
    resource.prlimit(pid, resource.RLIMIT_CORE, (1 if hard else 0, hard))


def abandon(popen: subprocess.Popen[bytes]) -> None:
    """End a process that was just started and cannot be watched."""
    popen.kill()
    popen.wait()


def _take_exit_cause(pid: int) -> ExitCause:
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return ExitCause()
    if result is None:  # a debugger that is attached takes it first; `adopt` reaps it when that lets go
        return ExitCause()
    if result.si_code == os.CLD_EXITED:
        return ExitCause(status=result.si_status)
    return ExitCause(signal=result.si_status)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_FLAGS: Final = 9 - 3
_EXIT_CODE: Final = 52 - 3
"""Indices into the result of `stat_fields`, by the numbers of proc_pid_stat(5)."""

_PF_EXITING: Final = 0x4
"""include/linux/sched.h; set when the process begins to end, before its descriptors are closed."""

_PIDFD_THREAD: Final = os.O_EXCL
"""include/uapi/linux/pidfd.h."""

WATCHED_THREADS: Final = 3
"""Threads of a worker whose ends are watched: any may be its last, but they cannot all be."""

CLOSE_WAIT_S: Final = 2.0
"""Longest that `WorkerProcess.close` waits for a process it had to kill."""
