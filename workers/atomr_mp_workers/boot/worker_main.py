"""The main function of a device's process, both fresh (`__main__`) and forked (`zygote`)."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import mmap
import os
import signal
import sys
from typing import NoReturn

from atomr_mp import output
from atomr_mp.protocol import process_tags
from atomr_mp.protocol.board import BoardWriter
from atomr_mp.protocol.messages import control
from atomr_mp_workers import host, own_process
from atomr_mp_workers.boot import self_signals
from atomr_mp_workers.boot.lifeline import die_with, guard_forks
from atomr_mp_workers.boot.log import name_device, start_logging
from atomr_mp_workers.boot.shown import show_title
from atomr_mp_workers.device import prepare_device
from atomr_mp_workers.fatal import FatalError
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.loading import Loader
from atomr_mp_workers.requests import raised_log
from atomr_mp_workers.supervised.stacks import show_stacks
from atomr_mp_workers.wire.control import ControlChannel, SupervisorGoneError
from atomr_mp_workers.worlds.offers import WorldOffers


def work(control_fd: int, board_fd: int, parent: int) -> NoReturn:
    """Be a device's worker, and end the process.

    Exit statuses: 0 drained, 1 the supervisor is gone, 3 it could not go on, 4 after an exception, which is a bug of
    ours.

    Args:
        control_fd: The worker's end of the control channel.
        board_fd: The board.
        parent: Pid of the supervisor, whose child this process is.
    """
    # Not sys.exit: an actor's threads, atexit handlers or a library's finalisers must not delay a worker's end.
    try:
        status = _work(control_fd, board_fd, parent)
    except BaseException:
        own_process.check()
        # From in here, with all that the traceback holds: the end of the control channel must not come before ours,
        # or the supervisor would kill us and take that for the cause.
        logging.getLogger("atomr_mp.worker").exception("leaving after an error of the worker itself")
        logging.shutdown()
        os._exit(4)
    raised_log.log.close()
    logging.shutdown()
    with contextlib.suppress(Exception):  # an actor may have put anything there
        sys.stdout.flush()
    os._exit(status)


def _work(control_fd: int, board_fd: int, parent: int) -> int:
    own_process.settle()
    die_with(parent)
    # The supervisor handles Ctrl-C of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output.protect()
    start_logging()
    faulthandler.enable(own_process.STDERR)  # a fatal signal leaves the stacks of all threads, and ends the process
    os.set_inheritable(board_fd, False)
    board = BoardWriter(memoryview(mmap.mmap(board_fd, 0)))
    show_stacks(board_fd, board)
    self_signals.wrap()
    self_signals.note_on(board)
    channel = ControlChannel(control_fd)
    guard_forks([channel.fileno(), board_fd])
    try:
        hooks.arm()
        loader = Loader()
        offers = WorldOffers()
        start = channel.receive()
        if isinstance(start, control.Prepare):
            prepare_device(start.backend)
            loader.prepare(start.actors)
            start = channel.receive()
        while isinstance(start, control.WorldFile | control.WorldOffered):
            offers.take(start, channel.take_descriptor())
            start = channel.receive()
        if not isinstance(start, control.Start):
            raise SupervisorGoneError(f"out of turn: {start!r}")
        several = start.workers_per_gpu > 1
        place = f" gpu={start.gpu} worker={start.worker}" if several else ""
        name_device(start.device, start.generation, place)
        show_title(start.pool, f"device {start.device} generation {start.generation}")
        raised_log.log.shows = start.execution.log_errors
        if hooks.hook is not None:
            hooks.hook.begin(start)
        os.environ[process_tags.WORKER] = f"{start.device}-{start.generation}"
        host.work(start, channel, board, loader, offers)
    except SupervisorGoneError:
        return 1
    except FatalError as fatal:
        logging.getLogger("atomr_mp.worker").critical("leaving: %s", fatal.error)
        return 3
    return 0
