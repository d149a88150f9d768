"""Two settings of a process that Python has no call for. An edge; Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


def set_child_subreaper(*, enabled: bool = True) -> None:
    """Make this process the parent of all its descendants whose own parent ends (see `adopt`).

    Raises:
        OSError: The kernel refused.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, int(enabled))


def die_with_parent(expected_ppid: int) -> None:
    """Make the kernel kill this process when its parent ends; exit at once if that has already happened.

    What counts as the parent's end is the end of the *thread* that started this process (prctl(2)), which is
    why `spawn` is for the main thread only. The setting survives exec, but not fork.

    Args:
        expected_ppid: Pid of the parent, which the parent itself handed down.

    Raises:
        OSError: The kernel refused.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected_ppid:  # it died before the setting was made: no signal will come
        os._exit(1)


def _prctl(option: int, argument: int) -> None:
    zero = ctypes.c_ulong(0)  # prctl is variadic: the kernel reads unsigned longs
    if _LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(argument), zero, zero, zero) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {argument}): {os.strerror(code)}")


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
