"""Shows the stacks of this process to its supervisor, even while it is stuck in Python or in C code."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from atomr_mp.protocol.board import DUMP_SIGNAL, STACK_AT, STACK_BYTES, STACK_SIGNAL, BoardWriter

MOST_FRAMES: Final = 100
"""Most frames of a thread, the same as `faulthandler` writes."""


def show_stacks(board_fd: int, board: BoardWriter) -> None:
    """Write the stacks of all threads to the board whenever `STACK_SIGNAL` or `DUMP_SIGNAL` comes. Main thread.

    At `STACK_SIGNAL` a handler in Python writes them, and says so on the board; it runs only if the main thread comes
    to run Python code. At `DUMP_SIGNAL` a handler in C writes them, which does not need the interpreter's lock.

    Args:
        board_fd: The board; stays open. The kernel refuses writes beyond it, since its size is sealed.
        board: The same board, for writing.
    """

    def rewind(*_: object) -> None:
        os.lseek(board_fd, STACK_AT, os.SEEK_SET)

    def answer(_number: int, frame: FrameType | None) -> None:
        os.pwrite(board_fd, _stacks(frame)[: STACK_BYTES - 1] + b"\0", STACK_AT)
        board.answer(time.monotonic_ns())

    rewind()
    signal.signal(STACK_SIGNAL, answer)
    signal.signal(DUMP_SIGNAL, rewind)
    faulthandler.register(DUMP_SIGNAL, file=board_fd, all_threads=True, chain=True)


def _stacks(main: FrameType | None) -> bytes:
    """Return the stacks of all threads as `faulthandler` writes them, the main thread's last."""
    this = threading.get_ident()
    found = {ident: frame for ident, frame in sys._current_frames().items() if ident != this}  # noqa: SLF001 - documented
    parts = []
    for ident, frame in [*found.items(), (this, main)]:
        lines = [f"Thread 0x{ident:016x} (most recent call first):"]
        at: FrameType | None = frame
        while at is not None and len(lines) <= MOST_FRAMES:
            lines.append(f'  File "{at.f_code.co_filename}", line {at.f_lineno} in {at.f_code.co_name}')
            at = at.f_back
        parts.append("\n".join(lines))
    return "\n\n".join(parts).encode("utf-8", "backslashreplace") + b"\n"


def show_unfinished(unfinished: Callable[[], int], board: BoardWriter) -> None:
    """Note the device's unfinished work on the board whenever `STACK_SIGNAL` comes. Main thread.

    A thread of its own does it: the main thread may wait for that very work in C code, with the interpreter's lock
    released. The signal handler in C wakes the thread by a pipe.

    Args:
        unfinished: Returns the bits, see `BoardWriter.survey`; never blocks.
        board: The board.
    """
    awaited, woken = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(woken, False)

    def serve() -> None:
        while os.read(awaited, 4096):
            board.survey(time.monotonic_ns(), unfinished())

    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    board.survey(1, 0)
    threading.Thread(target=serve, name="survey", daemon=True).start()
