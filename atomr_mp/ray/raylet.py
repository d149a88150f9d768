"""Ends this process when the raylet that started it is gone or stopped. An edge.

Ray's own check takes seconds, and does not see a dead raylet that nobody reaps. Ray starts the actor on another node
meanwhile, and the pool would have two owners.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.process.identity import stat_fields

PID: Final = "RAY_RAYLET_PID"
"""Variable with the pid of a process's raylet; nothing else in this room is outside Ray's public interface."""

STOPPED_S: Final = 10.0
"""How long the raylet may be stopped (SIGSTOP): Ray declares a node dead after some 15 s, and goes on elsewhere."""

LOOK_S: Final = 1.0
"""Time between looks at whether the raylet is stopped: no event tells that."""

STOPPED: Final = frozenset("Tt")
"""States of /proc/PID/stat."""


def watch_raylet(end: Callable[[], object]) -> None:
    """Watch the raylet on a thread, and call `end` there once, when it is gone or stopped.

    Raises:
        ConfigurationError: This process has no raylet.
    """
    try:
        pid = int(os.environ[PID])
        pidfd = os.pidfd_open(pid)
    except (KeyError, ValueError, ProcessLookupError) as error:
        raise errors.ConfigurationError(f"there is no raylet to watch ({PID}={os.environ.get(PID)!r})") from error

    def watch() -> None:
        wait_gone(pidfd, pid)
        end()

    threading.Thread(target=watch, name="atomr-mp raylet", daemon=True).start()


def wait_gone(pidfd: int, pid: int, stopped_s: float = STOPPED_S, look_s: float = LOOK_S) -> None:
    """Return when a process has ended, reaped or not, or has been stopped for `stopped_s`."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    stopped_at = None
    while not poll.poll(look_s * 1000):
        state = ""
        with contextlib.suppress(ProcessLookupError):
            state = stat_fields(pid)[0]
        if state not in STOPPED:
            stopped_at = None
        elif stopped_at is None:
            stopped_at = time.monotonic()
        elif time.monotonic() - stopped_at >= stopped_s:
            return
