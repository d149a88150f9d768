"""OpenTelemetry's spans of the requests that this process runs, once an actor has asked for them; extra `otel`.

Only requests whose client makes spans have one here: it is the child of the client's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atomr_mp_workers.envelope import Request

__all__ = ["instrument"]

tracer: Tracer | None = None
"""What makes spans of requests; None as long as nobody wants them."""


def instrument(tracer_provider: Any = None) -> None:
    """Make a span of each traced request from now on; in an actor's `setup`, where a provider is set up too.

    While a method runs alone, not in a batch, its span is the current one: spans of the method's own are its children.

    Args:
        tracer_provider: Of OpenTelemetry's SDK; None for the global one.

    Raises:
        ImportError: The package opentelemetry-api is missing.
    """
    global tracer  # noqa: PLW0603 - one place to look at for every request
    tracer = Tracer(tracer_provider)


class Tracer:
    """Makes workers' spans.

    Args:
        provider: Of tracers; None for the global one.
    """

    def __init__(self, provider: Any) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._attach, self._detach = context.attach, context.detach
        self._tracer = trace.get_tracer("atomr_mp", tracer_provider=provider)
        self._extract = TraceContextTextMapPropagator().extract

    def begin(self, request: Request) -> Any:
        """Start the span of a request, and return it; a context that is none makes it a root."""
        actor, _, method = request.method.name.rpartition(".")
        waited_s = (time.monotonic_ns() - request.received_ns) / 1e9
        assert request.trace is not None
        attributes: dict[str, Any] = {
            "rpc.system": "atomr_mp",
            "rpc.service": actor,
            "rpc.method": method,
            "atomr_mp.waited_s": waited_s,
        }
        return self._tracer.start_span(
            request.method.name,
            self._extract({"traceparent": request.trace.decode("ascii", "replace")}),
            kind=self._trace.SpanKind.SERVER,
            attributes=attributes,
        )

    def enter(self, span: Any) -> Any:
        """Make a span this thread's current one; return what `leave` needs."""
        return self._attach(self._trace.set_span_in_context(span))

    def leave(self, entered: Any) -> None:
        """Make the span current that was before."""
        self._detach(entered)

    def end(self, request: Request) -> None:
        """End the span of a request that has its outcome."""
        span, error = request.span, request.error
        if error is not None:
            span.set_attribute("error.type", error.code)
            span.set_status(self._trace.StatusCode.ERROR, error.message)
        span.end()
