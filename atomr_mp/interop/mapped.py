"""The end of a mapping of another process's memory: it comes once, and not while an array lies there. No content."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final

from atomr_mp import errors


class _End:
    """The end of a mapping, and whom it concerns."""

    def __init__(self, unmap: Callable[[], object], unmapped: Callable[[], object] | None) -> None:
        self._unmap: Callable[[], object] | None = unmap
        self.unmapped = unmapped

    @property
    def is_over(self) -> bool:
        """Whether the memory is unmapped."""
        return self._unmap is None

    def unmap(self) -> None:
        """Unmap it, once."""
        unmap, self._unmap = self._unmap, None
        if unmap is not None:
            unmap()
            if self.unmapped is not None:
                self.unmapped()


class Mapped:
    """Memory that is mapped until it is closed, or until this is collected.

    Args:
        unmap: Unmaps it; called once, on whichever thread. It must not refer to this.
        unmapped: Called once the memory is unmapped, on whichever thread that happens, also in the middle of something
            else: it must neither wait nor take a lock.
    """

    def __init__(self, unmap: Callable[[], object], unmapped: Callable[[], object] | None) -> None:
        self._end: Final = _End(unmap, unmapped)
        # Not in `__del__`: while that runs, weak references still lead here, and another thread may make an array.
        weakref.finalize(self, self._end.unmap).atexit = False
        self._parts: Final[weakref.WeakSet[object]] = weakref.WeakSet()
        """What arrays in it keep alive."""
        self._lock: Final = threading.Lock()

    @property
    def unmapped(self) -> Callable[[], object] | None:
        """Called once the memory is unmapped."""
        return self._end.unmapped

    @unmapped.setter
    def unmapped(self, unmapped: Callable[[], object] | None) -> None:
        self._end.unmapped = unmapped

    @property
    def in_use(self) -> bool:
        """Whether any array lies in it."""
        return bool(self._parts)

    def close(self) -> bool:
        """Unmap it unless an array lies in it; return whether it is unmapped. May be called twice."""
        with self._lock:
            if not self._parts:
                self._end.unmap()
            return self._end.is_over

    def _check_mapped(self) -> None:
        """Refuse another array if it is unmapped. With the lock held.

        Raises:
            GpuRefReleased: The mapping was closed.
        """
        if self._end.is_over:
            raise errors.GpuRefReleased("the slab is not mapped any more: the client was closed")
