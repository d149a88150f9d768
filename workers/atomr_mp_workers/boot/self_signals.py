"""Notes on the board the signals that this process sends to itself, to explain its end by one of them.

The functions of `os` and `signal` that send signals are wrapped. An audit hook would miss `raise_signal` and
`pidfd_send_signal` and would make every other audited call slower. Signals that C code sends are not noted.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from atomr_mp.protocol.board import BoardWriter

PIDFD_SIGNAL_PROCESS_GROUP: Final = 4
"""include/uapi/linux/pidfd.h."""


def wrap() -> None:
    """Wrap the functions, once; before any import that might keep one of them."""
    for module, name, reaches_us, place in _SENDERS:
        original = getattr(importlib.import_module(module), name)
        if not hasattr(original, _WRAPPED):
            wrapper = _wrapper(original, reaches_us, place)
            for each in (module, _IN_C[module]):
                setattr(importlib.import_module(each), name, wrapper)


def note_on(board: BoardWriter) -> None:
    """Note the signals that this process sends to itself from now on; a forked process notes none.

    Args:
        board: The board to note them on.
    """
    global _notes  # noqa: PLW0603 - one for the process, as the functions are
    _notes = _Notes(board)


class _Notes:
    """The signals that threads of this process are sending to it just now."""

    def __init__(self, board: BoardWriter) -> None:
        self._board: Final = board
        self._pid: Final = os.getpid()
        self._signals = 0
        # A signal handler may send another signal, on the same thread.
        self._lock: Final = threading.RLock()

    @property
    def are_ours(self) -> bool:
        """Return whether this is still the process of the board, and not a forked one."""
        return os.getpid() == self._pid

    @contextlib.contextmanager
    def sending(self, number: int) -> Iterator[None]:
        """Show a signal while it is sent; after that only if it waits to be delivered."""
        bit = 1 << number - 1
        try:
            self._show(bit, 0)
            yield
        finally:
            if number not in signal.sigpending():
                self._show(0, bit)

    def _show(self, more: int, less: int) -> None:
        with self._lock:
            self._signals = (self._signals | more) & ~less
            self._board.signal(self._signals)


_notes: _Notes | None = None
_WRAPPED: Final = "__atomr_mp_noted__"


def _wrapper(original: Callable[..., Any], reaches_us: Callable[..., bool], place: int) -> Callable[..., Any]:
    """Return `original` wrapped so that it notes a signal that reaches this process.

    Args:
        original: The function.
        reaches_us: Returns whether a call with these arguments signals this process.
        place: Position of the signal among its arguments.
    """

    @functools.wraps(original)
    def send(*args: Any, **kwargs: Any) -> Any:
        notes = _notes
        number = 0 if notes is None or not notes.are_ours else _number(args, place, reaches_us)
        if notes is None or not number:
            return original(*args, **kwargs)
        with notes.sending(number):
            return original(*args, **kwargs)

    setattr(send, _WRAPPED, True)
    return send


def _number(args: tuple[Any, ...], place: int, reaches_us: Callable[..., bool]) -> int:
    """Return the number of the signal if it reaches this process, else 0; 0 for wrong arguments too."""
    try:
        number = operator.index(args[place])
        return number if 0 < number < signal.NSIG and reaches_us(*args) else 0
    except Exception:  # noqa: BLE001 - arguments may be anything; the original says what is wrong
        return 0


def _kill_reaches_us(pid: Any, *_more: Any) -> bool:
    pid = operator.index(pid)
    # -1 signals every process that we may signal. Linux leaves the caller out, but its end follows its supervisor's.
    return pid in {os.getpid(), 0, -1, -os.getpgrp()} or _is_thread(pid)


def _killpg_reaches_us(pgid: Any, *_more: Any) -> bool:
    return _kill_reaches_us(-operator.index(pgid))


def _always(*_args: Any) -> bool:
    return True


def _pidfd_reaches_us(pidfd: Any, _number: Any, _info: Any = None, flags: Any = 0, *_more: Any) -> bool:
    pid = _pid_of(operator.index(pidfd))
    if operator.index(flags) & PIDFD_SIGNAL_PROCESS_GROUP:
        return os.getpgid(pid) == os.getpgrp()
    return pid == os.getpid() or _is_thread(pid)


def _pid_of(pidfd: int) -> int:
    """Return the pid that a descriptor names: a pidfd, or a directory of /proc."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return int(Path(f"/proc/self/fd/{pidfd}").readlink().name)


def _is_thread(pid: int) -> bool:
    """Return whether a pid is that of a thread of this process: the kernel signals the process then."""
    return pid > 0 and Path(f"/proc/self/task/{pid}").exists()


_SENDERS: Final = (
    ("os", "kill", _kill_reaches_us, 1),
    ("os", "killpg", _killpg_reaches_us, 1),
    ("signal", "raise_signal", _always, 0),
    ("signal", "pthread_kill", _always, 1),
    ("signal", "pidfd_send_signal", _pidfd_reaches_us, 1),
)
"""Module, name, whether a call reaches this process, and the place of the signal among the arguments."""

_IN_C: Final = {"os": "posix", "signal": "_signal"}
"""The C modules that have the functions too."""
