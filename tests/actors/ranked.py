"""An actor of a world, for tests of the epochs."""

from __future__ import annotations

import os
from typing import Any

from atomr_mp_workers import Actor, method


class Ranked(Actor):
    """Says which member it is, and adds up over all members."""

    def setup(self, context: Any) -> None:
        """Take the world."""
        self.world = context.world

    @method(idempotent=True)
    def who(self) -> list[int]:
        """Return the rank, the epoch and the process."""
        return [self.world.rank, self.world.epoch, os.getpid()]

    @method(idempotent=True)
    def summed(self, value: Any) -> Any:
        """Return a sum over the members, each of which has its rank's multiple."""
        return self.world.all_reduce(value * (self.world.rank + 1))
