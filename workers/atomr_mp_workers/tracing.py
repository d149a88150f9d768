"""OpenTelemetry spans of the requests that this process runs, once an actor has asked for them; needs the extra `otel`.

Only requests whose client makes spans have one here. It is a child of the client's span, and is recorded if that one
is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.extras import how_to_install
from atomr_mp_workers import timeline

__all__ = ["instrument"]

_LOG: Final = logging.getLogger("atomr_mp.tracing")

tracer: RequestTracer | None = None
"""Makes the spans of requests; None while no actor wants spans."""

is_on = False
"""Whether requests are observed: by spans, or by records in the trace of the pool."""


def instrument(tracer_provider: Any = None) -> None:
    """Make a span of each traced request from now on. Call it in an actor's `setup`, after setting up a provider.

    While a method runs alone, not in a batch, its span is the current one: spans that the method makes are its
    children. The loop starts and ends spans, so the provider should export by a `BatchSpanProcessor`, which has a
    thread of its own.

    Args:
        tracer_provider: OpenTelemetry's provider; None for the global one.

    Raises:
        ConfigurationError: The package opentelemetry-api is not installed; the message names the extra.
    """
    global tracer, is_on
    try:
        tracer, is_on = RequestTracer(tracer_provider), True
    except ImportError as error:
        raise errors.ConfigurationError(
            f"spans need opentelemetry-api, which cannot be imported: {error}; {how_to_install('opentelemetry')}"
        ) from error


def record(
    descriptor: int,
    generation: int,
    make_times: Callable[[], timeline.WorkTimes] | None,
    running: Iterable[ObservedRun] = (),
) -> None:
    """Record all requests that run, or begin from now on; see `timeline.start`.

    Args:
        descriptor: The ring; closed here.
        generation: This incarnation.
        make_times: Makes what measures a run's work on the device.
        running: What has begun and was not answered.
    """
    global is_on  # noqa: PLW0603 - as above
    timeline.start(descriptor, generation, make_times)
    is_on = True
    runs = list(running)
    for request in dict.fromkeys([each for run in runs for each in run.requests if each.is_running]):
        request.observed = True
        if timeline.recorder is not None:
            timeline.recorder.begin(request, request.started_ns)
    for run in runs:
        run.record()


def record_no_more() -> None:
    """End what `record` has begun."""
    global is_on  # noqa: PLW0603 - as above
    timeline.stop()
    is_on = tracer is not None


def begin(request: ObservedRequest) -> None:
    """Begin to observe a request that starts now, while `is_on`."""
    request.observed = True
    if request.trace and tracer is not None:
        request.span = tracer.begin(request)
    if timeline.recorder is not None:
        timeline.recorder.begin(request)


def end(request: ObservedRequest, error: errors.AtomrError | None, now_ns: int) -> int:
    """End what `begin` has begun; return how long the device has worked for the request, 0 if that is not known.

    Args:
        request: The request, which has its outcome.
        error: The error that it has ended with.
        now_ns: CLOCK_MONOTONIC.
    """
    if request.span is not None and tracer is not None:
        tracer.end(request)
    recorder, kept = timeline.recorder, request.recorded
    return 0 if recorder is None or kept is None else recorder.end(request, kept, error, now_ns)


class Named(Protocol):
    """A method."""

    @property
    def name(self) -> str:
        """The actor's name and its own, with a dot between."""


class Traced(Protocol):
    """A request that has a span."""

    trace: bytes | None
    received_ns: int
    span: Any
    error: errors.AtomrError | None

    @property
    def method(self) -> Named:
        """The method that it calls."""


class ObservedRequest(Traced, timeline.RecordableRequest, Protocol):
    """A request that is observed."""

    observed: bool

    @property
    def is_running(self) -> bool:
        """Whether it has begun and was not answered."""

    @property
    def method(self) -> Any:
        """The method that it calls."""


class ObservedRun(Protocol):
    """A unit of execution of such requests."""

    @property
    def requests(self) -> Iterable[ObservedRequest]:
        """The requests."""

    def record(self) -> None:
        """Have the requests share a clock for the pool's trace."""


class RequestTracer:
    """Makes workers' spans.

    Args:
        provider: The provider of tracers; None for the global one.
    """

    def __init__(self, provider: Any) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._attach, self._detach = context.attach, context.detach
        self._tracer = trace.get_tracer("atomr_mp", tracer_provider=provider)
        self._extract = TraceContextTextMapPropagator().extract

    def begin(self, request: Traced) -> Any:
        """Return the span of a request that starts now: a new one if the client's span is recorded, else the client's.

        A sampler or processor that raises fails no request: the request has no span of its own.
        """
        assert request.trace is not None
        parent = self._extract({"traceparent": request.trace.decode("ascii", "replace")})
        of_client = self._trace.get_current_span(parent)
        if not of_client.get_span_context().trace_flags.sampled:
            return of_client
        name = request.method.name
        actor, _, method = name.rpartition(".")
        attributes: dict[str, str | float] = {
            "rpc.system": "atomr_mp",
            "rpc.service": actor,
            "rpc.method": method,
            "atomr_mp.waited_s": (time.monotonic_ns() - request.received_ns) / 1e9,
        }
        try:
            return self._tracer.start_span(name, parent, kind=self._trace.SpanKind.SERVER, attributes=attributes)
        except Exception:  # noqa: BLE001 - raised by somebody's sampler or processor
            _LOG.exception("a request of %s has no span, for its start failed", name)
            return of_client

    def place(self, span: Any, world: str, epoch: int, rank: int, entry: int) -> None:
        """Note where a part of a world's call runs. A span that raises fails no request.

        Args:
            span: The request's.
            world: The world's name.
            epoch: The epoch.
            rank: The rank of this process.
            entry: The call's number in the order of the epoch.
        """
        places = {"world": world, "epoch": epoch, "rank": rank, "entry": entry}
        try:
            span.set_attributes({f"atomr_mp.{name}": value for name, value in places.items()})
        except Exception:  # noqa: BLE001 - raised by somebody's span
            _LOG.exception("attributes of a request's span are lost")

    def enter(self, span: Any) -> Any:
        """Make a span this thread's current one; return the token for `leave`."""
        return self._attach(self._trace.set_span_in_context(span))

    def leave(self, entered: Any) -> None:
        """Make the earlier span current again."""
        self._detach(entered)

    def end(self, request: Traced) -> None:
        """End the span of a request that has its outcome. A processor that raises fails no request."""
        span, error = request.span, request.error
        try:
            if error is not None and span.is_recording():
                span.set_attribute("error.type", error.code)
                span.set_status(self._trace.StatusCode.ERROR, error.message)
            span.end()
        except Exception:  # noqa: BLE001 - raised by somebody's processor
            _LOG.exception("the span of a request of %s may be lost, for its end failed", request.method.name)
