"""Actors whose methods take many requests at a time: tests see their batches, and hold them at a gate."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp import errors
from atomr_mp_workers import Actor, Batch, Context, DeviceArray, by_shape, method

NOW = Batch(max_items=8, max_wait_s=0)
"""A batch takes the requests that have arrived."""
TOGETHER = Batch(max_items=4, max_wait_s=30)
"""Only full batches go, as far as tests have patience."""


class Batched(Actor):
    """Runs its batches on the loop, unless a method says otherwise."""

    _context: Context

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._context = context

    @method(batch=TOGETHER)
    def sizes(self, items: list[Any]) -> list[Any]:
        """Return for each item how many there were, and the item."""
        return [[len(items), item] for item in items]

    @method(batch=TOGETHER, thread=True)
    def sizes_on_thread(self, items: list[Any]) -> list[Any]:
        """Do the same on the actor's thread."""
        return [[len(items), item] for item in items]

    @method(batch=NOW, thread=True)
    def hold(self, gates: list[str], items: list[int]) -> list[list[int]]:
        """Return all items of the batch, after waiting at a gate if one of them has it."""
        for gate in filter(None, gates):
            arrive(gate)
        return [items for _ in items]

    @method(batch=NOW)
    def hold_on_loop(self, gates: list[str], items: list[int]) -> list[list[int]]:
        """Do the same on the loop."""
        for gate in filter(None, gates):
            arrive(gate)
        return [items for _ in items]

    @method(thread=True)
    def hold_alone(self, gate: str) -> None:
        """Wait at a gate on the thread, as a single request."""
        arrive(gate)

    @method(batch=TOGETHER)
    def roots(self, numbers: list[float]) -> list[Any]:
        """Return the square roots, and an exception for negative numbers."""
        return [number**0.5 if number >= 0 else ValueError(f"{number} has no root") for number in numbers]

    @method(batch=TOGETHER)
    def refuse(self, kinds: list[str]) -> list[Any]:
        """Return, or raise, what each item asks for."""
        if "raise" in kinds:
            raise ZeroDivisionError("all of them")
        if "short" in kinds:
            return kinds[1:]
        if "none" in kinds:
            return None  # type: ignore[return-value]
        return [OF_KIND.get(kind, kind) for kind in kinds]

    @method(batch=Batch(max_items=4, max_wait_s=30, key="parity"))
    def by_parity(self, numbers: list[int]) -> list[list[int]]:
        """Return all numbers of the batch."""
        return [numbers for _ in numbers]

    def parity(self, number: int) -> int:
        """Return the parity of a number, by which batches are formed."""
        if number < 0:
            raise ValueError("no parity")
        return number % 2

    @method(batch=Batch(max_items=2, max_wait_s=30, key=by_shape))
    def stacked(self, arrays: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """Return each array, doubled in one operation."""
        return list(2 * np.stack(arrays))

    @method(batch=Batch(max_items=100, max_bytes=1000, max_wait_s=30))
    def by_bytes(self, texts: list[str]) -> list[int]:
        """Return how many there were."""
        return [len(texts) for _ in texts]

    @method(batch=Batch(max_items=100, max_bytes=300_000, max_wait_s=0), thread=True)
    def arrays_by_bytes(self, arrays: list[Any], gates: list[str]) -> list[int]:
        """Return how many bytes there were together, after waiting at the first one's gate."""
        if gates[0]:
            arrive(gates[0])
        return [sum(each.nbytes for each in arrays) for _ in arrays]

    @method
    def keep(self, nbytes: int) -> DeviceArray:
        """Return an array in device memory."""
        return self._context.keep(np.zeros(nbytes, np.uint8))

    @method(batch=TOGETHER)
    def die(self, gates: list[str]) -> list[None]:
        """Die while all of them run."""
        arrive(gates[0])
        os.kill(os.getpid(), signal.SIGKILL)
        return [None for _ in gates]

    @method(batch=TOGETHER)
    def kept(self, numbers: list[float]) -> list[DeviceArray]:
        """Return an array in device memory for each number."""
        return [self._context.keep(np.full(3, number)) for number in numbers]

    @method(batch=TOGETHER)
    def sums(self, arrays: list[NDArray[np.float64]]) -> list[float]:
        """Return the sum of each array, or ref."""
        return [float(array.sum()) for array in arrays]

    @method(batch=NOW, writes=["arrays"])
    def increment(self, arrays: list[DeviceArray]) -> list[int]:
        """Add one to each array in place; return how many arrays there were."""
        for array in arrays:
            np.add(array.array, 1, out=array.array)
        return [len(arrays) for _ in arrays]

    @method
    def alone(self, item: int) -> int:
        """Return the item; on the loop, and no batch."""
        return item


OF_KIND = {
    "exception": KeyError("mine"),
    "typed": errors.OutOfMemory("no room for this one", requested_bytes=7),
    "unsendable": {1, 2, object()},
    "exit": SystemExit(3),
}


def arrive(gate: str) -> None:
    """Say that we are here, and wait at the gate."""
    with Path(f"{gate}.here").open("ab", buffering=0) as here:
        here.write(b"%d\n" % os.getpid())
    with Path(f"{gate}.go").open("rb", buffering=0) as go:
        go.read(1)
