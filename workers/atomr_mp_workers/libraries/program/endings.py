"""Ends an unwanted run of a program before its next condition.

A client's own run is a request; one of an actor's is a part of its method's request, or of a batch of requests.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

from atomr_mp import errors
from atomr_mp_workers.requests.request import Request, Run, TaskCell, current_run, in_task


def check_here() -> Callable[[], None]:
    """Return the function that raises the error with which a run of this thread has to end, if it has to.

    A batch is wanted while one of its requests is. A method of a world's actor goes on: its ranks would part if one of
    them ended, and they have no meeting at conditions.
    """
    run = current_run()
    if run is None:
        cell = in_task.get()
        return _go_on if cell is None else lambda: _left_behind(cell)
    if any(request.gang is not None and request.method.in_parts is None for request in run.requests):
        return _go_on

    def check() -> None:
        error = _unwanted(run)
        if error is not None:
            raise error

    return check


def _unwanted(run: Run) -> errors.AtomrError | None:
    """Return the error with which a run has to end, None if somebody wants it. Any thread."""
    found: errors.AtomrError | None = None
    for request in run.requests:
        error = _ending_of(request)
        if error is None:
            return None
        found = found or error
    return found


def _ending_of(request: Request) -> errors.AtomrError | None:
    runs = request.is_running  # else it was answered, and the actor has left this work behind
    if runs and time.monotonic_ns() > request.turn_deadline_ns(request.started_ns):
        return errors.DeadlineExceeded(
            "the deadline passed while the program was in a branch or loop", maybe_executed=True
        )
    if request.closing is not None:
        return copy.copy(request.closing)  # raising it would have it keep frames
    if runs and request.peer.session.ended:
        return errors.Cancelled("its client has gone", maybe_executed=True)
    return None


def _left_behind(cell: TaskCell) -> None:
    """Raise the error with which the request has ended early whose task has left this work behind, if it has."""
    if cell.closing is not None:
        raise copy.copy(cell.closing)


def _go_on() -> None:
    """Raise nothing."""
