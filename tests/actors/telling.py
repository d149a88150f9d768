"""An actor for tests of logs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from atomr_mp import errors
from atomr_mp_workers import Actor, method
from tests.actors import probe


class Telling(Actor):
    """Prints, raises and crashes."""

    @method
    def noted(self, text: str) -> None:
        """Print a text."""
        print(f"noted {text}", flush=True)

    @method
    def fail(self, text: str) -> None:
        """Raise an exception with a text."""
        raise ValueError(text)

    @method(thread=True)
    def breaks(self, after: int) -> Iterator[int]:
        """Yield some numbers, then raise."""
        yield from range(after)
        raise ValueError("on purpose")

    @method(thread=True)
    def wait_at(self, gate: str) -> None:
        """Report that it runs, and wait."""
        probe.arrive(gate)

    @method
    def poison(self) -> None:
        """Lose the context."""
        raise errors.ContextPoisoned("on purpose")

    @method
    def crash(self) -> None:
        """Read where nothing is."""
        ctypes.string_at(0)
