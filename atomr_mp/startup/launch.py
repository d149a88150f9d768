"""Start a supervisor's process. The application never is the supervisor: either may die without the other."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from atomr_mp import output
from atomr_mp.process import interpreter

if TYPE_CHECKING:
    from atomr_mp.supervisor.plan import Plan
    from atomr_mp.transport.session import SessionConnection

MODULE: Final = "atomr_mp.supervisor"


def launch(
    planned: Callable[[], Plan], *, bound: bool, stderr: int | None = None
) -> tuple[subprocess.Popen[bytes], SessionConnection, Plan]:
    """Start a supervisor; return its process, a connection to it, which is still to say hello, and what it runs.

    Args:
        planned: Makes what it runs, while its process imports. If it raises, the process is ended again.
        bound: It ends when the connection ends. Otherwise it lives on its own, in a session (setsid) of its own.
        stderr: Its standard error, if it is bound; by default this process's.

    Raises:
        ConfigurationError: The system refuses to start an interpreter.
    """
    output.hold_standard()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    giving, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with giving, contextlib.ExitStack() as undone:
        undone.callback(ours.close)
        with theirs, taking, interpreter.startable():
            process = subprocess.Popen(
                [
                    *command(taking.fileno()),
                    f"--starter-fd={theirs.fileno()}",
                    "--log-to-file",
                    *(("--bound",) if bound else ()),
                ],
                stdin=subprocess.DEVNULL,
                # Errors of the start come over the connection; what is left is a traceback of ours.
                stdout=None if bound else subprocess.DEVNULL,
                stderr=stderr if bound else subprocess.DEVNULL,
                pass_fds=(taking.fileno(), theirs.fileno()),
                # Ctrl-C in the terminal is for the application, which then ends the pool in good order.
                start_new_session=True,
            )
        undone.callback(process.wait)
        undone.callback(process.kill)
        plan = planned()
        with contextlib.suppress(ConnectionError):  # it has ended, which the connection tells
            giving.sendall(plan.encoded(), socket.MSG_NOSIGNAL)
            giving.shutdown(socket.SHUT_WR)  # not its close: a process that was forked meanwhile has it too
        from atomr_mp.transport.session import SessionConnection  # not before: the other process imports meanwhile

        connection = SessionConnection(ours)
        undone.pop_all()
    return process, connection, plan


def become_supervisor(plan: Plan) -> None:
    """Turn this process into the supervisor, in the foreground; returns only by an exception."""
    plan_fd = plan.to_descriptor()
    os.set_inheritable(plan_fd, True)
    arguments = command(plan_fd)
    output.drain()
    # A Ctrl-C while the supervisor imports its modules waits until it can end in order; it unblocks what it was given.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with interpreter.startable():
            os.execv(arguments[0], arguments)  # noqa: S606 - our own interpreter, no shell wanted
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        os.close(plan_fd)


def command(plan_fd: int) -> list[str]:
    """Return the command line of a supervisor."""
    return interpreter.module(MODULE, f"--plan-fd={plan_fd}")
