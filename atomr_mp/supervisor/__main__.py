"""The supervisor's process: started by `atomr_mp.startup.launch`, never by hand."""

from __future__ import annotations

import gc
import os
import signal
import sys

from atomr_mp import output
from atomr_mp.process.zygote_process import ZygoteProcess


def main() -> int:
    """Run a pool; return the exit status: 0 stopped in order, 1 it could not run."""
    options = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:])
    output.protect()
    try:
        try:
            zygote = ZygoteProcess()  # it imports its modules while this process does so
        except OSError:
            zygote = None  # the pool's own attempt reports it
        gc.disable()  # no module that is imported is garbage
        from atomr_mp.supervisor.running import run

        gc.freeze()
        gc.enable()
        return run(options, zygote)
    except KeyboardInterrupt:  # before the loop's own handler was there
        return 128 + signal.SIGINT


if __name__ == "__main__":
    status = main()
    output.drain()
    os._exit(status)  # to take the interpreter down would be a sixth of this process's work, and frees what ends anyway
