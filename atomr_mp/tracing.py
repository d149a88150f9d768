"""OpenTelemetry's spans of the calls that this process makes, once it has asked for them; needs the extra `otel`.

Nothing of OpenTelemetry is imported before, and a call costs no more than a look whether it is wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atomr_mp.reply import Reply

__all__ = ["instrument", "uninstrument"]

tracer: Tracer | None = None
"""What makes spans of calls; None as long as nobody wants them."""


def instrument(tracer_provider: Any = None) -> None:
    """Make a span of each call from now on, and send its context with it.

    The worker's spans are its own process's: an actor's `setup` sets a provider up there and calls
    `atomr_mp_workers.tracing.instrument`.

    Args:
        tracer_provider: Of OpenTelemetry's SDK; None for the global one.

    Raises:
        ImportError: The package opentelemetry-api is missing.
    """
    global tracer  # noqa: PLW0603 - one place to look at for every call
    tracer = Tracer(tracer_provider)


def uninstrument() -> None:
    """Make no spans of what is called from now on."""
    global tracer  # noqa: PLW0603 - as above
    tracer = None


class Tracer:
    """Makes clients' spans.

    Args:
        provider: Of tracers; None for the global one.
    """

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = trace.get_tracer("atomr_mp", tracer_provider=provider)
        self._inject = TraceContextTextMapPropagator().inject

    def begin(self, reply: Reply) -> None:
        """Start the span of a call, a child of the current one; the call takes its context along."""
        actor, _, method = reply.method.rpartition(".")
        attributes = {"rpc.system": "atomr_mp", "rpc.service": actor, "rpc.method": method}
        span = self._tracer.start_span(reply.method, kind=self._trace.SpanKind.CLIENT, attributes=attributes)
        carrier: dict[str, str] = {}
        self._inject(carrier, self._trace.set_span_in_context(span))
        reply._trace = carrier.get("traceparent", "").encode("ascii")  # noqa: SLF001 - as a lane, which calls this
        reply._span = span  # noqa: SLF001 - as above

    def end(self, reply: Reply) -> None:
        """End the span of a call that has its outcome."""
        span, error = reply._span, reply._error  # noqa: SLF001 - as above
        span.set_attribute("atomr_mp.device", reply.device)
        span.set_attribute("atomr_mp.generation", reply.generation)
        if error is not None:
            span.set_attribute("error.type", error.code)
            span.set_status(self._trace.StatusCode.ERROR, error.message)
        span.end()
