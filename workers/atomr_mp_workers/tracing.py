"""OpenTelemetry's spans of the requests that this process runs, once an actor has asked for them; extra `otel`.

Only requests whose client makes spans have one here: it is the child of the client's, and is not recorded if that is
not. Its request does not wait for it: it is made when the answer has left, or earlier if the method asks for the
current span.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.protocol.extras import how_to_install

if TYPE_CHECKING:
    from atomr_mp.errors import AtomrError
    from atomr_mp_workers.requests.request import Request
    from atomr_mp_workers.requests.spans import LateSpan

__all__ = ["instrument"]

SAMPLED: Final = frozenset(b"13579bdf")
"""Last digits of the flags of a trace's context, in hex, where what it names is recorded."""

tracer: RequestTracer | None = None
"""What makes spans of requests; None as long as nobody wants them."""


def instrument(tracer_provider: Any = None) -> None:
    """Make a span of each traced request from now on; in an actor's `setup`, where a provider is set up too.

    While a method runs alone, not in a batch, its span is the current one: spans of the method's own are its children.

    Args:
        tracer_provider: Of OpenTelemetry's SDK; None for the global one.

    Raises:
        ConfigurationError: The package opentelemetry-api is not installed; the message names the extra.
    """
    global tracer  # noqa: PLW0603 - one place to look at for every request
    try:
        tracer = RequestTracer(tracer_provider)
    except ImportError as error:
        raise errors.ConfigurationError(
            f"spans need opentelemetry-api, which cannot be imported: {error}; {how_to_install('opentelemetry')}"
        ) from error


class RequestTracer:
    """Makes workers' spans.

    Args:
        provider: Of tracers; None for the global one.
    """

    def __init__(self, provider: Any) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        from atomr_mp_workers.requests.spans import LateSpan

        self._trace = trace
        self._late_span = LateSpan
        self._attach, self._detach = context.attach, context.detach
        self._tracer = trace.get_tracer("atomr_mp", tracer_provider=provider)
        self._extract = TraceContextTextMapPropagator().extract
        self.owed: list[tuple[LateSpan, AtomrError | None, int]] = []
        """Spans that are to be made, for their requests have an outcome: with that, if it is an error, and the end."""

    def begin(self, request: Request) -> Any:
        """Return the span of a request that starts now; a context that is none makes it a root."""
        parent = request.trace
        assert parent is not None
        if parent[-1] not in SAMPLED:
            return self._late_span(lambda: self._trace.get_current_span(self._context(parent)))
        name, waited_ns, begun_ns = request.method.name, time.monotonic_ns() - request.received_ns, time.time_ns()

        def make() -> Any:
            actor, _, method = name.rpartition(".")
            return self._tracer.start_span(
                name,
                self._context(parent),
                kind=self._trace.SpanKind.SERVER,
                attributes={
                    "rpc.system": "atomr_mp",
                    "rpc.service": actor,
                    "rpc.method": method,
                    "atomr_mp.waited_s": waited_ns / 1e9,
                },
                start_time=begun_ns,
            )

        return self._late_span(make)

    def enter(self, span: Any) -> Any:
        """Make a span this thread's current one; return what `leave` needs."""
        return self._attach(self._trace.set_span_in_context(span))

    def leave(self, entered: Any) -> None:
        """Make the span current that was before."""
        self._detach(entered)

    def end(self, request: Request) -> None:
        """Note the end of a request that has its outcome."""
        assert request.trace is not None
        if request.trace[-1] in SAMPLED:
            self.owed.append((request.span, request.error, time.time_ns()))

    def settle(self) -> None:
        """Make the spans of all that has ended."""
        ended, self.owed = self.owed, []
        for span, error, at_ns in ended:
            if error is not None and span.is_recording():
                span.set_attribute("error.type", error.code)
                span.set_status(self._trace.StatusCode.ERROR, error.message)
            span.end(at_ns)

    def _context(self, parent: bytes) -> Any:
        return self._extract({"traceparent": parent.decode("ascii", "replace")})
