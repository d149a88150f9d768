"""What is counted and logged of each request at its end, whatever protocol it came by."""

from __future__ import annotations

import time
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.raised import LogErrors
from atomr_mp.serve.access_log import log_answer
from atomr_mp.serve.lost_log import LostLog
from atomr_mp.serve.metrics import Counters
from atomr_mp.serve.raised_log import RaisedLog
from atomr_mp.serve.served_request import ServedRequest


class Accounts:
    """Counts and logs the requests of one front end.

    Args:
        counters: The front end's counters.
        access_log: Whether to log a line for each answer.
        log_errors: What the log shows of exceptions that methods raise: "full", "type" or "off".
    """

    def __init__(self, counters: Counters, *, access_log: bool = False, log_errors: LogErrors = "full") -> None:
        self._counters: Final = counters
        self._access_log: Final = access_log
        self._raised: Final = RaisedLog(log_errors)
        self._lost: Final = LostLog()

    def ended(self, served: ServedRequest, route: str) -> None:
        """Count an answer, and log it if that is wanted.

        Args:
            served: The request, which is over.
            route: Its kind, one of `metrics.ROUTES`.
        """
        took_ns = time.monotonic_ns() - served.begun_ns
        counters = self._counters
        counters.count(route, served.status)
        if served.called:
            counters.methods.answered(served.called, served.code, served.device, took_ns)
        error = served.error
        if served.ran_at:
            self._lost.ran(served)
        if error is not None and served.called:
            # An actor may raise a `WorkerLost` of its own, which has no device.
            if isinstance(error, errors.ContextPoisoned) or (
                isinstance(error, errors.WorkerLost) and error.device >= 0
            ):
                self._lost.note(served, error)
            elif isinstance(error, errors.PoolLost) and served.sent:
                self._lost.lose_pool(served, error)
            else:
                self._raised.note(served, error)
        if self._access_log:
            log_answer(served, took_ns)

    def gave_up(self, served: ServedRequest) -> None:
        """Log a request that the server does not wait for at its end."""
        self._lost.give_up(served)

    def close(self) -> None:
        """Log what is only counted or gathered yet."""
        self._lost.tell()
        self._raised.close()
