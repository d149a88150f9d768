"""Ends runs of programs between two rounds, once their client has cancelled them, has gone, or has ceased to wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from atomr_mp import errors
from atomr_mp_workers.requests.request import Request


def check_of(request: Request | None) -> Callable[[], None]:
    """Return the function that raises the error with which a run has to end; it raises none if all is well.

    A run that an actor's method has made goes on as long as the method does.

    Args:
        request: The request of the thread that runs the program.
    """
    if request is None or request.method.in_parts is None:
        return _go_on

    def check() -> None:
        if request.closing is not None:
            raise request.closing
        if request.peer.session.ended:
            raise errors.Cancelled("its client has gone", maybe_executed=True)
        if time.monotonic_ns() > request.deadline_ns:
            raise errors.DeadlineExceeded(
                "the deadline passed while the program was in a branch or loop", maybe_executed=True
            )

    return check


def _go_on() -> None:
    """Raise nothing."""
