"""Turns exceptions into callers' errors.

An exception belongs to the code that has raised it, which may keep it, change it and raise it again for the next
request. So it is turned into an error of ours where it is caught, before that code goes on, and is not kept.
"""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_TEXT_CHARS, ErrorInfo
from atomr_mp.protocol.exceptions import (
    context_of,
    describe,
    forget_frames,
    full_name_of,
    is_a,
    traceback_of,
    trusted,
    type_name,
)
from atomr_mp_workers.requests import raised_log
from atomr_mp_workers.requests.raised_log import Raiser

RETRY_S: Final = 1.0
"""When to try again what has lacked a descriptor."""

Meaning = Callable[[BaseException], errors.AtomrError | None]
"""Returns the meaning of an exception of the device's libraries, None for any other. Any thread."""


def explain(run: Raiser, raised: BaseException) -> errors.AtomrError:
    """Return a new error for the callers of a run; the exception that it stands for loses its frames. Any thread.

    An exception of the actor's is written into this process's log. One that a collective has hidden counts.
    """
    name = run.method.name
    try:
        hidden = None if run.method.world is None else hidden_by(raised)
        if hidden is not None:
            return explain(run, hidden)
        if is_a(raised, errors.AtomrError):
            error = trusted(raised)
            return copy.copy(error) if error is raised else error
        known_error = known(run.method.meaning, raised)
        if known_error is not None:
            if not known_error.ends_worker:  # else it may be another's doing, see `Host.run`
                known_error.message = f"{name}: {known_error.message}"
            return known_error
        lacking = without_descriptor(name, raised) if run.method.is_ours else None
        if lacking is not None:
            return lacking
        kind, stack = full_name_of(raised), traceback_of(raised)
        failed: errors.AtomrError
        if is_a(raised, MemoryError):
            failed = errors.OutOfMemory(
                f"{name} ran out of host memory: {describe(raised)}", exception=kind, traceback_text=stack
            )
        else:
            failed = errors.ActorFailed(f"{name} raised {describe(raised)}", exception=kind, traceback_text=stack)
        raised_log.log.note(run, failed)
        return failed
    finally:
        forget_frames(raised)


def without_descriptor(what: str, raised: BaseException) -> errors.Overloaded | None:
    """Return the error of a request for which this process had no file descriptor left, None if that was not so.

    Args:
        what: The method, or another name of the work for a person.
        raised: What our own code has raised.
    """
    if not isinstance(raised, OSError) or raised.errno not in {errno.EMFILE, errno.ENFILE}:
        return None
    return errors.Overloaded(
        f"{what}: the worker has no file descriptor left: raise its limit (ulimit -n), or have its actors close what "
        "they open",
        retry_after_s=RETRY_S,
    )


def hidden_by(raised: BaseException) -> BaseException | None:
    """Return the exception that passed a `finally` where a collective has failed and hidden it; None if there is none.

    The other ranks have not had it, and have called something else, or nothing. A collective that was aborted for
    another reason hides nothing: an exception that was handled there is no reason not to send the call again. Neither
    does what was handled when a generator was closed.
    """
    each: BaseException | None = raised
    seen: set[int] = set()
    has_parted = False
    while each is not None and id(each) not in seen and not is_a(each, GeneratorExit):
        seen.add(id(each))
        if is_a(each, errors.WorldMismatch):
            has_parted = True
        elif is_a(each, errors.CollectiveAborted):
            has_parted = has_parted or each.diverged is True
        else:
            return each if has_parted else None
        each = context_of(each)
    return None


def as_raised(value: object) -> BaseException:
    """Return the exception that `raise value` raises: a class is called, and what is no exception is a `TypeError`."""
    if is_a(value, BaseException):
        return value
    try:
        raise value  # type: ignore[misc]
    except BaseException as raised:  # noqa: BLE001 - a class may have code of its own
        return raised


def unsendable(run: Raiser, result: object, refused: errors.InvalidRequest) -> errors.ActorFailed:
    """Return the error of a run whose result, or a part of it, cannot be sent; it is in this process's log, too.

    Args:
        run: The run.
        result: What its method has returned or yielded.
        refused: Why that cannot be sent.
    """
    kind = type_name(result)
    failed = errors.ActorFailed(
        f"{run.method.name} returned a value of type {kind}: the result cannot be sent: {refused}",
        exception="TypeError",
        returned=kind,
    )
    raised_log.log.note(run, failed)
    return failed


def unknown(_raised: BaseException) -> None:
    """Return the meaning of an exception where there are no device's libraries: none."""


def known(meaning: Meaning, raised: BaseException) -> errors.AtomrError | None:
    """Return the meaning of an exception of the device's libraries, None for any other."""
    try:
        return meaning(raised)
    except BaseException:  # noqa: BLE001 - by its name a library's, and it does not behave like one
        return None


def wire_form(error: errors.AtomrError, limit_chars: int = MAX_TEXT_CHARS) -> ErrorInfo:
    """Return the wire form of an error, which other people's code may have raised.

    A receiver drops a message with an invalid error as a whole.
    """
    return ErrorInfo.of(trusted(error), limit_chars)


def wire_form_without_traceback(error: errors.AtomrError, limit_chars: int = MAX_TEXT_CHARS) -> ErrorInfo:
    """Return the wire form of an error, for a client that is not shown tracebacks."""
    return wire_form(error, limit_chars).without_tracebacks()
