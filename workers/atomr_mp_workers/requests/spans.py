"""A span of OpenTelemetry that is made when somebody asks for it. Imported once spans are wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from opentelemetry.trace import INVALID_SPAN, Span, SpanContext


class LateSpan(Span):
    """Stands for a span, which the first use of it makes. Any thread.

    Args:
        make: Makes it; called once.
    """

    def __init__(self, make: Callable[[], Span]) -> None:
        self._make: Callable[[], Span] | None = make
        self._made: Span | None = None

    @property
    def _span(self) -> Span:
        if self._made is None:
            with _MAKING:
                if self._make is not None:
                    make, self._make = self._make, None
                    self._made = make()
        # Also as long as it is being made, for whatever does that.
        return INVALID_SPAN if self._made is None else self._made

    def end(self, end_time: int | None = None) -> None:
        """End it."""
        self._span.end(end_time)

    def get_span_context(self) -> SpanContext:
        """Return what names it."""
        return self._span.get_span_context()

    def is_recording(self) -> bool:
        """Return whether anything that is said to it is kept."""
        return self._span.is_recording()

    def set_attribute(self, *args: Any, **kwargs: Any) -> None:
        """Hand on."""
        self._span.set_attribute(*args, **kwargs)

    def set_attributes(self, *args: Any, **kwargs: Any) -> None:
        """Hand on."""
        self._span.set_attributes(*args, **kwargs)

    def add_event(self, *args: Any, **kwargs: Any) -> None:
        """Hand on."""
        self._span.add_event(*args, **kwargs)

    def add_link(self, *args: Any, **kwargs: Any) -> None:
        """Hand on."""
        self._span.add_link(*args, **kwargs)

    def update_name(self, *args: Any, **kwargs: Any) -> None:
        """Hand on."""
        self._span.update_name(*args, **kwargs)

    def set_status(self, *args: Any, **kwargs: Any) -> None:
        """Hand on."""
        self._span.set_status(*args, **kwargs)

    def record_exception(self, *args: Any, **kwargs: Any) -> None:
        """Hand on."""
        self._span.record_exception(*args, **kwargs)


_MAKING = threading.RLock()
"""Held to make one: a request's thread and the loop may both want it first, and what makes it the current span."""
