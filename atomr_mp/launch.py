"""Start a supervisor's process. The application never is the supervisor: either may die without the other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Final

from atomr_mp.supervisor.plan import Plan
from atomr_mp.transport.session import SessionConnection

MODULE: Final = "atomr_mp.supervisor"


def launch(plan: Plan, *, bound: bool) -> tuple[subprocess.Popen[bytes], SessionConnection]:
    """Start a supervisor and return its process and a connection to it, which is still to say hello.

    Args:
        plan: What it runs.
        bound: It ends when the connection ends. Otherwise it lives on its own, in a session (setsid) of its own.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    plan_fd = plan.to_descriptor()
    try:
        process = subprocess.Popen(
            [
                *command(plan_fd),
                "--starter-fd",
                str(theirs.fileno()),
                "--log-to-file",
                *(("--bound",) if bound else ()),
            ],
            stdin=subprocess.DEVNULL,
            # Errors of the start come over the connection; what is left is a traceback of ours.
            stdout=None if bound else subprocess.DEVNULL,
            stderr=None if bound else subprocess.DEVNULL,
            pass_fds=(plan_fd, theirs.fileno()),
            # Ctrl-C in the terminal is for the application, which then ends the pool in good order.
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(plan_fd)
    return process, SessionConnection(ours)


def become_supervisor(plan: Plan) -> None:
    """Turn this process into the supervisor, in the foreground; returns only by an exception."""
    plan_fd = plan.to_descriptor()
    os.set_inheritable(plan_fd, True)
    arguments = command(plan_fd)
    os.execv(arguments[0], arguments)  # noqa: S606 - our own interpreter, no shell wanted


def command(plan_fd: int) -> list[str]:
    """Return the command line of a supervisor."""
    return [sys.executable, "-m", MODULE, "--plan-fd", str(plan_fd)]
