"""An actor whose batches never fill."""

from __future__ import annotations

from atomr_mp_workers import Actor, Batch, method
from tests.actors.probe import arrive


class Patient(Actor):
    """Waits for other requests that do not come."""

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
        arrive(gate)

    @method
    def alone(self) -> None:
        """Answer at once; in no batch."""
