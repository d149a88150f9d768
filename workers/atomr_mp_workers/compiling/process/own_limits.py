"""The limits that the compiler's process sets to itself: it ends with its worker, and takes only what is left over."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import threading
from pathlib import Path
from typing import Final

from atomr_mp_workers.compiling.exchange import Setup

PR_SET_PDEATHSIG: Final = 1

MAX_DESCRIPTORS: Final = 64
"""NVRTC has a few headers open at a time."""

STACK_BYTES: Final = 64 * 2**20
"""Of the thread that compiles: deep sources that are harmless need some."""

EXIT_ORPHANED: Final = 3


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that has started it ends; end if that has ended already.

    Raises:
        OSError: The kernel refused.
    """
    zero = ctypes.c_ulong(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(ctypes.c_int(PR_SET_PDEATHSIG), ctypes.c_ulong(signal.SIGKILL), zero, zero, zero) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:  # it ended before the call above
        os._exit(EXIT_ORPHANED)


def end_with(descriptor: int) -> None:
    """Watch a pipe whose other end the worker holds, and end this process when that is closed."""

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        os._exit(EXIT_ORPHANED)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def impose(setup: Setup) -> None:
    """Set the limits of a job."""
    # A dump is written even for a limit of 0 if a program takes it, but not for 1 (do_coredump() in fs/coredump.c).
    _limit(resource.RLIMIT_CORE, 1)
    _limit(resource.RLIMIT_AS, setup.memory_bytes)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, MAX_DESCRIPTORS)
    _limit(resource.RLIMIT_STACK, STACK_BYTES)
    # The first number sends SIGXCPU, and the second SIGKILL to a process that does not heed it.
    _limit(resource.RLIMIT_CPU, setup.cpu_s, setup.cpu_s + 1)
    if setup.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):  # /proc is not mounted, or may not be written
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")  # the first to go if memory runs out


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, as far as the one that this process was started with allows."""
    _, most = resource.getrlimit(kind)
    wanted = [soft, soft if hard is None else hard]
    if most != resource.RLIM_INFINITY:
        wanted = [min(each, most) for each in wanted]
    resource.setrlimit(kind, (wanted[0], wanted[1]))
