"""Clients' spans: made when their calls are, or, with OpenTelemetry's SDK, later. Imported once spans are wanted."""

from __future__ import annotations

import copy
import logging
import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import get_current

from atomr_mp.tracing.calls import TracedCall

_LOG: Final = logging.getLogger("atomr_mp.tracing")

LATEST_S: Final = 0.1
"""How long after the first of them has ended spans are made."""

TOGETHER: Final = 16
"""As many are made at a time by the thread. Then it pauses: otherwise an answer would wait for the interpreter's lock
up to its switch interval, 5 milliseconds."""

PAUSE_S: Final = 0.001

MOST: Final = 4096
"""More do not wait: then whoever ends one makes them."""

HURRY_NS: Final = 500_000
"""Calls that begin no further apart are made one after the other. Of others the thread makes the spans: with what other
code has left in the caches, to make one takes longer than an answer."""

STOCK: Final = 16
"""For how many calls at most the sampler is asked ahead: at a call, the question takes several times as long."""


class EagerTracer:
    """Makes each span when its call is made.

    Args:
        tracer: OpenTelemetry's, anybody's.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def begin(self, reply: TracedCall) -> None:
        """Start the span of a call, a child of the current one; the call takes its context along."""
        span = self._tracer.start_span(reply.method, kind=trace.SpanKind.CLIENT, attributes=_attributes(reply.method))
        context = span.get_span_context()
        if context.is_valid:
            reply.trace = _named(context.trace_id, context.span_id, context.trace_flags)
        reply.span = _Eager(span)

    def settle(self) -> None:
        """Nothing is owed."""

    def flush(self) -> None:
        """Nothing is owed."""

    def close(self) -> None:
        """Nothing is owed."""


class _Eager:
    """A span that has been started."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def end(self, reply: TracedCall) -> None:
        """End it."""
        if self._span.is_recording():
            _finish(self._span, _Outcome(reply))
        self._span.end()


class _Outcome:
    """What a span says of its call's end; not the reply, which holds the result."""

    __slots__ = ("at_ns", "device", "error", "generation")

    def __init__(self, reply: TracedCall) -> None:
        error = reply.error
        self.at_ns = time.time_ns()
        self.device = reply.device
        self.generation = reply.generation
        self.error = None if error is None else (error.code, error.message)


class _Late:
    """A span that is still to be made: what it takes.

    Attributes:
        begun_ns: When its call was made.
        outcome: Once the call has one.
    """

    __slots__ = ("_maker", "begun_ns", "context", "is_random", "name", "outcome", "sampled", "span_id", "trace_id")

    def __init__(self, maker: LateTracer, context: Any, name: str, trace_id: int, span_id: int) -> None:
        self._maker = maker
        self.context = context
        self.name = name
        self.trace_id = trace_id
        self.span_id = span_id
        self.is_random = False
        self.sampled: Any = None
        self.begun_ns = 0
        self.outcome: _Outcome | None = None

    def end(self, reply: TracedCall) -> None:
        """Note the outcome."""
        self.outcome = _Outcome(reply)
        self._maker.owe(self)

    # A tracer asks these of its sampler and of what gives it ids. For this span, all is settled.

    def should_sample(self, *_: Any, **__: Any) -> Any:
        """Return what the sampler has said."""
        return self.sampled

    def generate_trace_id(self) -> int:
        """Return the trace that it belongs to."""
        return self.trace_id

    def generate_span_id(self) -> int:
        """Return its number."""
        return self.span_id

    def is_trace_id_random(self) -> bool:
        """Return whether the trace's number is random, as W3C's Trace Context means it."""
        return self.is_random


class _Stock:
    """What is prepared for calls of one method in one context: what a call takes along, and its span, if recorded."""

    __slots__ = ("context", "name", "parent", "prepared", "size")

    def __init__(self, context: Any, name: str) -> None:
        self.context = context
        self.name = name
        self.parent = trace.get_current_span(context).get_span_context()
        self.prepared: list[tuple[bytes, _Late | None]] = []
        self.size = 1
        """How many are prepared next: a context in which one call is made needs no more."""


class LateTracer:
    """Decides at once which calls have spans; who waits for an answer makes these, and a thread what is left.

    Args:
        tracer: Of OpenTelemetry's SDK.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._stocks: dict[str, _Stock] = {}
        self._latest: _Stock | None = None
        self._begun_ns = 0
        self._hurries = False
        """Calls are made one after the other."""
        self._closed = False
        self._start()
        _LATE_TRACERS.add(self)

    def _start(self) -> None:
        self._owed: deque[_Late] = deque()
        self._are_owed = threading.Event()
        self._making = threading.RLock()  # what exports a span may make calls
        threading.Thread(target=self._run, name="atomr-mp-spans", daemon=True).start()

    def restart(self) -> None:
        """Begin anew, in a process that was forked: what is owed is its parent's, and threads are not forked."""
        self._start()

    @staticmethod
    def suits(tracer: Any) -> bool:
        """Return whether a tracer's sampler can be asked, and its spans be made later: whether it is the SDK's."""
        return hasattr(tracer, "sampler") and hasattr(tracer, "id_generator")

    def begin(self, reply: TracedCall) -> None:
        """Give a call what it takes along, and its span, if that is to be recorded."""
        context, name, now_ns = get_current(), reply.method, time.monotonic_ns()
        self._hurries = now_ns - self._begun_ns < HURRY_NS
        self._begun_ns = now_ns
        stock = self._stocks.get(name)
        if stock is None or stock.context is not context:
            stock = self._stocks[name] = _Stock(context, name)
        self._latest = stock
        try:
            named, span = stock.prepared.pop()
        except IndexError:
            named, span = self._prepare(stock)
        reply.trace = named
        if span is not None:
            span.begun_ns = time.time_ns()
            reply.span = span

    def owe(self, span: _Late) -> None:
        """Have a span made whose call has ended."""
        self._owed.append(span)
        if self._closed or len(self._owed) > MOST:
            self._make(TOGETHER)
        elif not self._are_owed.is_set():
            self._are_owed.set()

    def settle(self) -> None:
        """Make one of those that are owed, and prepare one; not between calls that are far apart."""
        if not self._hurries:
            return
        if self._owed:
            self._make(1)
        stock = self._latest
        if stock is not None and len(stock.prepared) < STOCK:
            stock.prepared.append(self._sampled(stock))

    def flush(self) -> None:
        """Make all that are owed."""
        while self._make(MOST):
            pass

    def close(self) -> None:
        """End the thread, and make what is owed."""
        self._closed = True
        self._are_owed.set()
        self.flush()

    def _prepare(self, stock: _Stock) -> tuple[bytes, _Late | None]:
        """Ask the sampler for as many calls as are likely to be made in this context; return what the first needs."""
        made = [self._sampled(stock) for _ in range(stock.size)]
        stock.size = min(STOCK, 2 * stock.size)
        first = made.pop()
        stock.prepared += made
        return first

    def _sampled(self, stock: _Stock) -> tuple[bytes, _Late | None]:
        context, parent, name, ids = stock.context, stock.parent, stock.name, self._tracer.id_generator
        if parent.is_valid:
            trace_id, is_random = parent.trace_id, bool(parent.trace_flags & _RANDOM)
        else:  # older SDKs do not tell, and do not set the flag either
            trace_id, is_random = ids.generate_trace_id(), getattr(ids, "is_trace_id_random", bool)()
        span_id, flags = ids.generate_span_id(), _RANDOM * is_random
        kind, attributes = trace.SpanKind.CLIENT, _attributes(name)
        try:
            sampled = self._tracer.sampler.should_sample(context, trace_id, name, kind, attributes, ())
        except Exception:  # noqa: BLE001 - somebody's sampler; no call fails by it
            _LOG.exception("a sampler failed, so a call of %s has no span", name)
            sampled = None
        if sampled is None or not sampled.decision.is_recording():
            return _named(trace_id, parent.span_id if parent.is_valid else span_id, flags), None
        flags |= trace.TraceFlags.SAMPLED * sampled.decision.is_sampled()
        span = _Late(self, context, name, trace_id, span_id)
        span.sampled, span.is_random = sampled, is_random
        return _named(trace_id, span_id, flags), span

    def _make(self, most: int) -> bool:
        """Make so many; return whether there were any."""
        with self._making:
            spans = [self._owed.popleft() for _ in range(min(most, len(self._owed)))]
            tracer = copy.copy(self._tracer)
            for late in spans:
                outcome = late.outcome
                assert outcome is not None
                tracer.sampler = tracer.id_generator = late
                try:
                    span = tracer.start_span(late.name, late.context, trace.SpanKind.CLIENT, start_time=late.begun_ns)
                    _finish(span, outcome)
                    span.end(outcome.at_ns)
                except Exception:  # noqa: BLE001 - of somebody's processor; no call fails by it, and the others have spans
                    _LOG.exception("the span of a call of %s failed", late.name)
            return bool(spans)

    def _run(self) -> None:
        while not self._closed:
            self._are_owed.wait()
            time.sleep(LATEST_S)
            self._are_owed.clear()
            while self._make(TOGETHER):
                time.sleep(PAUSE_S)


_LATE_TRACERS: Final[weakref.WeakSet[LateTracer]] = weakref.WeakSet()


def _restart_all() -> None:
    for tracer in list(_LATE_TRACERS):
        tracer.restart()


os.register_at_fork(after_in_child=_restart_all)

_RANDOM: Final = 2
"""The flag of a context whose trace has a random number (W3C, Trace Context level 2)."""


def _attributes(name: str) -> dict[str, str]:
    """Return what a span begins with."""
    actor, _, method = name.rpartition(".")
    return {"rpc.system": "atomr_mp", "rpc.service": actor, "rpc.method": method}


def _named(trace_id: int, span_id: int, flags: int) -> bytes:
    """Return what names a span, as W3C's Trace Context has it; OpenTelemetry's propagator takes three times as long."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, flags)


def _finish(span: Any, outcome: _Outcome) -> None:
    span.set_attribute("atomr_mp.device", outcome.device)
    span.set_attribute("atomr_mp.generation", outcome.generation)
    if outcome.error is not None:
        code, message = outcome.error
        span.set_attribute("error.type", code)
        span.set_status(trace.StatusCode.ERROR, message)
