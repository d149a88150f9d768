"""Views and reads of buffers by clients: they count from the arrival of their request."""

from __future__ import annotations

from typing import Final, cast

from atomr_mp.protocol.libraries import memory
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.store import Store


class Views:
    """Notes views and reads.

    Args:
        store: The device's memory.
    """

    def __init__(self, store: Store) -> None:
        self._store: Final = store

    def admit(self, request: memory.Borrow, holder: Holder) -> None:
        """Note a view or a read: later writers must find it."""
        assert isinstance(request.array, DeviceArray)
        if request.passing:
            arrays = cast("list[DeviceArray]", [request.array, *request.others])
            self._store.begin_read(holder, arrays, request.borrow)
        else:
            self._store.open_view(holder, request.array, request.borrow, write=request.write)

    def withdraw(self, request: memory.Borrow, holder: Holder) -> None:
        """Forget a view or a read that is refused: it excludes no other, and no request waits for it."""
        self._store.close_view(holder, request.borrow)
