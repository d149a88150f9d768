"""Actors whose `setup` needs packages that are not installed."""

from __future__ import annotations

import sys

from atomr_mp_workers import Actor, Context, method, tracing


class Lacking(Actor):
    """Imports a module that does not exist."""

    def setup(self, context: Context) -> None:
        """Import it."""
        del context
        import module_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401

    @method
    def nothing(self) -> None:
        """Do nothing."""


class Narrow(Lacking):
    """Makes an array of a type that needs ml-dtypes."""

    def setup(self, context: Context) -> None:
        """Make it."""
        _hide("ml_dtypes")
        context.empty((1,), "bfloat16").array.fill(0)


class Untraced(Lacking):
    """Wants spans, which need OpenTelemetry."""

    def setup(self, context: Context) -> None:
        """Ask for them."""
        del context
        _hide("opentelemetry")
        tracing.instrument()


def _hide(name: str) -> None:
    """Hide a module, as if it were not installed."""
    for loaded in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[loaded]
    sys.modules[name] = None  # type: ignore[assignment]
