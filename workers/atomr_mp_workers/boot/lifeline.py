"""Ties a worker to its supervisor: it dies with it, whatever it is doing, and its forks inherit nothing."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end at once if it has ended already.

    Args:
        parent: Pid of the process that started this one.

    Raises:
        OSError: The kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        os._exit(1)


def guard_forks(descriptors: Iterable[int]) -> None:
    """Keep this process's descriptors out of processes that actors fork, and let each of them die with its parent."""
    ours = tuple(descriptors)
    parent = os.getpid()

    def in_parent() -> None:
        nonlocal parent  # a forked child may fork again
        parent = os.getpid()

    def in_child() -> None:
        for descriptor in ours:
            try:
                os.close(descriptor)
            except OSError:  # closed before
                continue
        die_with(parent)

    os.register_at_fork(before=in_parent, after_in_child=in_child)
