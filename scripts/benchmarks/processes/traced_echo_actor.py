"""The actor that is called where spans are measured; and what makes them there and in the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from atomr_mp_workers import Actor, Context, method, tracing


class Nowhere(SpanExporter):
    """Throws spans away."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Do so."""
        assert spans
        return SpanExportResult.SUCCESS


def provider(sampler: Any = None) -> TracerProvider:
    """Return a provider whose spans go the way of an application's, but for the last step."""
    made = TracerProvider(sampler=sampler)
    made.add_span_processor(BatchSpanProcessor(Nowhere()))
    return made


class Echo(Actor):
    """Has a span for each request whose caller records one."""

    def setup(self, _context: Context) -> None:
        """Have them made."""
        tracing.instrument(provider())

    @method
    def empty(self) -> None:
        """Answer."""
