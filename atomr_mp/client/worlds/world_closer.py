"""Closes worlds that a session has made and whose handle has lost its last reference."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final

from atomr_mp.client.hand_over import HandOver


class WorldCloser(HandOver[int]):
    """A client's thread for such worlds, which are found by whichever thread collects garbage.

    Args:
        close: Ends a world, by its number.
    """

    def __init__(self, close: Callable[[int], object]) -> None:
        super().__init__("atomr-mp worlds", self._close)
        self._tell: Final = close
        self._handles: Final[dict[int, weakref.ref[object]]] = {}
        """The handles of worlds that are not closed, by number: a weak reference calls only while it is there."""

    def watch(self, handle: object, number: int) -> None:
        """Close a world once its handle is gone."""
        self.start()
        self._handles[number] = weakref.ref(handle, self.handing_over(number))

    def forget(self, number: int) -> None:
        """Watch a world no longer: it is closed."""
        self._handles.pop(number, None)

    def _close(self, number: int) -> None:
        if self._handles.pop(number, None) is not None:
            self._tell(number)
