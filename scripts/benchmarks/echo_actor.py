"""The actor that the runtime's measurements call."""

from __future__ import annotations

import time
from pathlib import Path

from atomr_mp_workers import Actor, method


class Echo(Actor):
    """Does as little as possible."""

    @method
    def empty(self) -> None:
        """Answer."""

    @method
    def echo(self, payload: bytes) -> bytes:
        """Answer with what was sent."""
        return payload

    @method
    def hold(self, fifo: str, seconds: float) -> None:
        """Open a fifo for writing, so that its reader knows that this runs; then sleep."""
        Path(fifo).write_bytes(b".")
        time.sleep(seconds)
