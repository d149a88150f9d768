"""Makes a span, forks while such are being made, and makes one in the child; each process says how many it has made."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from atomr_mp import tracing
from atomr_mp.tracing import spans

DEADLINE_S = 30.0
made = threading.Semaphore(0)


class Counting(SpanExporter):
    """Counts spans."""

    def export(self, some: Sequence[ReadableSpan]) -> SpanExportResult:
        """Do so."""
        made.release(len(some))
        return SpanExportResult.SUCCESS


class Call:
    """What a span has of a reply."""

    method, device, generation = "Actor.method", 0, 1
    error = span = trace = None


def call() -> None:
    """Make a call, and end it."""
    one: Any = Call()
    tracer = tracing.tracer
    assert tracer is not None
    tracer.begin(one)
    one.span.end(one)


def main() -> None:
    """Do it."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Counting()))
    tracing.instrument(provider)
    tracer = tracing.tracer
    assert isinstance(tracer, spans.LateTracer)
    with tracer._making:  # so that the thread waits, and the child gets a lock that nobody will release
        call()
        child = os.fork()
        if child == 0:
            call()
            os._exit(0 if made.acquire(timeout=DEADLINE_S) and not made.acquire(timeout=5 * spans.LATEST_S) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tracing.flush()
    assert made.acquire(timeout=DEADLINE_S)
    assert not made.acquire(blocking=False)


if __name__ == "__main__":
    main()
