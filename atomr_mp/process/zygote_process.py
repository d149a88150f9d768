"""Starts the process of a zygote, which imports the runtime's workers at once and then waits for orders. An edge.

The supervisor starts one before its own imports, so that both go on side by side: this module imports little.
"""

from __future__ import annotations

import os
import socket
import subprocess
from typing import Final

from atomr_mp.process import interpreter, notify
from atomr_mp.protocol import process_tags

MODULE: Final = "atomr_mp_workers.boot.zygote"

TITLE: Final = "atomr-mp zygote".ljust(120)
"""It has room for the titles of workers, see `atomr_mp_workers.boot.shown`."""

RUN_DIR_ROOM: Final = "-" * 512
"""Room for a run directory."""


class ZygoteProcess:
    """A zygote's process, and the channel to it; the owner closes the channel and reaps the process. Main thread only.

    Its standard error is this process's until it is told where its output goes.

    Args:
        run_dir: The pool's run directory; empty if it is not known yet, and comes with the first order.

    Raises:
        OSError: The kernel refused; nothing is left behind.
    """

    def __init__(self, run_dir: str = "") -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                ours.setblocking(False)
                environment = {name: text for name, text in os.environ.items() if name not in notify.VARIABLES}
                options = f"--fd={theirs.fileno()}", f"--parent={os.getpid()}", f"--title={TITLE}"
                self.popen: Final = subprocess.Popen(
                    interpreter.module(MODULE, *options),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**environment, process_tags.RUN_DIR: run_dir or RUN_DIR_ROOM},
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        self.channel: Final = ours
        """Non-blocking; readable when there is a message, or the process has ended."""
