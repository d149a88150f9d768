"""Turns exceptions into callers' errors."""

from __future__ import annotations

import traceback

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_TEXT_CHARS, ErrorInfo
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.requests.request import Run


def explain(device: WorkerDevice, run: Run, raised: BaseException) -> errors.AtomrError:
    """Return the error for the caller that an exception stands for; the exception loses its frames."""
    try:
        name = run.method.name
        error = device.explain(raised)
        if error is not None:
            error.message = f"{name}: {error.message}"
            return error
        if isinstance(raised, MemoryError):
            return errors.OutOfMemory(f"{name} ran out of host memory: {describe(raised)}")
        return _failed(f"{name} raised", raised)
    finally:
        forget_frames(raised)


def forget_frames(error: BaseException) -> None:
    """Take the traceback from an exception, and from all that it was raised from or is a group of.

    The frames there have a request's arguments. A frame that refers to the exception, such as one with a list of
    failed items or a task that was awaited, would keep them until a collection, which an idle worker does not have; an
    exception that an actor raises again and again would keep the arguments of all its requests.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        waiting += (each.__cause__, each.__context__)
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


def describe(error: BaseException) -> str:
    """Return an exception's class and text; user code may have an exception whose text cannot be made."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - raised by the exception's own __str__
        return type(error).__name__


def wire_form(error: errors.AtomrError, limit_chars: int = MAX_TEXT_CHARS) -> ErrorInfo:
    """Return the wire form of an error, or of a substitute if it has none, as errors of user code may.

    A receiver drops a message with an invalid error as a whole.
    """
    try:
        return ErrorInfo.of(error, limit_chars)
    except (TypeError, ValueError, AttributeError) as wrong:  # made by user code, with facts of wrong types
        failed = _failed(f"an actor raised a {type(error).__name__} that cannot be sent:", wrong)
        return ErrorInfo.of(failed, limit_chars)


def _failed(what: str, error: BaseException) -> errors.ActorFailed:
    return errors.ActorFailed(
        f"{what} {describe(error)}",
        exception=f"{type(error).__module__}.{type(error).__qualname__}",
        traceback_text="".join(traceback.format_exception(error)),
    )
