"""Turns exceptions into callers' errors."""

from __future__ import annotations

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_TEXT_CHARS, ErrorInfo
from atomr_mp.protocol.exceptions import describe, forget_frames, full_name_of, is_a, traceback_of, trusted
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.requests import raised_log
from atomr_mp_workers.requests.request import Run


def explain(device: WorkerDevice, run: Run, raised: BaseException) -> errors.AtomrError:
    """Return the error for the caller that an exception stands for; the exception loses its frames."""
    try:
        if is_a(raised, errors.AtomrError):
            return trusted(raised)
        name = run.method.name
        error = known(device, raised)
        if error is not None:
            if not error.ends_worker:  # else it may be another's doing, see `Host.run`
                error.message = f"{name}: {error.message}"
            return error
        if is_a(raised, MemoryError):
            return errors.OutOfMemory(f"{name} ran out of host memory: {describe(raised)}")
        failed = errors.ActorFailed(
            f"{name} raised {describe(raised)}",
            exception=full_name_of(raised),
            traceback_text=traceback_of(raised),
        )
        raised_log.log.note(run, failed)
        return failed
    finally:
        forget_frames(raised)


def known(device: WorkerDevice, raised: BaseException) -> errors.AtomrError | None:
    """Return the meaning of an exception of the device's libraries, None for any other."""
    try:
        return device.explain(raised)
    except BaseException:  # noqa: BLE001 - by its name a library's, and it does not behave like one
        return None


def wire_form(error: errors.AtomrError, limit_chars: int = MAX_TEXT_CHARS) -> ErrorInfo:
    """Return the wire form of an error, which other people's code may have raised.

    A receiver drops a message with an invalid error as a whole.
    """
    return ErrorInfo.of(trusted(error), limit_chars)
