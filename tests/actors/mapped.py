"""Methods for maps: they square, refuse and note numbers, or die of them."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

from atomr_mp_workers import Actor, Context, method


class Mapped(Actor):
    """Takes numbers."""

    _device: int

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._device = context.device

    @method(idempotent=True)
    def square(self, number: int) -> int:
        """Return the square."""
        return number * number

    @method(idempotent=True)
    def where(self, item: int) -> list[int]:
        """Return device and item."""
        return [self._device, item]

    @method(idempotent=True)
    def refuse_3(self, item: Any) -> Any:
        """Return the item, except 3."""
        if item == 3:
            raise ValueError("not this one")
        return item

    @method(idempotent=True)
    def die_at_7(self, item: int) -> int:
        """Return the item, except 7."""
        if item == 7:
            _note(item)
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    @method(idempotent=True)
    def pass_gate(self, item: list[Any]) -> int:
        """Return the number of [gate, number], after waiting at the gate if there is one."""
        gate, number = item
        if gate:
            arrive(gate)
        return int(number)

    @method(idempotent=True)
    def root(self, number: float) -> float:
        """Return the square root."""
        return math.sqrt(number)

    @method(idempotent=True)
    def note(self, item: Any) -> list[float]:
        """Take [gate, number] or a number: note the number, wait at the gate if there is one; return the number twice.

        A number below 0 is refused.
        """
        gate, number = item if isinstance(item, list) else ("", item)
        _note(number)
        if gate:
            arrive(gate)
        if number < 0:
            raise ValueError("no number of ours")
        return [float(number)] * 2

    @method
    def note_once(self, item: list[Any]) -> int:
        """Do as `note`, but not twice with the same item."""
        _note(item[1])
        if item[0]:
            arrive(item[0])
        return int(item[1])

    @method
    def note_or_die(self, item: int) -> int:
        """Note the item and return it; die after 200."""
        _note(item)
        if item == 200:
            os.kill(os.getpid(), signal.SIGKILL)
        return item


def arrive(gate: str) -> None:
    """Say that we are here, and wait at the gate."""
    with Path(f"{gate}.here").open("ab", buffering=0) as here:
        here.write(b"%d\n" % os.getpid())
    with Path(f"{gate}.go").open("rb", buffering=0) as go:
        go.read(1)


def _note(item: int) -> None:
    """Leave a line that outlives this process."""
    with Path(os.environ["ATOMR_MP_TEST"], "runs").open("ab", buffering=0) as runs:
        runs.write(b"%d\n" % item)
