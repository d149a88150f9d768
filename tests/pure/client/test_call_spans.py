"""A client's spans: what a call takes along names its span, and no call fails by what others do to spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace  # after the look whether it is there
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from atomr_mp import errors
from atomr_mp.tracing.spans import CallSpan, CallTracer


class EveryOther(Sampler):
    """Records every other span, and says why."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, SpanKind | None, Any]] = []

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        *_: Any,
        **__: Any,
    ) -> SamplingResult:
        """Answer."""
        del parent_context, trace_id
        self.asked.append((name, kind, dict(attributes)))
        decision = Decision.RECORD_AND_SAMPLE if len(self.asked) % 2 else Decision.DROP
        return SamplingResult(decision, {**attributes, "because": len(self.asked)})

    def get_description(self) -> str:
        """Say what it is."""
        return "every other"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Where spans are that have ended."""
    return InMemorySpanExporter()


@pytest.fixture
def traced(exporter: InMemorySpanExporter) -> Iterator[Any]:
    """Makes the tracer of calls, with a sampler."""
    providers = []

    def make(sampler: Sampler) -> CallTracer:
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        providers.append(provider)
        return CallTracer(provider)

    yield make
    for provider in providers:
        provider.shutdown()


def call(tracer: CallTracer, error: errors.AtomrError | None = None) -> tuple[int, int, int]:
    """Make a call, and end it; return the trace, the span and the flags that it took along."""
    context, span = tracer.begin("Actor.method")
    if span is not None:
        span.end(2, 7, error)
    assert context is not None
    version, trace_id, span_id, flags = context.split(b"-")
    assert version == b"00"
    return int(trace_id, 16), int(span_id, 16), int(flags, 16)


def named(span: ReadableSpan) -> tuple[int, int, int]:
    """Return what names a span."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id, context.trace_flags


def test_a_call_takes_its_spans_context_along(traced: Any, exporter: InMemorySpanExporter) -> None:
    """The span is a child of the current one, and has the call's name, device and generation."""
    parent = SpanContext(5, 6, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    with trace.use_span(NonRecordingSpan(parent)):
        taken = call(traced(ParentBased(ALWAYS_ON)))
    (span,) = exporter.get_finished_spans()
    assert taken == named(span)
    assert (taken[0], span.parent, span.name, span.kind) == (5, parent, "Actor.method", SpanKind.CLIENT)
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes == {
        "rpc.system": "atomr_mp",
        "rpc.service": "Actor",
        "rpc.method": "method",
        "atomr_mp.device": 2,
        "atomr_mp.generation": 7,
    }


def test_a_call_in_no_span_begins_a_trace(traced: Any, exporter: InMemorySpanExporter) -> None:
    """Each its own."""
    tracer = traced(ParentBased(ALWAYS_ON))
    taken = [call(tracer) for _ in range(5)]
    spans = exporter.get_finished_spans()
    assert taken == [named(span) for span in spans]
    assert [span.parent for span in spans] == [None] * 5
    assert len({trace_id for trace_id, _, _ in taken}) == 5


def test_the_sampler_is_asked_once_for_each_call(traced: Any, exporter: InMemorySpanExporter) -> None:
    """A call without a recorded span takes a context along nevertheless."""
    sampler = EveryOther()
    tracer = traced(sampler)
    taken = [call(tracer) for _ in range(10)]
    asked = {"rpc.system": "atomr_mp", "rpc.service": "Actor", "rpc.method": "method"}
    assert sampler.asked == [("Actor.method", SpanKind.CLIENT, asked)] * 10
    assert [flags & TraceFlags.SAMPLED for _, _, flags in taken] == [1, 0] * 5
    spans = exporter.get_finished_spans()
    assert [named(span) for span in spans] == taken[::2]
    assert [dict(span.attributes or {})["because"] for span in spans] == [1, 3, 5, 7, 9]


def test_a_calls_error_is_its_spans_status(traced: Any, exporter: InMemorySpanExporter) -> None:
    """The span has the error's code."""
    call(traced(ALWAYS_ON), errors.Cancelled("not wanted"))
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "not wanted")
    assert span.attributes is not None
    assert span.attributes["error.type"] == errors.Cancelled.code


def test_a_processor_that_raises_fails_no_call(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged. A call whose span could not be started takes no context along."""
    processor = Mock(spec=SpanProcessor)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    tracer = CallTracer(provider)
    processor.on_end.side_effect = ValueError("no luck")
    assert call(tracer)[2] & TraceFlags.SAMPLED
    processor.on_start.side_effect = ValueError("no luck")
    assert tracer.begin("Actor.method") == (None, None)
    provider.shutdown()
    assert [record.getMessage() for record in caplog.records] == [
        "the span of a call of Actor.method may be lost, for its end failed",
        "a call of Actor.method has no span, for its start failed",
    ]


def test_a_tracer_without_an_sdk_makes_no_context() -> None:
    """OpenTelemetry's API alone, without a provider."""
    assert CallTracer(trace.NoOpTracerProvider()).begin("Actor.method") == (None, None)


def test_a_tracer_of_somebody_else_is_used_like_the_sdks(exporter: InMemorySpanExporter) -> None:
    """Only what OpenTelemetry's API promises is asked of it."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    class Wrapped(trace.NoOpTracer):
        def start_span(self, *arguments: Any, **named: Any) -> trace.Span:
            return provider.get_tracer("other").start_span(*arguments, **named)

    class Others(trace.TracerProvider):
        def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
            return Wrapped()

    taken = call(CallTracer(Others()))
    assert [named(span) for span in exporter.get_finished_spans()] == [taken]


def test_a_span_that_is_not_recorded_is_not_kept(traced: Any) -> None:
    """There is nothing to be said to it at the call's end."""
    sampler = EveryOther()
    tracer = traced(sampler)
    kept = [tracer.begin("Actor.method")[1] for _ in range(2)]
    assert [type(span) for span in kept] == [CallSpan, type(None)]
