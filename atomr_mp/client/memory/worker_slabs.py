"""The workers' slabs that this client has mapped."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.memory.leases import Lease, LeaseKind, NotOpenError, Releases
from atomr_mp.interop.host import HostMapping
from atomr_mp.protocol.layout import Layout

IDLE_BYTES: Final = 2**30
"""Most memory that stays mapped without a lease in it, since mapping a slab again costs more than a call."""

Open = Callable[[Releases, int, Callable[[], object]], "SlabMapping"]
"""Opens a slab of an incarnation; takes a function to call once it is unmapped."""


class SlabMapping(Protocol):
    """A slab in this process, of either backend."""

    unmapped: Callable[[], object] | None

    @property
    def nbytes(self) -> int:
        """Its size."""

    @property
    def in_use(self) -> bool:
        """Whether any array lies in it."""

    def close(self) -> bool:
        """Unmap it unless an array lies in it; return whether it is unmapped."""

    def array(self, layout: Layout, *, writable: bool, keep: object = None) -> Any:
        """Return an array in the slab, zero-copy, that keeps `keep`."""


class Mappings:
    """Opens each slab once, and keeps it mapped while it is used, and a while longer.

    Args:
        open_slab: Opens a slab; may block.
        idle_bytes: Most bytes that stay mapped without being used.
    """

    def __init__(self, open_slab: Open, idle_bytes: int = IDLE_BYTES) -> None:
        self._open_slab = open_slab
        self._idle_bytes = idle_bytes
        self._lock = threading.Lock()
        """Not held while a slab is opened, since other callbacks may run meanwhile."""
        self._closed = False
        self._mapped: dict[tuple[Releases, int], _Mapped] = {}
        """Mappings by incarnation and number, the most recently used one last."""
        self._outlived: weakref.WeakValueDictionary[tuple[Releases, int], SlabMapping] = weakref.WeakValueDictionary()
        """Mappings of incarnations that have ended; views keep them, and results that may be read again."""

    @interrupts.defer_interrupts
    def get(self, lease: Lease, slab: int, *, opens: bool = True) -> SlabMapping:
        """Return the mapping of the slab in which a leased buffer lies; blocks if it has to be opened.

        Raises:
            RequestError: It cannot be opened.
            PoolLost: The client was closed.
            NotOpenError: It has to be opened, and was not to be.
        """
        releases = lease.releases
        key = releases, slab
        with self._lock:
            mapped = self._mapped.pop(key, None)
            if mapped is not None:
                self._mapped[key] = mapped
                mapped.leases.add(lease)
                return mapped.mapping
            outlived = self._outlived.get(key)
            if outlived is not None:
                return outlived
        if not opens:
            raise NotOpenError
        # The worker counts the openings, so it has to hear of each close.
        closed = functools.partial(releases.pending.append, (LeaseKind.SLAB, slab))
        mapping = self._open_slab(releases, slab, closed)
        with self._lock:
            if self._closed:
                raise errors.PoolLost("this client was closed")
            if releases.over:
                return self._outlived.setdefault(key, mapping)
            other = self._mapped.get(key)
            if other is None:  # else another thread was faster
                other = self._mapped[key] = _Mapped(mapping)
            other.leases.add(lease)
            self._close_idle()
            return other.mapping

    def has_idle(self, releases: Releases, nbytes: int) -> bool:
        """Return whether an incarnation's slab of host memory is mapped, large enough, and unused."""
        with self._lock:
            return any(
                key[0] is releases
                and isinstance(each.mapping, HostMapping)
                and each.mapping.nbytes >= nbytes
                and not each.is_used
                for key, each in self._mapped.items()
            )

    def take(self, releases: Releases, slab: int, make: Callable[[Callable[[], object]], SlabMapping]) -> None:
        """Map a slab before it is needed; if that fails, it is asked for later.

        Args:
            releases: The incarnation.
            slab: The slab's number.
            make: Maps it; takes the function that a mapping calls when it ends.
        """
        closed = functools.partial(releases.pending.append, (LeaseKind.SLAB, slab))
        try:
            mapping = make(closed)
        except errors.AtomrError:
            closed()
            return
        with self._lock:
            if not (releases.over or self._closed):
                self._mapped.setdefault((releases, slab), _Mapped(mapping))

    def forget(self, ended: Releases) -> None:
        """Release an incarnation's slabs, except for views, which keep theirs mapped."""
        with self._lock:
            for key in [key for key in self._mapped if key[0] is ended]:
                self._outlived[key] = self._mapped.pop(key).mapping

    def close_unused(self, releases: Releases) -> None:
        """Unmap an incarnation's slabs that this client does not use, since their memory is wanted."""
        with self._lock:
            for key in [key for key, mapped in self._mapped.items() if key[0] is releases and not mapped.is_used]:
                del self._mapped[key]

    def close(self) -> list[SlabMapping]:
        """Unmap the slabs without a view, refuse to map further ones, and return the slabs that stay mapped."""
        with self._lock:
            self._closed = True
            mappings = [mapped.mapping for mapped in self._mapped.values()] + list(self._outlived.values())
            self._mapped.clear()
            self._outlived.clear()
            return [mapping for mapping in mappings if not mapping.close()]

    def _close_idle(self) -> None:
        idle = [key for key, mapped in self._mapped.items() if not mapped.is_used]
        idle_bytes = sum(self._mapped[key].mapping.nbytes for key in idle)
        for key in idle:
            if idle_bytes <= self._idle_bytes:
                return
            idle_bytes -= self._mapped.pop(key).mapping.nbytes


class _Mapped:
    """A mapping, and the leases that keep it."""

    def __init__(self, mapping: SlabMapping) -> None:
        self.mapping: Final = mapping
        self.leases: Final[weakref.WeakSet[Lease]] = weakref.WeakSet()

    @property
    def is_used(self) -> bool:
        """Whether this client uses it."""
        return self.mapping.in_use or any(not lease.released for lease in self.leases)
