"""A client's spans are made after their calls, and are those that they would have been."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace  # after the look whether it is there
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from atomr_mp import errors, tracing
from atomr_mp.client.reply import Reply
from atomr_mp.tracing import spans
from atomr_mp.tracing.spans import LateTracer

DEADLINE_S = 30.0
FORKING = Path(__file__).parents[1] / "programs" / "forking_spans.py"


class Call:
    """What a span has of a reply."""

    def __init__(self, method: str = "Actor.method") -> None:
        self.method = method
        self.device, self.generation = 2, 7
        self.error: errors.AtomrError | None = None
        self.trace: bytes | None = None
        self.span: Any = None


class Kept(SpanExporter):
    """Keeps spans, and says that there are some."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.are_there = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep them."""
        self.spans += spans
        self.are_there.set()
        return SpanExportResult.SUCCESS


class Answers(Sampler):
    """Records every other span, and says why."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, SpanKind | None, Any]] = []

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
        assert parent_context is not None
        self.asked.append((trace_id, name, kind, attributes))
        decision = Decision.RECORD_AND_SAMPLE if len(self.asked) % 2 else Decision.DROP
        return SamplingResult(decision, {**attributes, "because": len(self.asked)})

    def get_description(self) -> str:
        """Say what it is."""
        return "every other"


@pytest.fixture
def kept() -> Kept:
    """What has been made."""
    return Kept()


@pytest.fixture
def instrumented(kept: Kept) -> Iterator[Any]:
    """Sets spans up, with a sampler."""
    providers = []

    def instrument(sampler: Sampler) -> LateTracer:
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(kept))
        providers.append(provider)
        tracing.instrument(provider)
        tracer = tracing.tracer
        assert isinstance(tracer, LateTracer)
        return tracer

    yield instrument
    tracing.uninstrument()
    for provider in providers:
        provider.shutdown()


def made(tracer: LateTracer, error: errors.AtomrError | None = None) -> Call:
    """Make a call, and end it."""
    call = Call()
    tracer.begin(cast("Reply", call))
    call.error = error
    if call.span is not None:
        call.span.end(call)
    return call


def context_of(call: Call) -> tuple[int, int, int]:
    """Return the trace, the span and the flags that a call took along."""
    assert call.trace is not None
    version, trace_id, span_id, flags = call.trace.split(b"-")
    assert version == b"00"
    return int(trace_id, 16), int(span_id, 16), int(flags, 16)


def named(span: ReadableSpan) -> SpanContext:
    """Return a span's context."""
    context = span.get_span_context()
    assert context is not None
    return context


def test_it_is_what_its_call_took_along(instrumented: Any, kept: Kept) -> None:
    """Its name, times, attributes and parent too."""
    tracer = instrumented(ParentBased(ALWAYS_ON))
    parent = SpanContext(5, 6, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    before_ns = time.time_ns()
    with trace.use_span(NonRecordingSpan(parent)):
        calls = [made(tracer) for _ in range(40)]
    after_ns = time.time_ns()
    tracing.flush()
    assert len(kept.spans) == 40
    assert len({named(span).span_id for span in kept.spans}) == 40
    for call, span in zip(calls, kept.spans, strict=True):
        context = named(span)
        assert context_of(call) == (context.trace_id, context.span_id, context.trace_flags)
        assert context.trace_id == 5
        assert span.parent == parent
        assert (span.name, span.kind) == ("Actor.method", SpanKind.CLIENT)
        assert span.start_time is not None
        assert span.end_time is not None
        assert before_ns <= span.start_time <= span.end_time <= after_ns
        assert span.attributes == {
            "rpc.system": "atomr_mp",
            "rpc.service": "Actor",
            "rpc.method": "method",
            "atomr_mp.device": 2,
            "atomr_mp.generation": 7,
        }


def test_one_without_a_parent_has_a_trace_of_its_own(instrumented: Any, kept: Kept) -> None:
    """With the flags that the SDK gives to such."""
    tracer = instrumented(ParentBased(ALWAYS_ON))
    calls = [made(tracer) for _ in range(5)]
    tracing.flush()
    own = trace.get_tracer("test", tracer_provider=TracerProvider()).start_span("one").get_span_context()
    for call, span in zip(calls, kept.spans, strict=True):
        context = named(span)
        assert span.parent is None
        assert context_of(call) == (context.trace_id, context.span_id, context.trace_flags)
        assert context.trace_flags == own.trace_flags
    assert len({context_of(call)[0] for call in calls}) == 5


def test_the_sampler_decides_on_each(instrumented: Any, kept: Kept) -> None:
    """It is asked once for each call, at most some before; and what it says of a span is in it."""
    sampler = Answers()
    tracer = instrumented(sampler)
    calls = [made(tracer) for _ in range(64)]
    tracing.flush()
    assert 64 <= len(sampler.asked) < 64 + spans.STOCK
    assert {(name, kind) for _, name, kind, _ in sampler.asked} == {("Actor.method", SpanKind.CLIENT)}
    recorded = [call for call in calls if context_of(call)[2] & TraceFlags.SAMPLED]
    assert {context_of(call)[1] for call in recorded} == {named(span).span_id for span in kept.spans}
    assert 24 <= len(recorded) <= 40  # what was prepared and not used is of either kind
    for span in kept.spans:
        assert span.attributes is not None
        assert span.attributes["because"] in range(1, len(sampler.asked) + 1, 2)


def test_a_part_of_all_is_recorded(instrumented: Any, kept: Kept) -> None:
    """What is not takes its context along nevertheless."""
    tracer = instrumented(ParentBased(TraceIdRatioBased(0.5)))
    calls = [made(tracer) for _ in range(2000)]
    tracing.flush()
    assert 700 < len(kept.spans) < 1300
    assert sum(context_of(call)[2] & TraceFlags.SAMPLED for call in calls) == len(kept.spans)
    assert len({context_of(call)[:2] for call in calls}) == 2000


def test_an_error_is_its_status(instrumented: Any, kept: Kept) -> None:
    """Of its call."""
    made(instrumented(ParentBased(ALWAYS_ON)), errors.Cancelled("not wanted"))
    tracing.flush()
    (span,) = kept.spans
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "not wanted")
    assert span.attributes is not None
    assert span.attributes["error.type"] == errors.Cancelled.code


def test_nobody_has_to_ask_for_them(instrumented: Any, kept: Kept) -> None:
    """A thread makes them soon."""
    made(instrumented(ParentBased(ALWAYS_ON)))
    assert kept.are_there.wait(DEADLINE_S)


def test_who_waits_for_an_answer_makes_one(instrumented: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all: its answer may come any moment."""
    monkeypatch.setattr(spans, "LATEST_S", DEADLINE_S)
    monkeypatch.setattr(spans, "HURRY_NS", 2**62)
    tracer = instrumented(ParentBased(ALWAYS_ON))
    for _ in range(3):
        made(tracer)
    tracer.settle()
    assert len(kept.spans) == 1


def test_who_waits_between_calls_that_are_far_apart_makes_none(
    instrumented: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would take longer than the answer; the thread does."""
    monkeypatch.setattr(spans, "LATEST_S", DEADLINE_S)
    monkeypatch.setattr(spans, "HURRY_NS", 0)
    tracer = instrumented(ParentBased(ALWAYS_ON))
    for _ in range(3):
        made(tracer)
        tracer.settle()
    assert not kept.spans
    tracing.flush()
    assert len(kept.spans) == 3


def test_no_more_wait_than_may(instrumented: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the thread takes; and none is lost."""
    monkeypatch.setattr(spans, "LATEST_S", DEADLINE_S)
    monkeypatch.setattr(spans, "MOST", 100)
    tracer = instrumented(ParentBased(ALWAYS_ON))
    for _ in range(1000):
        made(tracer)
    assert len(kept.spans) >= 900
    tracing.flush()
    assert len(kept.spans) == 1000


def test_one_that_ends_after_all_was_switched_off_is_made(instrumented: Any, kept: Kept) -> None:
    """At once: nobody else would make it."""
    call = Call()
    instrumented(ParentBased(ALWAYS_ON)).begin(call)
    tracing.uninstrument()
    call.span.end(call)
    assert len(kept.spans) == 1


def test_what_exports_one_may_make_calls(instrumented: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which have spans as well."""
    monkeypatch.setattr(spans, "MOST", 0)
    tracer = instrumented(ParentBased(ALWAYS_ON))
    export = kept.export

    def export_and_call(found: Sequence[ReadableSpan]) -> SpanExportResult:
        if len(kept.spans) < 3:
            export(found)
            made(tracer)
        return SpanExportResult.SUCCESS

    monkeypatch.setattr(kept, "export", export_and_call)
    made(tracer)
    assert len(kept.spans) == 3


def test_what_others_do_wrong_fails_no_call(
    instrumented: Any, kept: Kept, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler or a processor that raises: it is logged, and the next span is made."""
    sampler = Answers()
    tracer = instrumented(sampler)
    provider = TracerProvider(sampler=ALWAYS_ON)

    class Fails(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if not kept.spans:
                kept.spans.append(span)
                raise ValueError("no luck")
            kept.spans.append(span)

    provider.add_span_processor(Fails())
    monkeypatch.setattr(sampler, "should_sample", Mock(side_effect=ValueError("no luck")))
    unsampled = made(tracer)
    assert unsampled.span is None
    assert context_of(unsampled)[2] & TraceFlags.SAMPLED == 0
    tracing.instrument(provider)
    for _ in range(2):
        made(cast("LateTracer", tracing.tracer))
    tracing.flush()
    provider.shutdown()
    assert len(kept.spans) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "a sampler failed, so a call of Actor.method has no span",
        "the span of a call of Actor.method failed",
    ]


def test_a_forked_process_makes_its_own() -> None:
    """None of its parent's, which does that; also if the parent was just making some."""
    program = [sys.executable, "-W", "ignore::DeprecationWarning", str(FORKING)]
    subprocess.run(program, check=True, timeout=2 * DEADLINE_S)


def test_none_is_lost_at_the_end_of_a_process() -> None:
    """Which says nothing: its provider is shut down after that."""
    program = """
from forking_spans import *
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Counting()))
tracing.instrument(provider)
Counting.shutdown = lambda _: print(made.acquire(blocking=False))
call()
"""
    told = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        cwd=FORKING.parent,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (told.stdout, told.stderr) == ("True\n", "")


def test_other_tracers_make_theirs_at_once(kept: Kept) -> None:
    """Of those, nobody can know what the spans will be."""

    class Others(trace.TracerProvider):
        def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
            return Wrapped(TracerProvider())

    class Wrapped(trace.NoOpTracer):
        def __init__(self, provider: TracerProvider) -> None:
            provider.add_span_processor(SimpleSpanProcessor(kept))
            self._of_sdk = provider.get_tracer("other")

        def start_span(self, *arguments: Any, **named: Any) -> trace.Span:
            return self._of_sdk.start_span(*arguments, **named)

    tracing.instrument(Others())
    try:
        tracer = tracing.tracer
        assert tracer is not None
        call = made(cast("LateTracer", tracer), errors.Cancelled("not wanted"))
        (span,) = kept.spans
        context = named(span)
        assert context_of(call) == (context.trace_id, context.span_id, context.trace_flags)
        assert span.status.status_code is StatusCode.ERROR
        tracer.settle()
        tracer.flush()
    finally:
        tracing.uninstrument()
    assert len(kept.spans) == 1
