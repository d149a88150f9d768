"""OpenTelemetry's spans of the calls that this process makes, once it has asked for them; needs the extra `otel`.

Nothing of OpenTelemetry is imported before, and a call costs no more than a look at `tracer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atomr_mp import errors
from atomr_mp.protocol.extras import how_to_install

if TYPE_CHECKING:
    from atomr_mp.tracing.forwarding import TraceForwarder
    from atomr_mp.tracing.spans import CallTracer

__all__ = ["instrument", "uninstrument"]

tracer: CallTracer | TraceForwarder | None = None
"""Starts the spans of calls; None as long as they are not wanted."""


def instrument(tracer_provider: Any = None) -> None:
    """Make a span of each call from now on, and send its context with it.

    A call's span ends before `result` returns, or before the call's callbacks run. The thread that receives answers
    for all ends it while it holds a lock, so the provider should export by a `BatchSpanProcessor`, which has a thread
    of its own. A processor that makes calls of the pool in `on_start` or `on_end` would wait for itself.

    Args:
        tracer_provider: Of OpenTelemetry; None for the global one, which has been set then.

    Raises:
        ConfigurationError: The package opentelemetry-api is not installed; the message names the extra.
    """
    try:
        from atomr_mp.tracing.spans import CallTracer
    except ImportError as error:
        raise errors.ConfigurationError(
            f"spans need opentelemetry-api, which cannot be imported: {error}; {how_to_install('opentelemetry')}"
        ) from error

    global tracer  # noqa: PLW0603 - one place to look at for every call
    tracer = CallTracer(tracer_provider)


def forward() -> None:
    """Let each call take along the trace that `forwarding` has named, and make no spans here."""
    from atomr_mp.tracing.forwarding import TraceForwarder

    global tracer  # noqa: PLW0603 - as above
    tracer = TraceForwarder()


def uninstrument() -> None:
    """Make no spans of further calls. Spans of calls that were made before end with their calls."""
    global tracer  # noqa: PLW0603 - as above
    tracer = None
