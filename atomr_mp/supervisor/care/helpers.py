"""Processes beside the workers, for work that the supervisor's loop must not wait for."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from atomr_mp.process import interpreter, oom
from atomr_mp.process.identity import wait_ended
from atomr_mp.process.spawn import abandon
from atomr_mp.supervisor.loop import Loop

KILL_S: Final = 1.0
"""How long a killed helper may take to end: one that asks the driver may be stuck in it for ever."""


class Helpers:
    """The running helpers. Each is a module of this package, knows the supervisor's pid, and dies with it.

    Args:
        loop: The supervisor's loop.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
        """With their pidfds, by pid."""
        self._names: dict[int, str] = {}

    @property
    def pids(self) -> set[int]:
        """Processes that have to be reaped here."""
        return set(self._running)

    @property
    def names(self) -> dict[int, str]:
        """What each of them is, by pid: "relay", "metrics server"."""
        return {pid: self._names[pid] for pid in self._running}

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        descriptors: Sequence[int],
        ended: Callable[[int], None],
        environment: Mapping[str, str] | None = None,
    ) -> Callable[[], None]:
        """Start a module. Main thread only.

        Args:
            module: Its name; its first argument is the supervisor's pid, for `prctl.die_with_parent`.
            arguments: Further arguments.
            descriptors: Descriptors that it inherits, under the same numbers; stay the caller's.
            ended: Called with its status, as `subprocess` has it, when it has ended.
            environment: Added to this process's own.

        Returns:
            A function that kills it; `ended` is called all the same.

        Raises:
            OSError: No process can be made.
        """
        popen = subprocess.Popen(
            interpreter.module(module, str(os.getpid()), *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            pass_fds=descriptors,
            start_new_session=True,  # the supervisor handles Ctrl-C
        )
        try:
            pidfd = os.pidfd_open(popen.pid)
        except OSError:
            abandon(popen)
            raise
        oom.offer(popen.pid)
        self._running[popen.pid] = popen, pidfd
        self._names[popen.pid] = module.rpartition(".")[2].replace("_", " ")

        def over(_events: int) -> None:
            self._forget(popen.pid)
            ended(popen.returncode)

        self._loop.watch(pidfd, select.EPOLLIN, over)
        return popen.kill

    def ask(
        self,
        module: str,
        question: bytes,
        timeout_s: float,
        answered: Callable[[int | None, bytes], None],
        environment: Mapping[str, str] | None = None,
    ) -> Callable[[], None]:
        """Start a module that reads a question and writes an answer.

        Args:
            module: Its name; its arguments are the supervisor's pid and the descriptors of the question and the answer.
            question: The bytes that it reads.
            timeout_s: How long it may take; then it is killed.
            answered: Called with its status and its answer when it has ended; the status is None if it was killed here.
            environment: Added to this process's own.

        Returns:
            A function that kills it early.

        Raises:
            OSError: No process can be made.
        """
        killed = False
        given, answer = os.memfd_create("atomr-mp-question"), os.memfd_create("atomr-mp-answer")

        def ended(status: int) -> None:
            timer.cancel()
            os.lseek(answer, 0, os.SEEK_SET)
            with os.fdopen(answer, "rb") as file:
                content = file.read()
            answered(None if killed else status, content)

        def end() -> None:
            nonlocal killed
            killed = True
            kill()

        try:
            with open(given, "wb", closefd=False) as file:
                file.write(question)
            os.lseek(given, 0, os.SEEK_SET)
            kill = self.start(module, [str(given), str(answer)], [given, answer], ended, environment)
        except OSError:
            os.close(answer)
            raise
        finally:
            os.close(given)
        timer = self._loop.call_later(timeout_s, end)
        return end

    def kill(self) -> None:
        """End them all, without the calls that follow an end. One that survives SIGKILL is left."""
        for popen, _ in self._running.values():
            popen.kill()
        wait_ended([pidfd for _, pidfd in self._running.values()], KILL_S)
        for pid in list(self._running):
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        popen, pidfd = self._running.pop(pid)
        del self._names[pid]
        self._loop.forget(pidfd)
        os.close(pidfd)
        try:
            popen.wait(0)
        except subprocess.TimeoutExpired:
            popen.returncode = 0  # it is stuck in the kernel, and a warning would help nobody
