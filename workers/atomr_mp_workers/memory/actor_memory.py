"""The memory that actors get: it belongs to the session for which they work, or to this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout
from atomr_mp_workers.device.base import SlabMemory
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.store import Store


class ActorMemory:
    """Makes arrays for actors; any thread.

    Args:
        store: The device's memory.
        holder: Returns the memory's holder.
    """

    def __init__(self, store: Store, holder: Callable[[], Holder]) -> None:
        self._store = store
        self.holder: Final = holder
        self.ours: Final = store.buffers.ours

    def empty(self, dtype: str, shape: Iterable[int]) -> DeviceArray:
        """Return a new array, its content undefined."""
        return self._store.buffers.allocate(self.holder(), dtype, shape)

    def array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a new array of this backend, which may be written to; its memory is free with the last view of it."""
        made = self.empty(dtypes.name_of(dtype), shape)
        made.writable = True
        return made.array

    def own(self, array: Any) -> DeviceArray:
        """Return a row-major array as a buffer: itself if it was made by `array` on the host, else a copy."""
        if self._store.device.asynchronous:
            return self.keep(array)
        layout = Layout(dtypes.name_of(array.dtype), array.shape, array.strides, array.ctypes.data)
        return self._store.buffers.hand_out(self.holder(), array, layout) or self.keep(array)

    def keep(self, array: Any) -> DeviceArray:
        """Return a copy of an array, which may be written to from then on."""
        kept = self._store.buffers.keep(self.holder(), array)
        self._store.device.await_read(array)
        return kept

    def take(self, holder: Holder, nbytes: int) -> tuple[SlabMemory, object, int]:
        """Return room in a holder's memory: the slab, the object that keeps the room taken, and its offset."""
        slab, extent, offset = self._store.slabs.room(holder, nbytes, self._store.device)
        return slab.memory, extent, offset
