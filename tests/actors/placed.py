"""Actors that only some devices have, which note where they are loaded; and one that holds and uses memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Batch, Context, DeviceArray, method
from tests.actors.probe import arrive, note


class Everywhere(Actor):
    """Says where it runs."""

    def __init__(self) -> None:
        note(f"{os.getpid()}:{type(self).__name__}", "made")

    def setup(self, context: Context) -> None:
        """Keep the context, and note the device."""
        self._context = context
        note(f"{type(self).__name__}:{context.device}", "loaded")

    @method(idempotent=True)
    def where(self, _item: int = 0) -> int:
        """Return the device."""
        return self._context.device

    @method()
    def hold(self, gate: str) -> int:
        """Wait at the gate, and return the device."""
        arrive(gate)
        return self._context.device

    @method(thread=True)
    def count(self, parts: int) -> Iterator[int]:
        """Yield the device so many times."""
        for _ in range(parts):
            yield self._context.device

    @method(batch=Batch(max_items=4, max_wait_s=0), idempotent=True)
    def together(self, items: list[int]) -> list[int]:
        """Return the device for each."""
        return [self._context.device for _ in items]

    @method()
    def total(self, array: NDArray[np.float64]) -> float:
        """Return the sum of a ref's elements."""
        return float(array.sum())

    @method()
    def ones(self, count: int) -> DeviceArray:
        """Return new memory of the device."""
        made = self._context.empty((count,), "float64")
        made.array[...] = 1
        return made


class Here(Everywhere):
    """The same, for some devices."""


class There(Everywhere):
    """The same, for others."""
