"""Makes buffers: new arrays in slabs, and results in memory that their client can open. Any thread."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol import dtypes, foreign, token
from atomr_mp.protocol.flow.limits import MAX_PAYLOAD_BYTES
from atomr_mp.protocol.layout import Layout
from atomr_mp_workers import timeline
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from atomr_mp_workers.memory.blocks import OURS, SEVERAL, Holder, OwnSlab
from atomr_mp_workers.memory.slabs import SlabTable

NONCE_BITS: Final = 24


class Buffers:
    """Makes a device's buffers.

    Args:
        device: The device.
        current: This incarnation's token.
        slabs: The slabs that they lie in.
    """

    def __init__(self, device: WorkerDevice, current: bytes, slabs: SlabTable) -> None:
        self.device: Final = device
        self.ours: Final = Holder(OURS)
        self.several: Final = Holder(SEVERAL)
        """Holds memory made in batches of several sessions; no session ever gets it."""
        self.copied = 0
        """Number of results that had to be copied into memory of their session."""
        self._token: Final = current
        _, self._index, _ = token.unpack(current)
        self._slabs: Final = slabs
        self._numbers = itertools.count(1)

    def allocate(
        self, holder: Holder, dtype: str, shape: Iterable[int], device: WorkerDevice | None = None
    ) -> DeviceArray:
        """Return a new array without gaps, its content undefined. Any thread.

        Args:
            holder: Its holder.
            dtype: Name of its element type.
            shape: Its lengths.
            device: The device whose memory it lies in; by default this process's device.

        Raises:
            InvalidRequest: Such an array cannot exist.
            OutOfMemory: There is no room, even after all empty slabs were freed.
        """
        layout = Layout.contiguous(dtype, tuple(shape))
        slab, extent, offset = self._slabs.room(holder, layout.nbytes, device or self.device)
        return self._new(slab, extent, layout._replace(offset=offset))

    def keep(self, holder: Holder, array: Any, device: WorkerDevice | None = None) -> DeviceArray:
        """Return a copy of an array, of the host or of this device, in a new buffer. Any thread.

        Raises:
            InvalidRequest: Its element type cannot cross the wire.
            OutOfMemory: There is no room.
        """
        kept = self.allocate(holder, dtypes.name_of(array.dtype), array.shape, device)
        timeline.copy(self.device, array, kept.array, "copy to device")
        return kept

    def hand_out(self, holder: Holder, array: Any, layout: Layout) -> DeviceArray | None:
        """Return an array of user code as a buffer, if its memory is in a slab of this holder; else None.

        Args:
            holder: The holder whose slab it may be in.
            array: Keeps the memory.
            layout: Its layout in the address space.
        """
        if not layout.is_contiguous():
            return None
        for slab in holder.slabs:
            offset = layout.offset - slab.memory.address
            if slab.device is self.device and 0 <= offset <= slab.memory.nbytes - layout.nbytes:
                return self._new(slab, array, layout._replace(offset=offset))
        return None

    def place(self, holder: Holder, array: Any) -> DeviceArray | None:
        """Return the buffer that a result is sent in, None if it goes through the socket.

        A large host array is copied into memory that the client can open. A device array is handed out itself if it
        lies in memory of this holder, which user code cannot tell from other memory; otherwise a copy is.
        """
        ours = self.device.to_array(array)
        if ours is not None:
            handed_out = self.hand_out(holder, *ours)
            if handed_out is None:
                handed_out = self.keep(holder, ours[0])
                self.copied += 1
            return handed_out
        if hasattr(array, "__cuda_array_interface__"):
            return None
        try:
            placed = self.keep(holder, array, self.device.host)
        except errors.OutOfMemory:
            if array.nbytes > MAX_PAYLOAD_BYTES:
                raise
            return None
        placed.value = True
        return placed

    def moved(self, holder: Holder, value: Any) -> Any:
        """Return a result of a batch of several sessions with its arrays moved to its own session's memory. Any thread.

        Raises:
            OutOfMemory: There is no room.
        """
        if isinstance(value, DeviceArray):
            slab = self._slabs.by_number.get(value.block.slab_number)
            ours = not value.block.foreign and slab is not None and slab.holder is self.several
            return self.keep(holder, value.array) if ours else value
        if foreign.is_model(value):
            value = foreign.dump(value)
        if isinstance(value, dict):
            return {name: self.moved(holder, each) for name, each in value.items()}
        return [self.moved(holder, each) for each in value] if isinstance(value, list | tuple) else value

    def _new(self, slab: OwnSlab, owner: object, layout: Layout) -> DeviceArray:
        """Return a new buffer with an array in it."""
        buffer = next(self._numbers) << NONCE_BITS | int.from_bytes(os.urandom(NONCE_BITS // 8), "big")
        block = Block(
            slab.memory,
            slab.memory.bytes(owner, layout.offset, layout.nbytes),
            token=self._token,
            device=self._index,
            buffer=buffer,
            slab_number=slab.number,
            offset=layout.offset,
            nbytes=layout.nbytes,
            foreign=False,
        )
        return DeviceArray(block, layout, writable=True)
