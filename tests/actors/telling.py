"""An actor for tests of logs."""

from __future__ import annotations

import ctypes
import decimal
import os
import threading
from collections.abc import Callable, Iterator
from typing import Final

from atomr_mp import errors
from atomr_mp_workers import Actor, method
from tests.actors import probe


class TextRaisesError(Exception):
    """An exception whose text and representation raise."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class OwnBaseError(BaseException):
    """An exception that is no `Exception`."""


def _deep(left: int) -> int:
    return _deeper(left) + 1


def _deeper(left: int) -> int:
    return _deep(left) + 1


def _recursion() -> BaseException:
    try:
        _deep(1)
    except RecursionError as error:
        return error
    raise AssertionError


def _noted(error: BaseException, note: str) -> BaseException:
    error.add_note(note)
    return error


def _nested(depth: int) -> object:
    made: object = None
    for _ in range(depth):
        made = [made]
    return made


def _cyclic() -> object:
    made: list[object] = []
    made.append(made)
    return made


RAISED: Final[dict[str, Callable[[], BaseException]]] = {
    "ValueError": lambda: ValueError("a text"),
    "MemoryError": lambda: MemoryError("no room"),
    "RecursionError": _recursion,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "OwnBaseError": OwnBaseError,
    "TextRaisesError": TextRaisesError,
    "ExceptionGroup": lambda: ExceptionGroup("several", [ValueError("one"), ExceptionGroup("two", [OSError(5, "x")])]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [SystemExit(1)]),
    "long text": lambda: ValueError("x" * 100_000),
    "many lines": lambda: ValueError("line\n" * 30_000),
    "long notes": lambda: _noted(ValueError("noted"), "n\n" * 50_000),
    "forged": lambda: ValueError('x\n  File "forged.py", line 1, in forged\n\x1b[2J{"event": "forged"}'),
    "surrogates": lambda: ValueError("\ud800"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "TimeoutError": lambda: TimeoutError("late"),
    "OutOfMemory": lambda: errors.OutOfMemory("no memory on purpose"),
    "LibraryError": lambda: errors.LibraryError("a library on purpose"),
    "ActorFailed": lambda: errors.ActorFailed("failed on purpose"),
    "ResidentMismatch": lambda: errors.ResidentMismatch("differs on purpose"),
}
"""Exceptions by a name."""

UNSENDABLE: Final[dict[str, Callable[[], object]]] = {
    "an object": object,
    "a Decimal": lambda: decimal.Decimal(1),
    "a class": lambda: int,
    "a large integer": lambda: [2**70],
    "too deep": lambda: _nested(5000),
    "itself": _cyclic,
    "a lone surrogate": lambda: "\ud800",
}
"""Results that cannot be sent."""


class Telling(Actor):
    """Prints, raises and crashes."""

    @method
    def noted(self, text: str) -> None:
        """Print a text."""
        print(f"noted {text}", flush=True)

    @method
    def fail(self, text: str) -> None:
        """Raise an exception with a text."""
        raise ValueError(text)

    @method(thread=True)
    def breaks(self, after: int) -> Iterator[int]:
        """Yield some numbers, then raise."""
        yield from range(after)
        raise ValueError("on purpose")

    @method(thread=True)
    def wait_at(self, gate: str) -> None:
        """Report that it runs, and wait."""
        probe.arrive(gate)

    @method
    def poison(self) -> None:
        """Lose the context."""
        raise errors.ContextPoisoned("on purpose")

    @method
    def crash(self) -> None:
        """Read where nothing is."""
        ctypes.string_at(0)

    @method
    def raises(self, kind: str) -> object:
        """Raise an exception of a kind, or return what cannot be sent."""
        if kind in UNSENDABLE:
            return UNSENDABLE[kind]()
        error = RAISED[kind]()
        raise error

    @method
    async def raises_awaited(self, kind: str) -> object:
        """Do the same in a coroutine."""
        if kind in UNSENDABLE:
            return UNSENDABLE[kind]()
        error = RAISED[kind]()
        raise error

    @method(thread=True)
    def raises_streaming(self, kind: str) -> Iterator[object]:
        """Do the same after a part."""
        yield 1
        if kind in UNSENDABLE:
            yield UNSENDABLE[kind]()
        error = RAISED[kind]()
        raise error

    @method(thread=True)
    def prints(self, what: str) -> None:
        """Print a text of latin-1 characters as bytes, past Python."""
        os.write(2, what.encode("latin-1"))

    @method
    def end(self, number: int) -> None:
        """Send a signal to this process."""
        os.kill(os.getpid(), number)

    @method
    def abort(self) -> None:
        """Abort as a library in C does."""
        os.abort()

    @method(thread=True, hang_timeout_s=1.0)
    def hang(self) -> None:
        """Never return."""
        threading.Event().wait()

    @method
    def kinds(self) -> list[list[str]]:
        """Return the names of what may be raised, and of what may be returned."""
        return [list(RAISED), list(UNSENDABLE)]
