"""An actor with a queue that fills."""

from __future__ import annotations

import os
from pathlib import Path

from atomr_mp_workers import Actor, method


class Admitted(Actor):
    """Runs on its thread, so that its loop takes in requests meanwhile."""

    @method(thread=True)
    def hold(self, gate: str) -> None:
        """Wait at a gate."""
        with Path(f"{gate}.here").open("ab", buffering=0) as here:
            here.write(b"%d\n" % os.getpid())
        with Path(f"{gate}.go").open("rb", buffering=0) as go:
            go.read(1)

    @method(thread=True)
    def note(self, tag: str) -> None:
        """Leave a line."""
        with Path(os.environ["ATOMR_MP_TEST"], "runs").open("ab", buffering=0) as runs:
            runs.write(f"{tag}\n".encode())

    @method(thread=True, queue=3)
    def few(self, item: int) -> int:
        """Return the item."""
        return item

    @method(thread=True)
    def echo(self, item: int) -> int:
        """Return the item."""
        return item

    @method
    def ping(self) -> None:
        """Answer at once."""
