"""The supervisor's process: started by `atomr_mp.startup.launch`, never by hand."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from atomr_mp import errors, output
from atomr_mp.process.files import disk, logs
from atomr_mp.process.files.rundir import HeldRunDirectory, RunDirectory
from atomr_mp.protocol import process_tags
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import session
from atomr_mp.supervisor.plan import Plan
from atomr_mp.supervisor.sessions.descriptor_limit import raise_limit
from atomr_mp.supervisor.supervisor import Supervisor
from atomr_mp.transport.session import SessionPeer


def main() -> int:
    """Run a pool; return the exit status: 0 stopped in order, 1 it could not run."""
    parser = argparse.ArgumentParser(
        prog="atomr_mp.supervisor", description="internal: use `atomr-mp start`", allow_abbrev=False
    )
    parser.add_argument("--plan-fd", type=int, required=True)
    parser.add_argument("--starter-fd", type=int, help="session of whoever started this process")
    parser.add_argument("--bound", action="store_true", help="end when that session ends")
    parser.add_argument("--log-to-file", action="store_true")
    options = parser.parse_args()
    output.protect()
    faulthandler.enable()  # a crash leaves its stacks on standard error
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # inherited from our parent, and by all our children
        return _run(options)
    except KeyboardInterrupt:  # before the loop's own handler was there
        return 128 + signal.SIGINT


def _run(options: argparse.Namespace) -> int:
    try:
        plan = Plan.from_descriptor(options.plan_fd)
    except EOFError:  # our parent has ended
        return 1
    starter = None
    if options.starter_fd is not None:
        starter = SessionPeer(socket.socket(fileno=options.starter_fd))
    try:
        with RunDirectory.create(plan.run_path) as run_dir:
            os.environ[process_tags.RUN_DIR] = str(run_dir.path)
            _log_to(run_dir if options.log_to_file else None)
            raise_limit()
            supervisor = Supervisor(plan, run_dir, starter, bound=options.bound)
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


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    output.drain()
    os._exit(status)  # to take the interpreter down would be a sixth of this process's work, and frees what ends anyway
