"""Processes that the supervisor starts beside the workers, for what its own loop must not wait for."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final

from atomr_mp.process.identity import wait_ended
from atomr_mp.process.spawn import abandon
from atomr_mp.supervisor.loop import Loop

KILL_S: Final = 1.0
"""How long killed ones may take to end: one that asks the driver may be stuck in it, for ever."""


class Helpers:
    """The helpers that run. Each is a module of ours, knows the supervisor's pid, and dies with it.

    Args:
        loop: The supervisor's loop.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
        """With their pidfds, by pid."""

    @property
    def pids(self) -> set[int]:
        """Processes that nobody else is to reap."""
        return set(self._running)

    def start(
        self, module: str, arguments: Sequence[str], descriptors: Sequence[int], ended: Callable[[int], None]
    ) -> None:
        """Start a module. Main thread only.

        Args:
            module: Its name; its first argument is the supervisor's pid, for `prctl.die_with_parent`.
            arguments: Further arguments.
            descriptors: What it inherits, under the same numbers; stay the caller's.
            ended: Called with its status, as `subprocess` has it, when it has ended.

        Raises:
            OSError: No process can be made.
        """
        popen = subprocess.Popen(
            [sys.executable, "-m", module, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C is the supervisor's to answer
        )
        try:
            pidfd = os.pidfd_open(popen.pid)
        except OSError:
            abandon(popen)
            raise
        self._running[popen.pid] = popen, pidfd

        def over(_events: int) -> None:
            self._forget(popen.pid)
            ended(popen.returncode)

        self._loop.watch(pidfd, select.EPOLLIN, over)

    def kill(self) -> None:
        """End them all; what was to be called at their end is not. One that survives SIGKILL is left."""
        for popen, _ in self._running.values():
            popen.kill()
        wait_ended([pidfd for _, pidfd in self._running.values()], KILL_S)
        for pid in list(self._running):
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        popen, pidfd = self._running.pop(pid)
        self._loop.forget(pidfd)
        os.close(pidfd)
        try:
            popen.wait(0)
        except subprocess.TimeoutExpired:
            popen.returncode = 0  # it is stuck in the kernel; nobody is to be warned
