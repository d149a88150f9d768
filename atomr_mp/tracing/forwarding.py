"""Hands on the trace of a request from elsewhere to the calls that are made for it, without OpenTelemetry.

For a process that makes no spans itself, such as a front end of the HTTP server: the worker's span is then a child of
the span that the request's sender has named.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C's header; see https://www.w3.org/TR/trace-context/#traceparent-header."""

_current: Final[ContextVar[bytes | None]] = ContextVar("atomr_mp_traceparent", default=None)


class TraceForwarder:
    """Stands in for the tracer of calls."""

    def begin(self, _name: str) -> tuple[bytes | None, None]:
        """Return the context that a call takes along, and no span."""
        return _current.get(), None


@contextlib.contextmanager
def forwarding(traceparent: bytes) -> Iterator[None]:
    """Let calls that are made meanwhile take a trace along; what is no valid header of W3C is left out."""
    token = _current.set(traceparent if _TRACEPARENT.fullmatch(traceparent) else None)
    try:
        yield
    finally:
        _current.reset(token)
