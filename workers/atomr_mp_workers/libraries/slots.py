"""Pinned host memory for single numbers that CUDA libraries write, so that no thread has to wait for them.

With unified addressing its address is valid on the device too (CUDA Programming Guide, "Mapped Memory"). The host sees
the device's writes once an event recorded after them has come.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

import cupy
import numpy as np

from atomr_mp_workers.libraries.holding import holding

SLOT_BYTES: Final = 16
"""Bytes of the largest type, complex128."""

PAGE_BYTES: Final = 4096


class Slot(NamedTuple):
    """Room for a number."""

    address: int
    memory: np.ndarray[Any, Any]


class Slots:
    """Free slots; the loop's thread only. Their number grows to the most that were ever in use at a time."""

    def __init__(self) -> None:
        self._free: list[Slot] = []
        self._held: set[int] = set()
        """Addresses of slots that belong to a graph."""

    def take(self) -> Slot:
        """Return a slot that is not in use."""
        if not self._free:
            page = cupy.cuda.alloc_pinned_memory(PAGE_BYTES)
            memory = np.frombuffer(page, np.uint8, PAGE_BYTES)  # holds the page
            self._free += [Slot(page.ptr + at, memory[at : at + SLOT_BYTES]) for at in range(0, PAGE_BYTES, SLOT_BYTES)]
        slot = self._free.pop()
        graph = holding()
        if graph is not None:
            self._held.add(slot.address)
            graph.at_end(partial(self._let_go, slot))
        return slot

    def give(self, slot: Slot) -> None:
        """Take a slot back, unless a graph writes to it again."""
        if slot.address not in self._held:
            self._free.append(slot)

    def _let_go(self, slot: Slot) -> None:
        """Take a slot back that graphs have finished writing. Any thread."""
        self._held.discard(slot.address)
        self._free.append(slot)

    def read(self, slot: Slot, dtype: np.dtype[Any]) -> Any:
        """Return the number that the device has written, and take the slot back."""
        number = slot.memory[: dtype.itemsize].view(dtype)[0].item()
        self.give(slot)
        return number
