"""Maps other devices' slabs: at once, or on a thread of its own where the loop must not wait for the driver."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp_workers.device.base import SlabMemory
from atomr_mp_workers.memory.store import Store

NO_DESCRIPTOR: Final = (
    "its file descriptor did not come. Either the process has none left: raise its limit (ulimit -n), or have its "
    "actors close what they open; or too many of this user's are under way"
)


class _Opened(NamedTuple):
    """A slab of another device, or the error that kept it from being mapped."""

    order: control.ForeignSlab
    memory: SlabMemory | errors.AtomrError


class ForeignSlabs:
    """Opens slabs of other devices for sessions.

    Args:
        store: Takes the slabs.
        wake: Has the loop take slabs that were opened elsewhere.
    """

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        self._store: Final = store
        self._wake: Final = wake
        self._opened: deque[_Opened] = deque()

    def open(self, order: control.ForeignSlab, descriptor: int | None) -> bool:
        """Map a slab; return False if a thread does that, so that the session's calls have to wait.

        Args:
            order: The slab, and its session.
            descriptor: Opens it on the host; owned from here on.
        """
        if descriptor is None and not order.handle:
            self._take(_Opened(order, errors.Overloaded(NO_DESCRIPTOR)))
            return True
        if not self._store.slabs.quiet:
            self._take(self._open(order, descriptor))
            return True
        # A daemon: a driver that does not answer must not keep a worker alive that was told to leave.
        threading.Thread(target=self._open_elsewhere, args=(order, descriptor), name="opener", daemon=True).start()
        return False

    def take(self) -> Iterator[int]:
        """Take the slabs that were opened elsewhere, and yield the session's number of each."""
        while self._opened:
            opened = self._opened.popleft()
            self._take(opened)
            yield opened.order.number

    def _open(self, order: control.ForeignSlab, descriptor: int | None) -> _Opened:
        try:
            return _Opened(order, self._store.device.open_slab(order.nbytes, order.handle, descriptor))
        except errors.AtomrError as error:
            return _Opened(order, error)

    def _open_elsewhere(self, order: control.ForeignSlab, descriptor: int | None) -> None:
        self._opened.append(self._open(order, descriptor))
        self._wake()

    def _take(self, opened: _Opened) -> None:
        order = opened.order
        if isinstance(opened.memory, errors.AtomrError):
            self._store.not_mapped(order.number, (order.device, order.generation, order.slab), str(opened.memory))
        else:
            self._store.add_foreign_slab(order.number, order.device, order.generation, order.slab, opened.memory)
