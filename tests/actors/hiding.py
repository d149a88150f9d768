"""An actor of a world, for tests: collectives in `finally`, and ranks that leave the others waiting."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from atomr_mp_workers import Actor, Context, method


class Hiding(Actor):
    """What a test asks of a rank; the same request reaches all of them."""

    def setup(self, context: Context) -> None:
        """Keep the world."""
        assert context.world is not None
        self.world = context.world
        self.count = 0

    @method
    def layers(self, rank: int, where: str) -> int:
        """Raise on one rank where others are in a collective, or have ended, and meet in `finally`."""
        try:
            for layer in range(3):
                if layer == 1 and self.world.rank == rank:
                    raise ValueError(f"layer {layer} of rank {rank} is bad")
                if layer == 1 and where == "others have ended":
                    return layer
                self.world.all_reduce(np.ones(2))
            return 3
        finally:
            if where == "others meet" or self.world.rank == rank:
                self.world.barrier()

    @method(thread=True)
    def tokens(self, rank: int) -> Generator[int, None, int]:
        """Yield, raise on one rank, and meet in `finally`."""
        try:
            for number in range(4):
                self.world.barrier()
                if number == 2 and self.world.rank == rank:
                    raise ValueError(f"token {number} of rank {rank} is bad")
                yield number
            return 0
        finally:
            self.world.barrier()

    @method
    def leave(self, rank: int) -> int:
        """Leave the others waiting on one rank."""
        if self.world.rank != rank:
            self.world.barrier()
        return 1

    @method
    def add(self) -> int:
        """Count a call."""
        self.count += 1
        return self.count

    @method
    def added(self) -> Generator[int, None, int]:
        """Count a stream."""
        self.count += 1
        yield self.count
        return self.count

    @method
    def epoch(self) -> int:
        """Return the epoch."""
        return int(self.world.epoch)
