"""An actor of a world that counts its executions where they outlast its process."""

from __future__ import annotations

import os

import numpy as np

from atomr_mp_workers import Actor, Context, method


class Counted(Actor):
    """Notes each begin by its rank in a file, and meets the others."""

    def setup(self, context: Context) -> None:
        """Keep the world."""
        assert context.world is not None
        self._world = context.world

    @method(idempotent=True)
    def again(self, file: str) -> float:
        """Count, and meet; it may run twice."""
        return self._count(file)

    @method
    def once(self, file: str) -> float:
        """Count, and meet; it may not."""
        return self._count(file)

    def _count(self, file: str) -> float:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, b"%d\n" % self._world.rank)
        os.close(descriptor)
        return float(self._world.all_reduce(np.ones(1))[0])
