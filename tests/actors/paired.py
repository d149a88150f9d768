"""Actors with several threads."""

from __future__ import annotations

import threading
from typing import Any, Final

from atomr_mp_workers import Actor, Batch, Context, DeviceArray, method
from tests.actors.probe import arrive

DEADLINE_S: Final = 30.0


class Paired(Actor):
    """Has two threads, whose requests can meet."""

    hang_timeout_s = 1.0

    def setup(self, context: Context) -> None:
        """Say how many threads there are."""
        del context
        self.threads = 2
        self._met = threading.Barrier(2)
        self._last = 0

    @method(thread=True)
    def meet(self) -> int:
        """Wait for another one that runs at the same time; return this thread."""
        self._met.wait(DEADLINE_S)
        return threading.get_ident()

    @method(thread=True, batch=Batch(max_items=2, max_wait_s=30))
    def meet_in_batch(self, items: list[int]) -> list[list[int]]:
        """Do the same; return all items of the batch."""
        self._met.wait(DEADLINE_S)
        return [items for _ in items]

    @method(thread=True, hang_timeout_s=600)
    def hold(self, gate: str) -> None:
        """Wait at a gate."""
        arrive(gate)

    @method(thread=True)
    def hang(self) -> None:
        """Never end."""
        threading.Event().wait()

    @method(thread=True, writes=["target"], hang_timeout_s=600)
    def double_and_add(self, target: DeviceArray, number: float, gate: str) -> None:
        """Do that to every element, after a wait at a gate, if there is one."""
        if gate:
            arrive(gate)
        target.array[...] = 2 * target.array + number

    @method(thread=True)
    def count(self) -> int:
        """Return how often this was called; the other thread is not to call it meanwhile."""
        self._last += 1
        return self._last


class Threadless(Actor):
    """Cannot run anything."""

    threads: Any = 0

    @method(thread=True)
    def wrong(self) -> None:
        """Never run."""
