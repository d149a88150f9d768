"""Writes what methods raise into this process's log. One for the process, as its log is."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.raised import MARK, LogErrors, Repeats, lines_of, raised, summary

_LOG: Final = logging.getLogger("atomr_mp.actor")


class Raiser(Protocol):
    """A run whose code has raised an exception."""

    method: Any
    """The method: its `name`, its `world`, and the `meaning` of exceptions."""

    @property
    def requests(self) -> Sequence[Any]:
        """The requests that it answers: their `id`, and the `peer` that has sent each."""


class DeviceErrorLog:
    """The log of exceptions. Any thread may call it."""

    def __init__(self) -> None:
        self.shows: LogErrors = "full"
        """What is shown."""
        self._repeats: Final = Repeats()
        self._lock: Final = threading.Lock()
        self._timer: threading.Timer | None = None

    def note(self, run: Raiser, error: errors.AtomrError) -> None:
        """Write what a method has raised, or count it if it was written a moment ago.

        Args:
            run: The run of the method.
            error: What its callers are told.
        """
        if self.shows == "off":
            return
        found = raised(run.method.name, error)
        now_s = time.monotonic()
        with self._lock:
            self._tell_due(now_s)
            if not self._repeats.note(found.key, now_s):
                self._await_due(now_s)
                return
        ids = ", ".join(map(_told, run.requests[:4]))
        text = f"{found.headline} (request {ids}{', …' if len(run.requests) > 4 else ''})"
        if self.shows == "full":
            text = f"\n{MARK}".join([text, *lines_of(found.details)])
        _LOG.error("%s", text)

    def close(self) -> None:
        """Write what was only counted so far: the process ends."""
        with self._lock:
            self._tell_due(float("inf"))

    def _tell_due(self, now_s: float) -> None:
        for key, more in self._repeats.due(now_s):
            _LOG.error("%s", summary(key, more))

    def _await_due(self, now_s: float) -> None:
        after_s = self._repeats.next_s(now_s)
        if self._timer is None and after_s is not None:
            timer = threading.Timer(after_s, self._tell_later)
            timer.daemon = True
            timer.start()
            self._timer = timer

    def _tell_later(self) -> None:
        with self._lock:
            now_s = time.monotonic()
            self._timer = None
            self._tell_due(now_s)
            self._await_due(now_s)


def _told(request: Any) -> str:
    """Return a request's id for the log; what a device does for itself has no client."""
    return str(request.id) if request.peer is None else f"{request.id} of session {request.peer.session.number}"


log: Final = DeviceErrorLog()
