"""An actor whose devices load at a gate, with a method of each kind whose declaration matters to its callers."""

from __future__ import annotations

import os
from collections.abc import Generator

from atomr_mp_workers import Actor, Batch, Context, method
from tests.actors.probe import arrive

OWN_DEADLINE_S = 47.0
"""Unlike the one that callers have by default."""


class Loading(Actor):
    """Waits in `setup` at the gate "load" of its ledger."""

    def setup(self, _context: Context) -> None:
        """Wait."""
        arrive(f"{os.environ['ATOMR_MP_TEST']}/load")

    @method(idempotent=True, deadline_s=OWN_DEADLINE_S)
    def add(self, left: int, right: int = 0) -> int:
        """Return a sum."""
        return left + right

    @method(idempotent=True, batch=Batch(max_items=8))
    def square(self, n: list[int]) -> list[int]:
        """Return squares."""
        return [x * x for x in n]

    @method(thread=True, resumable=True, deadline_s=OWN_DEADLINE_S)
    def count(self, upto: int, first: int = 0, start: int = 0) -> Generator[int, None, int]:
        """Stream numbers, and return how many in all."""
        yield from range(first + start, upto)
        return upto
