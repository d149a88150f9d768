"""Calls as their spans see them, and spans as their calls do. Types only."""

from __future__ import annotations

from typing import Protocol

from atomr_mp import errors


class TracedCall(Protocol):
    """A call."""

    trace: bytes | None
    """The context that goes with it."""
    span: CallSpan | None
    """Its span, if that is recorded."""

    @property
    def method(self) -> str:
        """The request: "Actor.method"."""

    @property
    def device(self) -> int:
        """Index of the device that it went to."""

    @property
    def generation(self) -> int:
        """The incarnation that it was sent to."""

    @property
    def error(self) -> errors.AtomrError | None:
        """What it ended with."""


class CallSpan(Protocol):
    """The span of one call."""

    def end(self, reply: TracedCall) -> None:
        """The call has its outcome. The thread that took it in, which others may wait for."""


class CallTracer(Protocol):
    """Makes clients' spans."""

    def begin(self, reply: TracedCall) -> None:
        """A call is made, in the current span: it takes a context along, and has a span if that is recorded."""

    def settle(self) -> None:
        """Do some of what is owed, or prepare: the calling thread has to wait for an answer in any case."""

    def flush(self) -> None:
        """Have all made that has ended."""

    def close(self) -> None:
        """Likewise, and have at once what ends from now on."""
