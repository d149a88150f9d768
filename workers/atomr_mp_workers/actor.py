"""The base class of actors, and the decorator that makes a method a request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, overload


@dataclass(frozen=True)
class Context:
    """What an actor may know of the process it lives in."""

    pool: str
    device: int
    """Index of the device in the pool."""
    device_name: str
    backend: str
    """ "host" or "cuda"."""
    generation: int
    """Counts this device's incarnations; grows when a worker is replaced."""
    log: logging.Logger
    """Writes to the worker's log file (`atomr-mp logs DEVICE`)."""


class Actor:
    """Base class of users' actors: one instance lives in each device's process.

    Methods decorated with `method` become requests. All of them run on the process's one loop, one at a time, except
    those with `thread=True`, which run on a thread of this actor, also one at a time. While a method runs on the
    loop, nothing else of this process does: no other request, no message. So anything that takes longer than some
    milliseconds and does not need the loop belongs on the thread; then only this actor's own thread methods wait.
    """

    def setup(self, context: Context) -> None:
        """Load what the methods need: weights, tables, connections. Runs once, before the first request.

        An exception makes the start fail; the device is tried again within its restart intensity.
        """

    def teardown(self) -> None:
        """Release what needs an orderly end. Runs when the worker is drained, never when it is killed."""


@dataclass(frozen=True)
class MethodOptions:
    """What `method` was told."""

    idempotent: bool
    thread: bool
    deadline_s: float | None


F = TypeVar("F", bound=Callable[..., Any])


@overload
def method(function: F, /) -> F: ...


@overload
def method(*, idempotent: bool = False, thread: bool = False, deadline_s: float | None = None) -> Callable[[F], F]: ...


def method(
    function: F | None = None,
    /,
    *,
    idempotent: bool = False,
    thread: bool = False,
    deadline_s: float | None = None,
) -> F | Callable[[F], F]:
    """Make a method of an actor a request.

    Arguments and results are None, bool, int, float, str, bytes, lists, maps with string keys, and NumPy arrays.
    Annotations are enforced: what does not fit is refused with `InvalidRequest` before the method runs.

    Args:
        function: The method, when used without arguments.
        idempotent: Running it twice does no harm, so it may be sent again after a worker was lost.
        thread: Run it on the actor's own thread instead of the process's loop.
        deadline_s: Default deadline of its requests, in seconds; None for the pool's default.
    """
    if deadline_s is not None and deadline_s <= 0:
        raise ValueError(f"deadline_s must be positive, got {deadline_s}")
    options = MethodOptions(idempotent=idempotent, thread=thread, deadline_s=deadline_s)

    def mark(function: F) -> F:
        setattr(function, OPTIONS, options)
        return function

    return mark if function is None else mark(function)


OPTIONS: Final = "__atomr_mp_method__"
"""Attribute under which `method` leaves its options."""
