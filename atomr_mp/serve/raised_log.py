"""Tells in the server's log what methods raise. For the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.raised import MARK, NOT_SENT, NOWHERE, Key, LogErrors, Repeats, lines_of, raised, summary
from atomr_mp.serve.problems import status_of
from atomr_mp.serve.served_request import ServedRequest
from atomr_mp.serve.server_log import tell

FAULT: Final = 500
"""Errors with a lower status are the served's."""

TOLD_ELSEWHERE: Final = frozenset(
    {
        *(errors.PoolLost.code, errors.SessionLost.code, errors.PoolUnreachable.code, errors.DeviceUnavailable.code),
        *(errors.ConnectionLost.code, errors.StaleGeneration.code, errors.Cancelled.code),
        *(errors.DeadlineExceeded.code, errors.InternalError.code),  # the latter with its stack in the device's log
    }
)
"""Errors that tell of the pool or of time, and not of a method; `LostLog` tells of those of a worker."""


class RaisedLog:
    """The log of exceptions of one front end.

    Args:
        shows: What is shown.
    """

    def __init__(self, shows: LogErrors) -> None:
        self._shows: Final = shows
        self._repeats: Final = Repeats()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, served: ServedRequest, error: errors.AtomrError) -> None:
        """Log the error that a method has raised, or count it if it was logged a moment ago; leave out other errors."""
        if self._shows == "off" or error.code in TOLD_ELSEWHERE or status_of(error) < FAULT:
            return
        now_s = time.monotonic()
        found = raised(served.called, error)
        self._tell_due(now_s)
        if not self._repeats.note(found.key, now_s):
            self._await_due(now_s)
            return
        where = f"request {served.id}, device {served.device} generation {served.generation}"
        text = f"{found.headline} ({where})"
        if self._shows == "full":
            text = f"\n{MARK}".join([text, *lines_of(found.details)])
        tell(
            logging.ERROR,
            "raised",
            text,
            id=served.id,
            method=found.method,
            device=served.device,
            generation=served.generation,
            **_facts(found.key),
        )

    def close(self) -> None:
        """Tell what was only counted so far: the server ends."""
        self._tell_due(float("inf"))

    def _tell_due(self, now_s: float) -> None:
        for key, more in self._repeats.due(now_s):
            tell(logging.ERROR, "raised_again", summary(key, more), method=key[0], **_facts(key), more=more)

    def _await_due(self, now_s: float) -> None:
        after_s = self._repeats.next_s(now_s)
        if self._timer is None and after_s is not None:
            self._timer = asyncio.get_running_loop().call_later(after_s, self._tell_later)

    def _tell_later(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        self._tell_due(now_s)
        self._await_due(now_s)


def _facts(key: Key) -> dict[str, str]:
    """Return for programs what a headline says."""
    _, kind, place = key
    if place.startswith(NOT_SENT):
        return {"returned": kind}
    return {"code": kind} if place == NOWHERE else {"exception": kind, "place": place}
