"""An actor of a world whose programs have collectives among their steps, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Context, method


class Recorded(Actor):
    """Records its program once."""

    def setup(self, context: Context) -> None:
        """Record a program, and rehearse it."""
        self.keep = context.keep
        weight = context.empty([6], "float64")
        weight.array[:] = context.world.rank + 1.0
        with context.libraries.program() as self.program:
            x = self.program.input("x", 6, "float64")
            y = self.program.elementwise.multiply(x, weight)
            self.program.returns(self.program.world.all_reduce(y))
        ones = context.empty([6], "float64")
        ones.array[:] = 1.0
        self.alone = float(self.program.run(x=ones).array[0])

    @method(idempotent=True)
    def run(self, x: NDArray[np.float64]) -> Any:
        """Return the sum over the ranks of x times rank + 1."""
        return self.program.run(x=self.keep(x)).array.copy()

    @method(idempotent=True)
    def rehearsed(self) -> float:
        """Return what this rank's data alone gave."""
        return self.alone
