"""An actor whose requests wait for each other, and for the loop: a trace tells the waits from the work."""

from __future__ import annotations

import time
from collections.abc import Iterator

from atomr_mp_workers import Actor, Batch, method
from tests.actors.probe import arrive


class Waiting(Actor):
    """Has one thread."""

    @method(thread=True, batch=Batch(max_items=3, max_wait_s=0))
    def nap_together(self, seconds: list[float]) -> list[None]:
        """Take as long as the longest of these."""
        time.sleep(max(seconds))
        return [None] * len(seconds)

    @method(thread=True)
    def nap(self, seconds: float) -> None:
        """Take so long."""
        time.sleep(seconds)

    @method(thread=True)
    def parts(self, count: int) -> Iterator[int]:
        """Count."""
        yield from range(count)

    @method
    def hold_the_loop(self, gate: str) -> None:
        """Wait at a gate, and take nothing back from threads meanwhile."""
        arrive(gate)
