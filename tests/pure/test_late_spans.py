"""A worker's span is made when it is wanted, once."""

from __future__ import annotations

import inspect
import threading
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("opentelemetry.trace")

from opentelemetry.trace import Span, SpanContext  # after the look whether it is there

from atomr_mp_workers.requests.spans import LateSpan

USES = sorted(name for name, _ in inspect.getmembers(Span, inspect.isfunction) if not name.startswith("_"))


@pytest.mark.parametrize("name", USES)
def test_whatever_is_done_with_it_is_done_with_the_real_one(name: str) -> None:
    """All that OpenTelemetry's spans can, and what it returns."""
    real = Mock(spec=Span)
    make = Mock(return_value=real)
    span = LateSpan(make)
    assert not make.called
    given: dict[str, tuple[Any, ...]] = {"get_span_context": (), "is_recording": (), "end": (7,)}
    arguments = given.get(name, ("one",))
    answer = getattr(span, name)(*arguments)
    getattr(real, name).assert_called_once_with(*arguments)
    if name in {"get_span_context", "is_recording"}:
        assert answer is getattr(real, name).return_value
    span.is_recording()
    make.assert_called_once_with()


def test_threads_that_want_it_at_the_same_time_have_the_same() -> None:
    """The actor's thread and the loop."""
    entered, go = threading.Event(), threading.Event()
    real = Mock(spec=Span)

    def make() -> Span:
        entered.set()
        assert go.wait(30)
        return real

    span = LateSpan(make)
    threads = [threading.Thread(target=span.set_attribute, args=("name", number)) for number in range(3)]
    for thread in threads:
        thread.start()
    assert entered.wait(30)
    go.set()
    for thread in threads:
        thread.join()
    assert real.set_attribute.call_count == 3


def test_whoever_makes_it_may_ask_for_the_current_span() -> None:
    """As a span processor may when a span starts, or a log record that it writes: there is none yet."""

    def make() -> Span:
        contexts.append(span.get_span_context())
        return real

    real = Mock(spec=Span)
    contexts: list[SpanContext] = []
    span = LateSpan(make)
    thread = threading.Thread(target=span.is_recording, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert [context.is_valid for context in contexts] == [False]
    assert span.get_span_context() is real.get_span_context.return_value
