"""A device's process: started by the supervisor, never by hand."""

from __future__ import annotations

import argparse
import logging
import mmap
import os
import signal
import sys

from atomr_mp.protocol import control
from atomr_mp.protocol.board import BoardWriter
from atomr_mp_workers.control import ControlChannel, SupervisorGoneError
from atomr_mp_workers.envelope import FatalError
from atomr_mp_workers.host import Host
from atomr_mp_workers.lifeline import die_with, guard_forks
from atomr_mp_workers.log import name_device, start_logging


def main() -> int:
    """Run the process; return its exit status: 0 drained, 1 its supervisor is gone, 3 it could not go on.

    Any exception, a fault of ours, ends the process with 4.
    """
    parser = argparse.ArgumentParser(prog="atomr_mp_workers", description="internal: started by the supervisor")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--board-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--title", default="", help="shown by ps, otherwise unused")
    options = parser.parse_args()
    die_with(options.parent)
    # Ctrl-C in a terminal is the supervisor's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_logging()
    board = mmap.mmap(options.board_fd, 0)
    os.close(options.board_fd)
    channel = ControlChannel(options.control_fd)
    guard_forks([channel.fileno()])
    try:
        start = channel.receive()
        if not isinstance(start, control.Start):
            raise SupervisorGoneError(f"out of turn: {start!r}")
        name_device(start.device, start.generation)
        Host(start, channel, BoardWriter(memoryview(board))).run()
    except SupervisorGoneError:
        return 1
    except FatalError as fatal:
        logging.getLogger("atomr_mp.worker").critical("leaving: %s", fatal.error)
        return 3
    return 0


if __name__ == "__main__":
    # Not sys.exit: an actor's threads, atexit handlers or a library's finalisers must not delay a worker's end.
    try:
        status = main()
    except BaseException:
        # From in here, with all that the traceback holds: the end of the control channel must not come before ours,
        # or the supervisor would kill us and take that for the cause.
        logging.getLogger("atomr_mp.worker").exception("leaving after an error of the worker itself")
        logging.shutdown()
        os._exit(4)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)
