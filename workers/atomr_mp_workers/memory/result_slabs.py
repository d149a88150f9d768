"""Hands slabs with results by value to the supervisor, whose descriptors outlive this process."""

from __future__ import annotations

from typing import Final

from atomr_mp.protocol.messages import control
from atomr_mp_workers.memory.blocks import OwnSlab
from atomr_mp_workers.wire.control import ControlChannel


class ResultSlabs:
    """The slabs that the supervisor keeps open too.

    Args:
        channel: The control channel; the supervisor reads its messages even if this process ends at once.
    """

    def __init__(self, channel: ControlChannel) -> None:
        self._channel: Final = channel

    def hand_in(self, slab: OwnSlab) -> None:
        """Send a slab's descriptor; memory without one, such as a GPU's, ends with this process."""
        export = slab.memory.export()
        if export.descriptor is not None:
            self._channel.send(control.ResultSlab(slab.holder.number, slab.number, export.nbytes), export.descriptor)

    def freed(self, slab: OwnSlab) -> None:
        """Report that a slab is empty and freed. Any thread."""
        self._channel.send(control.ResultSlabFreed(slab.holder.number, slab.number))
