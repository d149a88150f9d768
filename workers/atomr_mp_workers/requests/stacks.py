"""Where this process is, for whoever asks from outside: also while it is stuck, in Python or in C code."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable

from atomr_mp.protocol.board import STACK_AT, STACK_SIGNAL, BoardWriter


def show_stacks(board_fd: int, board: BoardWriter) -> None:
    """Have the stacks of all threads written to the board whenever `STACK_SIGNAL` comes. Main thread.

    They are written by a signal handler in C, which needs no lock of the interpreter's. After that a handler in Python
    says so on the board; it runs only if the main thread comes to run Python code.

    Args:
        board_fd: The board; stays open. What does not fit is refused by the kernel, since its size is sealed.
        board: The same, for writing.
    """

    def answer(_number: int, _frame: object) -> None:
        os.lseek(board_fd, STACK_AT, os.SEEK_SET)
        board.answer(time.monotonic_ns())

    os.lseek(board_fd, STACK_AT, os.SEEK_SET)
    signal.signal(STACK_SIGNAL, answer)
    faulthandler.register(STACK_SIGNAL, file=board_fd, all_threads=True, chain=True)


def show_unfinished(unfinished: Callable[[], int], board: BoardWriter) -> None:
    """Have it noted on the board, whenever `STACK_SIGNAL` comes, what the device has not finished. Main thread.

    A thread of its own does it: the main one may wait for that very work, in C code, which gives the interpreter's lock
    away meanwhile. The signal handler in C wakes it, by a pipe.

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
