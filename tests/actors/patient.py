"""An actor whose batches never fill."""

from __future__ import annotations

import os
from pathlib import Path

from atomr_mp_workers import Actor, Batch, method


class Patient(Actor):
    """Waits for others that do not come."""

    @method(batch=Batch(max_items=100, max_wait_s=0.2))
    def sizes(self, items: list[int]) -> list[int]:
        """Return for each item how many there were."""
        return [len(items) for _ in items]

    @method(batch=Batch(max_items=100, max_wait_s=0.5), thread=True)
    def sizes_on_thread(self, items: list[int]) -> list[int]:
        """Do the same on the actor's thread."""
        return [len(items) for _ in items]

    @method(thread=True)
    def hold_on_thread(self, gate: str) -> None:
        """Wait at a gate on the actor's thread."""
        Path(f"{gate}.here").write_bytes(b"%d\n" % os.getpid())
        with Path(f"{gate}.go").open("rb", buffering=0) as go:
            go.read(1)

    @method
    def alone(self) -> None:
        """Answer at once; in no batch."""
