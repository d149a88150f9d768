"""Defers Ctrl-C while the main thread is inside the client.

Python raises KeyboardInterrupt between any two steps of its main thread. In the midst of sending or receiving, nobody
could tell which part of a message is on its way: it would be sent twice and run twice, or torn, or an answer would be
lost for which another thread waits. So from `hold` to `let_go` a stand-in replaces Python's own handler of SIGINT. It
raises only where the thread waits (`wait`), and otherwise remembers. At other times Python's handler stays, since event
loops look for it before they set theirs. Handlers of an application or a loop are left alone.
"""

from __future__ import annotations

import functools
import os
import threading

# The functions of `signal` with these names make enums of all values, which takes ten times as long.
from _signal import SIGINT, default_int_handler, getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable
from threading import get_ident
from typing import Final, ParamSpec, TypeVar, TypeVarTuple

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Main:
    """The main thread's state; only that thread changes it."""

    __slots__ = ("level", "pending", "thread")

    def __init__(self, thread: int | None) -> None:
        self.thread = thread
        self.level = 0
        """Depth of deferred parts and of waits in them, one in the other: odd in a part, even in a wait. One number, so
        that no interrupt finds half of a change."""
        self.pending = False
        """Whether an interrupt was deferred."""


_main: Final = _Main(threading.main_thread().ident)


def hold() -> int:
    """Defer interrupts from here on; return the argument for `let_go`, or 0 if it must not be called.

    It does nothing if interrupts are deferred already, if they would not be KeyboardInterrupts, and in other threads,
    in which Python raises none.
    """
    main = _main
    if main.level & 1 or get_ident() != main.thread:
        return 0
    if not main.level:
        if getsignal(SIGINT) is not default_int_handler:
            return 0
        try:
            set_handler(SIGINT, _put_off)
        except ValueError:  # where foreign code has made the threads, Python may take another for its main one
            main.thread = None
            return 0
        main.pending = False
    level = main.level = main.level + 1
    return level


def let_go(level: int) -> None:
    """Let interrupts through again.

    Args:
        level: The value that `hold` has returned.

    Raises:
        KeyboardInterrupt: There was one.
    """
    main = _main
    main.level = level - 1
    if level == 1 and getsignal(SIGINT) is _put_off:
        set_handler(SIGINT, default_int_handler)
    if main.pending:
        main.pending = False
        raise KeyboardInterrupt


def wait(blocks: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call a function that may block, or is not ours; let interrupts through meanwhile, an earlier deferred one too."""
    main = _main
    if not main.level & 1 or get_ident() != main.thread:
        return blocks(*args)
    try:
        main.level += 1
        if main.pending:
            main.pending = False
            raise KeyboardInterrupt
        return blocks(*args)
    finally:
        main.level -= 1


def defer_interrupts(function: Callable[P, T]) -> Callable[P, T]:
    """Defer KeyboardInterrupt until the function returns or waits. Hot functions call `hold`, which costs less."""

    @functools.wraps(function)
    def done_as_a_whole(*args: P.args, **kwargs: P.kwargs) -> T:
        held = hold()
        try:
            return function(*args, **kwargs)
        finally:
            if held:
                let_go(held)

    return done_as_a_whole


def _put_off(_number: int, _frame: object) -> None:
    """Stand in for Python's own handler of SIGINT."""
    main = _main
    if main.level & 1:
        main.pending = True
        return
    if not main.level:  # the signal has come during the exchange of the handlers
        set_handler(SIGINT, default_int_handler)
    raise KeyboardInterrupt


def _start_in_child() -> None:
    """Begin anew in a child that another thread than the main one has forked: that thread is the main one there."""
    if get_ident() != _main.thread:
        if getsignal(SIGINT) is _put_off:
            set_handler(SIGINT, default_int_handler)
        _main.thread, _main.level, _main.pending = get_ident(), 0, False


os.register_at_fork(after_in_child=_start_in_child)
