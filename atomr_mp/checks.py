"""Checks of this package's own rules while its tests run: who uses what, and whose memory is sent.

They are on where `ATOMR_MP_CHECKS` is "1" in the environment when the process starts; workers, the supervisor and the
relay inherit it. Whether they are on is decided once, when modules are imported: else nothing here is called. Any
room may import this.

- State that belongs to one thread, or to whoever holds a lock, is *entrusted* to it. Every public method of an `owned`
  class then checks that its caller may use it.
- A `CheckedFrame` knows the digest of its content, and `check_frames` compares it before the frame is sent. Memory of
  user code is never sent.
- A session whose memory was given back has nothing left in its worker, and gets nothing more.
- `FILLER` is written over memory that is free, so that late reads are seen: it is NaN in every type of floating point.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
import zlib
from collections.abc import Callable, Collection, Sequence
from types import FunctionType, TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

ON: Final = os.environ.get("ATOMR_MP_CHECKS") == "1"
"""Whether this process checks."""

FILLER: Final = 0xFF
"""The byte that free memory is filled with."""

FILLED_BYTES: Final = 64 * 1024
"""Bytes at either end of a freed part that are filled."""

T = TypeVar("T")


class BrokenRuleError(AssertionError):
    """This package has broken a rule of its own; that is never the caller's mistake. Report it."""


class StateOwner(Protocol):
    """Says who may use what was entrusted to it."""

    def is_here(self) -> bool:
        """Return whether the current thread may use it."""


class ThreadOwner:
    """The thread that has made this."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()

    def is_here(self) -> bool:
        """Return whether this is that thread."""
        return threading.get_ident() == self._ident


class HeldLock:
    """A lock that knows who holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as threading's
        """Take it; see `threading.Lock`."""
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._holder = threading.get_ident()
        return taken

    def release(self) -> None:
        """Let it go; see `threading.Lock`."""
        self._holder = 0
        self._lock.release()

    def locked(self) -> bool:
        """Return whether somebody holds it."""
        return self._lock.locked()

    def is_here(self) -> bool:
        """Return whether the current thread holds it."""
        return self._holder == threading.get_ident()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.release()


def lock() -> Any:
    """Return a `threading.Lock`; where rules are checked, one that things can be entrusted to."""
    return HeldLock() if ON else threading.Lock()


def entrust(owner: object, *things: object) -> None:
    """Let `owned` things be used by their owner only, from now on.

    Args:
        owner: What `lock` has returned: who holds it may use them.
        *things: Objects of `owned` classes.
    """
    if ON:
        for thing in things:
            setattr(thing, _OWNER, owner)


def owned(
    *, by_maker: bool = False, also: Collection[str] = (), but: Collection[str] = ()
) -> Callable[[type[T]], type[T]]:
    """Return a decorator of classes whose public methods are for their owner only.

    Args:
        by_maker: The thread that makes an object owns it; else whoever it is entrusted to, see `entrust`.
        also: Private methods that are called from elsewhere, such as listeners.
        but: Methods and properties that any thread may use.
    """
    return functools.partial(guard, by_maker=by_maker, also=also, but=but) if ON else _unchanged


def guard(cls: type[T], *, by_maker: bool = False, also: Collection[str] = (), but: Collection[str] = ()) -> type[T]:
    """Have the methods of a class check their caller, whether rules are checked or not; see `owned`."""
    for name, member in list(vars(cls).items()):
        if name in but or (name.startswith("_") and name not in also):
            continue
        if isinstance(member, FunctionType):
            setattr(cls, name, _guarded(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(_guarded(member.fget), member.fset, member.fdel, member.__doc__))
    if by_maker:
        make: Callable[..., None] = cls.__init__

        @functools.wraps(make)
        def made(self: object, *args: Any, **kwargs: Any) -> None:
            setattr(self, _OWNER, ThreadOwner())
            make(self, *args, **kwargs)

        setattr(cls, "__init__", made)  # noqa: B010 - mypy forbids the plain assignment
    return cls


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: object, *args: Any, **kwargs: Any) -> Any:
        owner: StateOwner | None = getattr(self, _OWNER, None)
        if owner is not None and not owner.is_here():
            raise BrokenRuleError(
                f"{method.__qualname__} was called by the thread {threading.current_thread().name!r}, which does not "
                f"own this {type(self).__name__}"
            )
        return method(self, *args, **kwargs)

    return guarded


def _unchanged(cls: type[T]) -> type[T]:
    return cls


class CheckedFrame(bytes):
    """A payload frame as the encoder has made it."""

    digest: int

    def __new__(cls, content: bytes) -> Self:
        """Copy the content, and take its digest."""
        made = super().__new__(cls, content)
        made.digest = zlib.crc32(made)
        return made


def check_frames(frames: Sequence[bytes | memoryview]) -> None:
    """Check payload frames that are about to be sent.

    Raises:
        BrokenRuleError: One has changed since it was encoded, or lies in memory that is not this package's.
    """
    for number, frame in enumerate(frames):
        if isinstance(frame, CheckedFrame):
            if zlib.crc32(frame) != frame.digest:
                raise BrokenRuleError(f"payload frame {number} of {len(frames)} has changed since it was encoded")
        elif not isinstance(frame, bytes) and not _is_received(frame.obj):
            whose = f"{type(frame.obj).__module__}.{type(frame.obj).__qualname__}"
            raise BrokenRuleError(
                f"payload frame {number} of {len(frames)} lies in the memory of a {whose}: only what was encoded, or "
                "received, is sent"
            )


def checks_frames(send: Callable[..., T]) -> Callable[..., T]:
    """Have a method `send(self, header, frames)` check the frames first, where rules are checked."""
    if not ON:
        return send

    @functools.wraps(send)
    def checked(self: object, header: bytes, frames: list[bytes | memoryview]) -> T:
        check_frames(frames)
        return send(self, header, frames)

    return checked


_OWNER: Final = "owner_in_checks"


def _is_received(memory: object) -> bool:
    """Return whether messages are received into memory of this kind; libzmq's is that of its own frames."""
    return isinstance(memory, bytes | bytearray | mmap.mmap) or type(memory).__module__.startswith("zmq.")
