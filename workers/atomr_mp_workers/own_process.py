"""Tells this process from one that an actor's code has forked, which must never go on as a second worker.

A forked child returns from the actor's code into ours like its parent, by a result or an exception, and has all that
the parent has: it would answer requests with a state of its own, and write the shared board. So our code asks `is_ours`
whenever control comes back from an actor's, and a child ends there. What the child does before is the actor's affair.
"""

from __future__ import annotations

import mmap
import os
from typing import Final, NoReturn

_WIPE_ON_FORK: Final = 18
"""MADV_WIPEONFORK of `madvise(2)`: the page is zero in a child, however it was forked."""

FORKED_STATUS: Final = 70
"""Exit status of a forked child that has come back from an actor's code."""

STDERR: Final = 2
"""The descriptor of this process's log: an actor may exchange the stream of that name."""

_mark: Final = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
_mark.madvise(_WIPE_ON_FORK)
_mark[0] = 1


def settle() -> None:
    """Take this process for the one that goes on: a worker that was forked on purpose calls it first."""
    _mark[0] = 1


def check() -> None:
    """End this process if it is a forked child. Cheap: a look at one byte of memory, without a system call."""
    if not _mark[0]:
        leave()


def leave() -> NoReturn:
    """End a forked child at once, without what Python or a library does at its end."""
    text = (
        f"process {os.getpid()}: forked by an actor, and back from its code; it ends here. Call os._exit in a child\n"
    )
    try:
        os.write(STDERR, text.encode())
    finally:
        os._exit(FORKED_STATUS)
