"""The client's own memory for arrays of its calls, where workers read them in place."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.memory.leases import Releases
from atomr_mp.interop.host import HostMapping, kept_by
from atomr_mp.interop.sealed import make_sealed
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.allocation import Space, aligned, slab_bytes_for
from atomr_mp.protocol.flow.limits import CLIENT_SLAB_BYTES, MAX_PAYLOAD_BYTES
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.process_tags import CLIENT_SLAB
from atomr_mp.protocol.refs import ClientArray, SlabNumber

KEEP_EMPTY: Final = 64
"""Number of arrays that are placed elsewhere before an empty slab is freed. The last used empty slab stays."""

MOST_RUN_S: Final = 60.0
"""How long a call without a receiver may go on after its deadline, if it has started before."""

Register = Callable[[int, int], SlabNumber]
"""Makes a slab of (size, descriptor) known to all workers and returns its number; the descriptor stays the caller's."""


class ClientSlabs:
    """Places arrays in shared memory, and takes the memory back after their last use. Thread-safe.

    Args:
        register: Makes a slab known; may block, and raise an `AtomrError`.
        forget: Says that a slab is not needed any more.
        limit_bytes: Most memory of all slabs.
        name: Of the slabs.
        copy: Copies elements between arrays of one shape.
    """

    def __init__(
        self,
        register: Register,
        forget: Callable[[SlabNumber], object],
        limit_bytes: int = CLIENT_SLAB_BYTES,
        name: str = CLIENT_SLAB,
        copy: Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], object] = np.copyto,
    ) -> None:
        self._name = name
        self._copy = copy
        self._register = register
        self._forget = forget
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        """Not held while a slab is registered, since other callbacks may run meanwhile, and place arrays."""
        self._slabs: list[_Slab] = []
        self._bytes = 0
        self._ids = itertools.count(1)
        self._placed = 0
        self._unused: deque[tuple[_Slab, int]] = deque()
        """Parts of slabs that are out of use. Finalisers append to it; it is emptied when an array is placed."""
        self._uses: weakref.WeakValueDictionary[int, Placement] = weakref.WeakValueDictionary()
        self._kept: dict[int, Placement] = {}
        """Arrays of calls that were answered, which their worker has not returned yet."""
        self._abandoned: list[tuple[int, Releases, Placement]] = []
        """Arrays of calls whose answers will not be read, the times until which they are kept, CLOCK_MONOTONIC, and
        the workers that have them."""

    @interrupts.defer_interrupts
    def array(self, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
        """Return a new array in shared memory, its content undefined; it is placed without a copy.

        Such memory does not count against the limit.

        Raises:
            OutOfMemory: There is no such memory.
        """
        layout = Layout.contiguous(dtype, shape)
        slab, offset = self._take(layout.nbytes) or self._make(layout.nbytes, 0)
        room = ArgumentRoom(self._unused, slab, offset)
        return slab.mapping.array(layout._replace(offset=offset), writable=True, keep=room)

    def room_of(self, array: np.ndarray[Any, Any]) -> ArgumentRoom | None:
        """Return the place of an array that lies in shared memory, without gaps, as it can be sent; else None."""
        room = kept_by(array)
        as_sent = array.flags.c_contiguous and array.dtype.isnative
        return room if isinstance(room, ArgumentRoom) and room.slab in self._slabs and as_sent else None

    def place(self, array: np.ndarray[Any, Any]) -> Placement | None:
        """Copy an array into shared memory, unless it is there; None if it can travel otherwise and there is no room.

        Raises:
            Overloaded: There is no room before other calls are answered, and the array is too large for a message.
            InvalidRequest: It is larger than all slabs may be together.
        """
        nbytes = array.nbytes
        room = self.room_of(array)
        if room is not None:
            offset = array.__array_interface__["data"][0] - room.slab.mapping.address
            return self._placement(room, Layout.contiguous(dtypes.name_of(array.dtype), array.shape, offset))
        found = self._take(nbytes)
        if found is None:
            found = self._take_new(nbytes)
        if found is None:
            if nbytes > self._limit_bytes:
                raise errors.InvalidRequest(
                    f"an array of {nbytes} bytes; the arrays of a client's calls may take {self._limit_bytes} in all: "
                    "send it in parts, or put it on the device"
                )
            if nbytes > MAX_PAYLOAD_BYTES:
                raise errors.Overloaded(
                    f"an array of {nbytes} bytes, and {self._bytes} of {self._limit_bytes} bytes for arrays of calls "
                    "are in use: wait for some results first"
                )
            return None
        slab, offset = found
        layout = Layout.contiguous(dtypes.name_of(array.dtype), array.shape, offset)
        room = ArgumentRoom(self._unused, slab, offset)
        # Whatever interrupts the copy, no thread writes into room that is used again.
        self._copy(slab.mapping.array(layout, writable=True, keep=room), array)
        return self._placement(room, layout)

    def _placement(self, room: ArgumentRoom, layout: Layout) -> Placement:
        placement = Placement(room, next(self._ids), layout)
        self._uses[placement.id] = placement
        return placement

    def answered(self, placement: Placement, worker: Releases, *, executed: bool) -> None:
        """Record that the call with an array was answered. If it may have run, its actor may go on using the array."""
        if placement.until_ns and not placement.returned:  # perhaps an attempt was lost on its way, and returns nothing
            with self._lock:
                self._abandoned.append((placement.until_ns, worker, placement))
        elif executed and not placement.returned:
            placement.worker = worker
            self._kept[placement.id] = placement
            if worker.over:  # the worker may have ended just now
                self._kept.pop(placement.id, None)

    def abandoned(self, placement: Placement, worker: Releases, until_ns: int) -> None:
        """Record that the answer of a call with an array will not be read. The call may start until the given time."""
        with self._lock:
            self._abandoned.append((until_ns + int(MOST_RUN_S * 1e9), worker, placement))

    def sent_again(self, placement: Placement, until_ns: int) -> None:
        """Record that a call with an array is sent again; a lost attempt may start until the given time, if any."""
        placement.uses += 1
        placement.returned = False
        if until_ns:
            placement.until_ns = until_ns + int(MOST_RUN_S * 1e9)

    def returned(self, ids: Iterable[int]) -> None:
        """Record that these arrays are out of use in a worker."""
        for number in ids:
            placement = self._uses.get(number)
            if placement is not None:
                placement.uses -= 1
                if placement.uses <= 0:
                    placement.returned = True
                    self._kept.pop(number, None)

    def over(self, ended: Releases) -> None:
        """Record that a worker has ended, and with it its use of all arrays."""
        for placement in list(self._kept.values()):
            if placement.worker is ended:
                self._kept.pop(placement.id, None)

    def close(self) -> None:
        """Unmap all slabs, those in which arrays lie at the end of these; the client is closed."""
        with self._lock:
            for slab in self._slabs:
                slab.is_closed = True
                slab.mapping.close()
            self._slabs.clear()
            self._unused.clear()
            self._kept.clear()
            self._abandoned.clear()

    @property
    def nbytes(self) -> int:
        """Memory of all slabs."""
        return self._bytes

    def _take(self, nbytes: int) -> tuple[_Slab, int] | None:
        """Return room in a present slab."""
        with self._lock:
            self._take_back()
            for slab in self._slabs:
                offset = slab.space.take(nbytes)
                if offset is not None:
                    self._placed += 1
                    slab.used_at = self._placed
                    self._drop_empty(KEEP_EMPTY)
                    return slab, offset
        return None

    def _take_new(self, nbytes: int) -> tuple[_Slab, int] | None:
        """Return room in a new slab, None if the limit allows no further one or the workers cannot be informed."""
        size = slab_bytes_for(aligned(nbytes))
        with self._lock:
            if self._bytes + size > self._limit_bytes:
                self._drop_empty(0)
            if self._bytes + size > self._limit_bytes:
                return None
            self._bytes += size
        try:
            return self._make(nbytes, size)
        except BaseException as error:
            with self._lock:
                self._bytes -= size
            if nbytes > MAX_PAYLOAD_BYTES or not isinstance(error, errors.AtomrError):  # such as an interrupt
                raise
            return None

    def _make(self, nbytes: int, counted: int) -> tuple[_Slab, int]:
        """Return room in a new slab; so many of its bytes count against the limit."""
        try:
            slab = _Slab(slab_bytes_for(aligned(nbytes)), self._register, counted, self._name)
        except errors.OutOfMemory as error:
            error.maybe_executed = False  # it is this process's memory, and nothing was sent
            raise
        with self._lock:
            offset = slab.space.take(nbytes)
            assert offset is not None
            self._placed += 1
            slab.used_at = self._placed
            self._slabs.append(slab)
        return slab, offset

    def _take_back(self) -> None:
        if self._abandoned:
            now_ns = time.monotonic_ns()
            self._abandoned = [
                (until_ns, worker, placement)
                for until_ns, worker, placement in self._abandoned
                if until_ns > now_ns and not (worker.over or placement.returned)
            ]
        while self._unused:
            slab, offset = self._unused.popleft()
            slab.space.give(offset)

    def _drop_empty(self, keep: int) -> None:
        """Forget the empty slabs that were not used for the last `keep` arrays, except the one that was used last."""
        empty = sorted((slab for slab in self._slabs if not slab.space), key=lambda slab: slab.used_at)
        for slab in empty[:-1] if keep else empty:
            if self._placed - slab.used_at >= keep:
                self._slabs.remove(slab)
                self._bytes -= slab.counted
                self._forget(slab.number)


class ArgumentRoom:
    """A part of a slab that is taken; free again when the last reference to this has gone.

    Args:
        unused: The queue that it joins then.
        slab: The slab.
        offset: Where it begins.
    """

    def __init__(self, unused: deque[tuple[_Slab, int]], slab: _Slab, offset: int) -> None:
        self._unused = unused
        self.slab: Final = slab
        self.offset: Final = offset

    def __del__(self) -> None:
        if not self.slab.is_closed:
            self._unused.append((self.slab, self.offset))


class Placement:
    """An array of a call in memory of the client.

    Args:
        room: Where it lies.
        number: Names this use of the memory.
        layout: How it lies there.
    """

    worker: Releases | None = None
    """The worker that it was sent to, once that has answered."""
    uses = 1
    """How often it was sent to living workers, and not returned."""
    returned = False
    """Whether all workers have finished with it."""
    until_ns = 0
    """The time until which a lost attempt may use it, CLOCK_MONOTONIC; 0 if none was lost."""

    def __init__(self, room: ArgumentRoom, number: int, layout: Layout) -> None:
        self._room = room
        self._layout = layout
        self.id: Final = number

    @property
    def nbytes(self) -> int:
        """Size of the array."""
        return self._layout.nbytes

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The array, not to be written."""
        return self._room.slab.mapping.array(self._layout, writable=False, keep=self._room)

    def to_wire(self) -> ClientArray:
        """Return its wire form."""
        layout = self._layout
        return ClientArray(self.id, self._room.slab.number, layout.dtype, layout.shape, layout.offset)


class _Slab:
    """A memfd of this client that the workers know."""

    is_closed = False
    """Whether its client is closed. Rooms that go later are not used again."""

    def __init__(self, nbytes: int, register: Register, counted: int, name: str) -> None:
        self.counted: Final = counted
        descriptor = make_sealed(name, nbytes)
        try:
            self.mapping: Final = HostMapping(descriptor, nbytes)
            self.number: Final = register(nbytes, descriptor)
        finally:
            os.close(descriptor)
        self.space: Final = Space(nbytes)
        self.used_at = 0
        """Number, among all arrays, of the last one that was placed here."""
