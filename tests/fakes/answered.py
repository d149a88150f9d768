"""Replies that have their outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from atomr_mp import errors


class Answered:
    """A reply that has its outcome, or gets it from the test."""

    def __init__(self, value: Any = None, error: errors.AtomrError | None = None) -> None:
        self.value, self.error = value, error
        self.done = self.is_over = True
        self.device, self.cancelled = 0, False

    def exception(self, _timeout_s: float | None = None) -> errors.AtomrError | None:
        """Return the error."""
        return self.error

    def result(self, _timeout_s: float | None = None) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value

    def cancel(self) -> None:
        """Remember it."""
        self.cancelled = True

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back at once."""
        callback(self)

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        return self.result()
