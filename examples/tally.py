"""State of a world that changes, and stays right when ranks are replaced.

    python examples/tally.py

Two actors keep a total. Of `Copies` each rank has all of it, and a new rank gets the others'. Of `Parts` each rank has
a part in a file, from which its successor goes on. Callers number their changes, so a change that is sent again is not
made twice. The program kills each rank in turn, and then stops and starts the pool.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import atomr_mp
from atomr_mp import errors
from atomr_mp_workers import Actor, Context, method

FOLDER = "ATOMR_MP_EXAMPLE_FOLDER"
"""The variable that names the folder of the files."""


class Copies(Actor):
    """The same total on each rank. It is lost if all ranks are lost at a time."""

    def setup(self, context: Context) -> None:
        """Begin with nothing: the first call gets the state."""
        assert context.world is not None, "Copies runs in a world"
        self._world, self._epoch = context.world, 0
        self._state = np.zeros(2)
        """The number of the last change, and the total."""

    @method(idempotent=True)
    def add(self, number: int, amount: float) -> float:
        """Make a change, unless it is made already; return the total."""
        if self._epoch != self._world.epoch:  # a rank may be new, or a call may have been cut off on some
            furthest = int(self._world.all_gather(self._state)[:, 0].argmax())
            self._state = self._world.broadcast(self._state, root=furthest)
            self._epoch = self._world.epoch  # last: an epoch that ends meanwhile changes nothing
        if number > self._state[0] + 1:
            raise errors.InvalidRequest(f"change {number} comes before change {int(self._state[0]) + 1}")
        if number > self._state[0]:
            self._state = np.array([number, self._state[1] + amount])
        return float(self._state[1])


class Parts(Actor):
    """A part of the total on each rank, kept in a file of the rank's."""

    def setup(self, context: Context) -> None:
        """Go on from the file, which a former process of this rank has left."""
        assert context.world is not None, "Parts runs in a world"
        self._world, self._epoch = context.world, 0
        self._file = Path(os.environ[FOLDER]) / f"rank-{self._world.rank}.npy"

    @method(idempotent=True)
    def add(self, number: int, amount: float) -> float:
        """Make a change, unless it is made already; return the total."""
        if self._epoch != self._world.epoch:
            self._read()
        last = int(self._states[-1, 0])
        if number > last + 1:
            raise errors.InvalidRequest(f"change {number} comes before change {last + 1}")
        if number > last:
            change = np.array([[number, self._states[-1, 1] + amount / self._world.size]])
            self._write(np.concatenate([self._states[-1:], change]))
            self._world.barrier()  # no rank is more than one change ahead, so the one before is enough
        return float(self._world.all_reduce(self._states[-1:, 1])[0])

    def _read(self) -> None:
        """Go back to the last change that all ranks have."""
        states = np.load(self._file) if self._file.exists() else np.zeros((1, 2))
        common = self._world.all_reduce(states[-1:, 0], "min")[0]
        self._states: NDArray[np.float64] = states[states[:, 0] <= common]
        """The last two changes or fewer, each with its number and the part behind it."""
        self._epoch = self._world.epoch

    def _write(self, states: NDArray[np.float64]) -> None:
        """Replace the file as a whole: a process that is killed leaves the old one or the new one."""
        new = self._file.with_suffix(".new.npy")
        with new.open("wb") as file:
            np.save(file, states)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._file)
        self._states = states


def totals(actor: str, first: int) -> list[float]:
    """Return the totals behind four changes of 1.0 and the numbers from `first` on; a rank dies before two of them."""
    found = []
    worlds = {"sum": {"devices": [0, 1], "actors": [actor]}}
    with atomr_mp.start(actors=[f"{__file__}:{actor}"], gpus=2, backend="host", worlds=worlds) as pool:
        world = pool.world("sum")
        for number in range(first, first + 4):
            found.append(world.call(f"{actor}.add", number, 1.0).result())
            if number - first in {0, 2}:
                os.kill(pool.devices[(number - first) // 2].pid, signal.SIGKILL)
            assert world.call(f"{actor}.add", number, 1.0).result() == found[-1], "a change was made twice"
    return found


def main() -> None:
    """Run both."""
    print("copies, two ranks killed:", totals("Copies", 1))
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        print("parts, two ranks killed:", totals("Parts", 1))
        print("parts, in a new pool:", totals("Parts", 5))


if __name__ == "__main__":
    main()
