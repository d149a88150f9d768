"""Stray writes: a worker's board is written over, as a stray pointer of its own code could."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Final

import psutil

from atomr_mp.protocol.board.page import BOARD_BYTES, FIRST_SLOT, FORGOTTEN, STACK_AT, Counter
from soaking.disturbances import Disturbance

BOARD: Final = "/memfd:atomr-mp-board"

HEADER: Final = ((8 * FORGOTTEN, 8), (8 * Counter.RECEIVED, 160))
ENTRIES: Final = ((8 * FIRST_SLOT, 8 * 64), (8 * FIRST_SLOT, STACK_AT - 8 * FIRST_SLOT), (8, BOARD_BYTES - 8))
"""First byte and length of the overwritten bytes. Zeros are no damage to the header of an idle worker's board."""


def write(pid: int, what: Disturbance, *, die: bool) -> bool:
    """Write over a process's board, with ones, with zeros or with anything; return False if it has none.

    Args:
        pid: The process.
        what: Decides where and what is written.
        die: The process does nothing any more between the write and its end.
    """
    chance = random.Random(what.roll)
    at, nbytes = chance.choice(HEADER + ENTRIES)
    contents = [b"\xff" * nbytes, chance.randbytes(nbytes), *([bytes(nbytes)] if (at, nbytes) in ENTRIES else [])]
    content = chance.choice(contents)
    board = _board(pid)
    if board is None:
        return False
    try:
        if die and not _stop(pid):
            return False
        os.pwrite(board, content, at)
        if die:
            os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
    finally:
        os.close(board)
    return True


def _stop(pid: int) -> bool:
    """Have a process stand still, else what it writes next may mend what was damaged; return False if it has ended."""
    os.kill(pid, signal.SIGSTOP)
    while (status := psutil.Process(pid).status()) != psutil.STATUS_STOPPED:
        if status in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return False
        os.sched_yield()
    return True


def _board(pid: int) -> int | None:
    """Return a descriptor of a process's board."""
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if str(link.readlink()).startswith(BOARD):
                return os.open(link, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # it has ended just now, or has no board yet
        pass
    return None
