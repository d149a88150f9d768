"""An actor whose batched methods may be run twice, so that maps send it many items in one call."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp import errors
from atomr_mp_workers import Actor, Batch, Context, DeviceArray, method

FOUR = Batch(max_items=4, max_wait_s=0.01)


class Parcelled(Actor):
    """Each method returns a result for each of its items."""

    _context: Context

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._context = context
        self._rows = np.empty((4, 2**20), "float32")

    @method(batch=Batch(max_items=8, max_wait_s=0.01), idempotent=True, thread=True)
    def count(self, items: list[Any]) -> list[list[Any]]:
        """Return for each item how many there were, and the item."""
        return [[len(items), item] for item in items]

    @method(batch=Batch(max_items=8, max_wait_s=0.01, key="parity"), idempotent=True)
    def by_parity(self, numbers: list[int]) -> list[list[int]]:
        """Return all numbers of the batch."""
        return [numbers for _ in numbers]

    def parity(self, number: int) -> int:
        """Return what numbers of a batch have in common."""
        if number == -2:
            raise StrangeError
        if number < 0:
            raise ValueError("no parity")
        return number % 2

    @method(batch=FOUR, idempotent=True)
    def roots(self, numbers: list[float]) -> list[Any]:
        """Return the square roots; for a negative number an exception, or a value that cannot be sent."""
        return [number**0.5 if number >= 0 else OF[int(number)] for number in numbers]

    @method(batch=FOUR, idempotent=True)
    def refuse(self, numbers: list[int]) -> list[int]:
        """Raise if one of them is negative."""
        if min(numbers) < 0:
            raise ZeroDivisionError("all of them")
        return numbers

    @method(batch=FOUR, idempotent=True)
    def texts(self, lengths: list[int]) -> list[str]:
        """Return texts of these lengths."""
        return ["x" * length for length in lengths]

    @method(batch=FOUR, idempotent=True)
    def doubled(self, arrays: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Return twice each array, or ref."""
        return [2 * array for array in arrays]

    @method(batch=FOUR, idempotent=True)
    def rows(self, lengths: list[int]) -> NDArray[np.float32]:
        """Return a row of the longest length for each, all of that length; the next ones in the same memory."""
        self._rows[:] = np.nan
        rows = self._rows[: len(lengths), : max(lengths)]
        rows[:] = np.array(lengths)[:, None]
        return rows

    @method(batch=Batch(max_items=256, max_wait_s=0.01), idempotent=True)
    def verbose(self, numbers: list[int]) -> list[Exception]:
        """Return an error with a long text for each."""
        return [ValueError("\u20ac" * 60000) for _ in numbers]

    @method(batch=Batch(max_items=8, max_wait_s=0.01), idempotent=True)
    def strange(self, numbers: list[int]) -> list[Any]:
        """Return the numbers, and for 3 an object that raises when it is looked at."""
        return [Strange() if number == 3 else number for number in numbers]

    @method(batch=Batch(max_items=8, max_wait_s=0.01, key=id), idempotent=True, thread=True)
    def hold_one(self, gates: list[str]) -> list[int]:
        """Wait at a gate, in batches of one item."""
        return self.hold(gates)

    @method(batch=FOUR, idempotent=True)
    def kept(self, numbers: list[float]) -> list[DeviceArray]:
        """Return an array in device memory for each number."""
        return [self._context.keep(np.full(3, number)) for number in numbers]

    @method(batch=FOUR, idempotent=True)
    def die(self, items: list[list[Any]]) -> list[int]:
        """Note the numbers; die if one of the items says so."""
        for number, how in items:
            with Path(os.environ["ATOMR_MP_TEST"], "runs").open("ab", buffering=0) as runs:
                runs.write(f"{number}\n".encode())
            match how:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "poison":
                    raise errors.ContextPoisoned("on purpose", status=700)
        return [number for number, _ in items]

    @method(batch=Batch(max_items=8, max_wait_s=30), idempotent=True, thread=True)
    def hold(self, gates: list[str]) -> list[int]:
        """Return how many there were, after waiting at a gate if one of them has it."""
        for gate in filter(None, gates):
            with Path(f"{gate}.here").open("ab", buffering=0) as here:
                here.write(b"%d\n" % os.getpid())
            with Path(f"{gate}.go").open("rb", buffering=0) as go:
                go.read(1)
        return [len(gates) for _ in gates]

    @method(batch=Batch(max_items=8, max_wait_s=0.01), idempotent=True, queue=4)
    def few(self, items: list[int]) -> list[int]:
        """Return the items; only few may wait."""
        return items

    @method(batch=FOUR, idempotent=True)
    def nested(self, depths: list[int]) -> list[Any]:
        """Return lists nested so deep."""
        found: list[Any] = [None] * len(depths)
        for at, depth in enumerate(depths):
            for _ in range(depth):
                found[at] = [found[at]]
        return found

    @method(idempotent=True)
    def nested_single(self, depth: int) -> Any:
        """Return a list nested so deep."""
        return self.nested([depth])[0]

    @method(idempotent=True)
    def single(self, item: int) -> int:
        """Return the item; it takes no others."""
        return item


class StrangeError(Exception):
    """Raised when the object is looked at."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Strange:
    """Raises when its array interface is asked for."""

    @property
    def __cuda_array_interface__(self) -> Any:
        """Raise: code that looks for array data asks for it."""
        raise RuntimeError("no interface")


OF = {-1: ValueError("no root"), -2: errors.OutOfMemory("no room for this one", requested_bytes=7), -3: {1, object()}}
