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
        from opentelemetry.context import get_current

        self._trace = trace
        self._tracer = trace.get_tracer("atomr_mp", tracer_provider=provider)
        self._get_current = get_current
        self._dropped: tuple[Any, str, bytes] = None, "", b""
        """The context and method of the latest call of which no span was made, and what was sent: so is the next."""
        self._sampler = getattr(self._tracer, "sampler", None)  # of the SDK's tracers
        self._attributes: dict[str, dict[str, str]] = {}
        """What spans of a method begin with."""

    def begin(self, reply: Reply) -> None:
        """Start the span of a call, a child of the current one; the call takes its context along."""
        name, current = reply.method, self._get_current()
        dropped_in, dropped, named = self._dropped
        if current is dropped_in and name == dropped:
            reply._trace = named  # noqa: SLF001 - as a lane, which calls this
            return
        attributes = self._attributes.get(name) or self._learn(name)
        parent = self._trace.get_current_span(current).get_span_context()
        if self._is_dropped(parent, name, attributes):
            reply._trace = _named(parent)  # noqa: SLF001 - as above
            self._dropped = current, name, reply._trace  # noqa: SLF001 - as above
            return
        span = self._tracer.start_span(name, kind=self._trace.SpanKind.CLIENT, attributes=attributes)
        reply._span = span  # noqa: SLF001 - as above
        context = span.get_span_context()
        if context.is_valid:
            reply._trace = _named(context)  # noqa: SLF001 - as above

    def end(self, reply: Reply) -> None:
        """End the span of a call that has its outcome."""
        span, error = reply._span, reply._error  # noqa: SLF001 - as above
        if span.is_recording():
            span.set_attribute("atomr_mp.device", reply.device)
            span.set_attribute("atomr_mp.generation", reply.generation)
            if error is not None:
                span.set_attribute("error.type", error.code)
                span.set_status(self._trace.StatusCode.ERROR, error.message)
        span.end()

    def _is_dropped(self, parent: Any, name: str, attributes: dict[str, str]) -> bool:
        """Return whether no span is to be made in a current one that is not recorded: it takes less to ask."""
        if parent.trace_flags & self._trace.TraceFlags.SAMPLED or not parent.is_valid or self._sampler is None:
            return False
        kind = self._trace.SpanKind.CLIENT
        decided = self._sampler.should_sample(None, parent.trace_id, name, kind, attributes, ()).decision
        return not decided.is_recording()

    def _learn(self, name: str) -> dict[str, str]:
        actor, _, method = name.rpartition(".")
        found = self._attributes[name] = {"rpc.system": "atomr_mp", "rpc.service": actor, "rpc.method": method}
        return found


def _named(context: Any) -> bytes:
    """Return what names a span, as W3C's Trace Context has it; OpenTelemetry's propagator takes three times as long."""
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)
