"""OpenTelemetry's spans of the calls that this process makes, once it has asked for them; needs the extra `otel`.

Nothing of OpenTelemetry is imported before, and a call costs no more than a look whether it is wanted.
"""

from __future__ import annotations

import atexit
from typing import Any

from atomr_mp import errors
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.tracing.calls import CallTracer

__all__ = ["flush", "instrument", "uninstrument"]


tracer: CallTracer | None = None
"""What makes spans of calls; None as long as nobody wants them."""


def instrument(tracer_provider: Any = None) -> None:
    """Make a span of each call from now on, and send its context with it.

    With OpenTelemetry's SDK, no call waits for its span: it is made while another answer is waited for, if calls are
    close together, or by a thread some tenths of a second after the call's end, with the times that it had. Somebody
    else's tracer makes each at once.

    The worker's spans are its own process's: an actor's `setup` sets a provider up there and calls
    `atomr_mp_workers.tracing.instrument`.

    Args:
        tracer_provider: Of OpenTelemetry's SDK; None for the global one, which has been set then.

    Raises:
        ConfigurationError: The package opentelemetry-api is not installed; the message names the extra.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise errors.ConfigurationError(
            f"spans need opentelemetry-api, which cannot be imported: {error}; {how_to_install('opentelemetry')}"
        ) from error

    from atomr_mp.tracing.spans import EagerTracer, LateTracer

    global tracer  # noqa: PLW0603 - one place to look at for every call
    uninstrument()
    found = trace.get_tracer("atomr_mp", tracer_provider=tracer_provider)
    tracer = LateTracer(found) if LateTracer.suits(found) else EagerTracer(found)
    atexit.register(flush)  # runs before the end of a provider that was made before


def uninstrument() -> None:
    """Make no spans of what is called from now on; those of what has ended are made."""
    global tracer
    former, tracer = tracer, None
    if former is not None:
        atexit.unregister(flush)
        former.close()


def flush() -> None:
    """Make the spans of all calls that have ended; to be called before a provider is flushed or shut down."""
    if (current := tracer) is not None:
        current.flush()
