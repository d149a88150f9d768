"""The spans of a client's calls, by OpenTelemetry's tracer. Imported once spans are wanted."""

from __future__ import annotations

import logging
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from atomr_mp import errors

_LOG: Final = logging.getLogger("atomr_mp.tracing")


class CallTracer:
    """Starts the span of each call.

    Args:
        provider: Of tracers; None for the global one.
    """

    def __init__(self, provider: Any) -> None:
        self._tracer = trace.get_tracer("atomr_mp", tracer_provider=provider)
        self._inject = TraceContextTextMapPropagator().inject

    def begin(self, name: str) -> tuple[bytes | None, CallSpan | None]:
        """Start a call's span, a child of the current one. No call fails by a sampler or processor that raises.

        Args:
            name: "Actor.method".

        Returns:
            The context that the call takes along, as W3C's `traceparent`, and the span, if it is recorded.
        """
        actor, _, method = name.rpartition(".")
        attributes = {"rpc.system": "atomr_mp", "rpc.service": actor, "rpc.method": method}
        carrier: dict[str, str] = {}
        try:
            span = self._tracer.start_span(name, kind=trace.SpanKind.CLIENT, attributes=attributes)
            self._inject(carrier, trace.set_span_in_context(span))
        except Exception:  # noqa: BLE001 - raised by somebody's sampler or processor
            _LOG.exception("a call of %s has no span, for its start failed", name)
            return None, None
        context = carrier.get("traceparent")  # the API without an SDK makes spans that have none
        recorded = CallSpan(name, span) if span.is_recording() else None
        return None if context is None else context.encode("ascii"), recorded


class CallSpan:
    """The recorded span of one call.

    Args:
        name: "Actor.method".
        span: OpenTelemetry's.
    """

    def __init__(self, name: str, span: trace.Span) -> None:
        self._name = name
        self._span = span

    def place(self, world: str, epoch: int) -> None:
        """Note the epoch of a world in which a call was sent last. No call fails by a processor that raises."""
        try:
            self._span.set_attributes({"atomr_mp.world": world, "atomr_mp.epoch": epoch})
        except Exception:  # noqa: BLE001 - raised by somebody's processor
            _LOG.exception("attributes of the span of a call of %s are lost", self._name)

    def end(self, device: int, generation: int, error: errors.AtomrError | None) -> None:
        """End it, with the call's outcome. No call fails by a processor that raises."""
        try:
            self._span.set_attributes({"atomr_mp.device": device, "atomr_mp.generation": generation})
            if error is not None:
                self._span.set_attribute("error.type", error.code)
                self._span.set_status(trace.StatusCode.ERROR, error.message)
            self._span.end()
        except Exception:  # noqa: BLE001 - raised by somebody's processor
            _LOG.exception("the span of a call of %s may be lost, for its end failed", self._name)
