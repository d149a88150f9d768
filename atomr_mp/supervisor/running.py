"""Runs a pool in the supervisor's process, from its plan to its end: all that `__main__` imports late."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from atomr_mp import errors
from atomr_mp.process.files import disk, logs
from atomr_mp.process.files.rundir import HeldRunDirectory, RunDirectory
from atomr_mp.process.zygote_process import ZygoteProcess
from atomr_mp.protocol import process_tags
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import session
from atomr_mp.supervisor.plan import Plan
from atomr_mp.supervisor.sessions.descriptor_limit import raise_limit
from atomr_mp.supervisor.supervisor import Supervisor
from atomr_mp.transport.session import SessionPeer


def run(options: Mapping[str, str], zygote: ZygoteProcess | None) -> int:
    """Run a pool; return the exit status: 0 stopped in order, 1 it could not run.

    Args:
        options: "plan-fd"; "starter-fd" if whoever started this process has a session; "bound" if the pool ends with
            that; "log-to-file".
        zygote: The process that becomes the pool's zygote, if it could be started.
    """
    faulthandler.enable()  # a crash leaves its stacks on standard error
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # inherited from our parent, and by all our children
    try:
        return _run(options, zygote)
    finally:
        logging.shutdown()


def _run(options: Mapping[str, str], zygote: ZygoteProcess | None) -> int:
    try:
        plan = Plan.from_descriptor(int(options["plan-fd"]))
    except EOFError:  # our parent has ended
        return 1
    starter = SessionPeer(socket.socket(fileno=int(options["starter-fd"]))) if "starter-fd" in options else None
    try:
        with RunDirectory.create(plan.run_path) as run_dir:
            os.environ[process_tags.RUN_DIR] = str(run_dir.path)
            _log_to(run_dir if "log-to-file" in options else None)
            raise_limit()
            supervisor = Supervisor(plan, run_dir, starter, zygote, bound="bound" in options)
            supervisor.run()
        if plan.temporary and not supervisor.has_failed:
            import shutil

            shutil.rmtree(plan.run_path, ignore_errors=True)
    except errors.AtomrError as error:
        if starter is not None:
            starter.send(session.Goodbye(ErrorInfo.of(error)))
        else:
            sys.stderr.write(f"atomr-mp: {error}\n")
        return 1
    return 0


def _log_to(run_dir: HeldRunDirectory | None) -> None:
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if run_dir is None:
        logging.getLogger(disk.LEFT_OUT).disabled = True  # standard error has all events
    else:
        shown = logging.StreamHandler(sys.stderr)  # the log of this process is on the same disk
        shown.setFormatter(logging.Formatter("atomr-mp: %(message)s"))
        logging.getLogger(disk.NAME).addHandler(shown)
        path: Path = run_dir.log("supervisor")
        handler = logs.PrivateFileHandler(path, maxBytes=4 * 2**20, backupCount=2)
    logging.basicConfig(
        handlers=[handler], level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
