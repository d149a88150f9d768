"""An actor whose process makes spans and returns them."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from atomr_mp_workers import Actor, Batch, Context, method, tracing


class Traced(Actor):
    """Keeps the spans of its process in memory."""

    def setup(self, _context: Context) -> None:
        """Have them made."""
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        tracing.instrument(self._provider)

    @method
    def nested(self) -> str:
        """Make a span of our own; return the trace that is current."""
        with self._provider.get_tracer("user").start_as_current_span("inner"):
            return f"{trace.get_current_span().get_span_context().trace_id:032x}"

    @method(thread=True)
    def on_thread(self) -> str:
        """Return the trace that is current on the actor's thread."""
        return f"{trace.get_current_span().get_span_context().trace_id:032x}"

    @method
    def fail(self) -> None:
        """Raise."""
        raise ValueError("no luck")

    @method(batch=Batch(max_items=2, max_wait_s=30))
    def pairs(self, items: list[int]) -> list[int]:
        """Return how many there were, for each."""
        return [len(items) for _ in items]

    @method
    def spans(self) -> list[dict[str, Any]]:
        """Return the spans that have ended, and forget them."""
        ended = self._exporter.get_finished_spans()
        self._exporter.clear()
        return [
            {
                "name": span.name,
                "trace": f"{span.context.trace_id:032x}",
                "id": f"{span.context.span_id:016x}",
                "parent": f"{span.parent.span_id:016x}" if span.parent else "",
                "kind": span.kind.name,
                "status": span.status.status_code.name,
                "start": span.start_time,
                "end": span.end_time,
                "attributes": dict(span.attributes or {}),
            }
            for span in ended
        ]


class BadlyTraced(Actor):
    """The start of its first span fails, and the end of the second."""

    def setup(self, _context: Context) -> None:
        """Have them made."""
        processor = Mock(spec=SpanProcessor)
        processor.on_start.side_effect = [ValueError("no luck"), None]
        processor.on_end.side_effect = ValueError("no luck")
        provider = TracerProvider()
        provider.add_span_processor(processor)
        tracing.instrument(provider)

    @method
    def empty(self, given: str) -> str:
        """Return the argument."""
        return given


class TracedRank(Actor):
    """The same for a rank of a world, without what worlds do not have."""

    def setup(self, context: Context) -> None:
        """Have spans made."""
        Traced.setup(self, context)  # type: ignore[arg-type]

    nested, fail, spans = Traced.nested, Traced.fail, Traced.spans
