"""The supervisor's end of the zygote: the process that workers are forked from. An edge; main thread only."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.process import oom
from atomr_mp.process.identity import Identity, wait_ended
from atomr_mp.process.spawn import WorkerProcess, abandon, adopt_forked
from atomr_mp.process.zygote_process import ZygoteProcess
from atomr_mp.protocol.messages import zygote
from atomr_mp.protocol.own_time import Patience

FORK_S: Final = 1.0
"""How long a fork may take, milliseconds as a rule; the supervisor does nothing else meanwhile."""


class NoForkError(Exception):
    """The worker was not forked: start a fresh interpreter. The text says why."""


class Zygote:
    """A zygote, from its first order to its end.

    Args:
        process: Its process, the zygote's from now on; a new one by default.
        pool: The pool's name.
        run_dir: Its run directory.
        backend: Decides what it imports.
        preload: Modules that it imports besides.
        output_fd: Takes its standard output and error; stays the caller's.
        limits: Variables that are added to its environment.

    Raises:
        SetupFailed: The kernel refused, or the process has ended; nothing is left behind.
    """

    def __init__(
        self,
        process: ZygoteProcess | None,
        pool: str,
        run_dir: str,
        backend: str,
        preload: Sequence[str],
        output_fd: int,
        limits: Mapping[str, str],
    ) -> None:
        self.missing: list[str] | None = None
        """Modules that it could not import; None until it has imported the rest, and forks."""
        self._last_id = 0
        try:
            process = process or ZygoteProcess(run_dir)
            with contextlib.ExitStack() as undo:
                self.channel: Final = undo.enter_context(process.channel)
                """Readable when `listen` has something to do."""
                self._popen = process.popen
                undo.callback(abandon, self._popen)
                self.pid: Final = self._popen.pid
                oom.offer(self.pid)
                self.identity: Final = Identity.of(self.pid)
                self.pidfd: Final = os.pidfd_open(self.pid)
                """Readable when it has ended."""
                undo.callback(os.close, self.pidfd)
                self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, zygote.MAX_PACKET_BYTES)
                self._order(zygote.Preload(pool, run_dir, backend, [*preload], [*limits.items()]), [output_fd])
                undo.pop_all()
        except OSError as error:
            raise errors.SetupFailed(f"no zygote could be started: {error}") from error

    def listen(self) -> None:
        """Read its messages."""
        with contextlib.suppress(OSError, errors.ProtocolError):
            message = self._receive()
            if isinstance(message, zygote.Warmed):
                self.missing = message.missing

    def fork(
        self, environment: Mapping[str, str], output_fd: int, *, generation: int, core_dumps: bool
    ) -> WorkerProcess:
        """Fork a worker, see `spawn.spawn`; waits for it.

        Raises:
            NoForkError: It was not.
            SetupFailed: The kernel refused.
        """

        def ask(control_fd: int, board_fd: int) -> int:
            self._last_id += 1
            encoded = [(os.fsencode(name), os.fsencode(value)) for name, value in environment.items()]
            order = zygote.Fork(self._last_id, encoded, os.getpid())
            try:
                self._order(order, [control_fd, board_fd, output_fd])
                return self._answer(self._last_id)
            except (OSError, errors.ProtocolError) as error:
                raise NoForkError(f"the zygote does not answer: {error}") from error

        if self.missing is None:
            raise NoForkError("the zygote still imports")
        return adopt_forked(ask, generation=generation, core_dumps=core_dumps)

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(9)

    def close(self) -> str:
        """End it and close its descriptors; return how it ended, in words."""
        self.kill()
        wait_ended([self.pidfd], FORK_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(0)
        os.close(self.pidfd)
        self.channel.close()
        status = self._popen.returncode
        if status is None:
            self._popen.returncode = 0  # it is stuck in the kernel; nobody is to be warned
            return "survives SIGKILL"
        return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"

    def _order(self, order: zygote.ToZygote, descriptors: list[int]) -> None:
        socket.send_fds(self.channel, [zygote.TO_ZYGOTE.encode(order)], descriptors)

    def _answer(self, fork_id: int) -> int:
        patience = Patience(FORK_S, time.monotonic)
        poll = select.poll()  # select(2) knows no descriptor above 1023
        poll.register(self.channel, select.POLLIN)
        while (ready := poll.poll(patience.wait_s * 1000)) or patience.left_s:
            if not ready:
                continue
            match self._receive():
                case zygote.Forked(number, pid) if number == fork_id:
                    return pid
                case zygote.ForkRefused(number, reason) if number == fork_id:
                    raise NoForkError(f"the zygote refuses: {reason}")
        self.kill()  # a process that it may still fork has no supervisor, and ends by itself
        raise NoForkError(f"the zygote did not answer within {FORK_S:g} s")

    def _receive(self) -> zygote.FromZygote:
        packet = self.channel.recv(zygote.MAX_PACKET_BYTES)
        if not packet:
            raise ConnectionError("it has ended")
        return zygote.FROM_ZYGOTE.decode(packet)
