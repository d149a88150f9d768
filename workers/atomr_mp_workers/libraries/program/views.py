"""The arrays of a program's steps before they exist: views of its slots."""

from __future__ import annotations

from typing import Final

from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.memory.arrays import DeviceArray


class SlotView(Operand):
    """An array of a slot, before it exists.

    Args:
        slot: Number of the slot.
        layout: Its layout; for a slot that the caller gives, in its memory.
        memory: Name of the memory.
        within: Its layout in its slot.
    """

    def __init__(self, slot: int, layout: Layout, memory: object, within: Layout) -> None:
        self.slot: Final = slot
        self.layout = layout
        self.within: Final = within
        self._memory = memory

    @property
    def memory(self) -> object:
        """Name of the memory: views of one slot share it, and so do slots whose refs share a buffer."""
        return self._memory

    def of(self, slots: list[DeviceArray]) -> DeviceArray:
        """Return the array in a run, whose slots are these."""
        array = slots[self.slot]
        return array.of_layout(placed(array.layout, self.within))


def placed(slot: Layout, within: Layout) -> Layout:
    """Return the layout of a slot's view in the slot's memory."""
    return within.at(slot.offset + within.offset)
