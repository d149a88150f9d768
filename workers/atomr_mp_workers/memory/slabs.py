"""The slabs of a device's process, and the room in them. Any thread.

A part of a slab is taken when somebody asks for room, and comes back when the last array over it has gone, on whichever
thread that is (`Extent`). It is used again once no work that was submitted before can still use it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.allocation import aligned, slab_bytes_for
from atomr_mp.protocol.refs import SlabNumber
from atomr_mp_workers.device.base import Slab, WorkerDevice
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.memory.blocks import Extent, Holder, OwnSlab
from atomr_mp_workers.memory.predecessor import Predecessor

CACHED_BYTES: Final = 2**30
"""Most memory in empty slabs that are kept for what comes next, if nobody has asked for it."""


class StartedWork(Protocol):
    """The work that the device was given, numbered in the order of its start."""

    last: int
    """The number of the work that was started last."""

    def ended(self, number: int, /) -> bool:
        """Return whether this work has ended, and all that was started before it. Any thread."""


class SlabKeeper(Protocol):
    """Keeps slabs open beyond this process's end."""

    def hand_in(self, slab: OwnSlab) -> None:
        """Have a slab kept, before the first answer that needs it."""

    def freed(self, slab: OwnSlab) -> None:
        """Have a slab kept no longer. Any thread."""


class SlabTable:
    """This process's slabs.

    Args:
        device: The device.
        index: Its number in the pool.
        quota_bytes: Most that all slabs together may take; on a device with memory of its own, as much again for
            those in the host's.
        in_progress: Work that may use memory to which nothing refers any more.
        changed: Called when `taken_bytes` has changed.
        keeper: Keeps those that are handed in.
    """

    def __init__(
        self,
        device: WorkerDevice,
        index: int,
        quota_bytes: int,
        in_progress: StartedWork,
        changed: Callable[[], None],
        keeper: SlabKeeper | None = None,
    ) -> None:
        self.quota_bytes: Final = quota_bytes
        self.lock: Final = threading.Lock()
        """Guards all that is here, and `OwnSlab.opened`."""
        self.by_number: Final[dict[SlabNumber, OwnSlab]] = {}
        self.bytes_on: Final[Counter[WorkerDevice]] = Counter()
        """What the slabs take of each device's memory, the spare one included."""
        self.spare: Slab | None = None
        """Made before anybody needs it, and never used."""
        self.allocations = 0
        self.taken_bytes = 0
        """What all slabs take together."""
        self.predecessor: Predecessor | None = None
        """Who dies, and has not given back its memory yet; allocations wait for that before they fail."""
        self._device = device
        self._index = index
        self._in_progress = in_progress
        self._changed = changed
        self._keeper = keeper
        self._last_slab = 0
        self._given_back: deque[tuple[OwnSlab, int]] = deque()
        """Parts of slabs to which nothing refers any more."""
        self._resting: deque[tuple[int, OwnSlab, int]] = deque()
        """Such parts that work which was submitted before may still use, and up to which request."""

    def keep_spare(self) -> None:
        """Make a slab for whoever needs the first: on a GPU that takes a third of a millisecond."""
        size = slab_bytes_for(1)
        with self.lock, contextlib.suppress(errors.OutOfMemory):
            if self.bytes_on[self._device] + size <= self.quota_bytes:
                self.spare = _make_slab(size, self._device)
                self._took(self._device, size)

    def room(self, holder: Holder, nbytes: int, device: WorkerDevice) -> tuple[OwnSlab, Extent, int]:
        """Return room in a holder's memory: the slab, what keeps the room taken, and its offset. Any thread.

        Raises:
            OutOfMemory: There is none.
        """
        predecessor = self.predecessor
        try:
            return self._room(holder, nbytes, device)
        except errors.OutOfMemory:
            # Here, where the lock is free: the loop takes it at every turn.
            if predecessor is None or not self._fits(nbytes, device) or not predecessor.has_ended():
                raise
        return self._room(holder, nbytes, device)

    def _room(self, holder: Holder, nbytes: int, device: WorkerDevice) -> tuple[OwnSlab, Extent, int]:
        with self.lock:
            self.take_back()
            slab, offset = self._place(holder, nbytes, device)
            self.allocations += 1
        return slab, Extent(self._given_back, slab, offset), offset

    @property
    def resting_bytes(self) -> int:
        """Bytes to which nothing refers any more, and which work may still use. With the lock."""
        return sum(slab.space.taken(offset) for _, slab, offset in self._resting)

    @property
    def untidy(self) -> bool:
        """Whether something was given back, or rests."""
        return bool(self._given_back or self._resting)

    def close(self, session: int, numbers: Iterable[SlabNumber]) -> None:
        """Count slabs as closed by a session's client; a slab that is not open is passed over."""
        with self.lock:
            for number in numbers:
                slab = self.by_number.get(number)
                if slab is not None:
                    slab.opened -= Counter([(session, None)])
            self.take_back()

    def close_all(self, session: int) -> None:
        """Count all slabs as closed that were open for a session, here or on other devices."""
        with self.lock:
            for slab in self.by_number.values():
                for key in [key for key in slab.opened if key[0] == session]:
                    del slab.opened[key]
            self.take_back()

    def take_back(self, *, everything: bool = False) -> None:
        """Return parts that nothing refers to any more to their slabs; free slabs that need not be kept. With the lock.

        Args:
            everything: Also those that work might use, and empty slabs: the device is idle, and memory short.
        """
        while self._given_back:
            slab, offset = self._given_back.popleft()
            if self._device.asynchronous and not everything and not self._in_progress.ended(self._in_progress.last):
                self._resting.append((self._in_progress.last, slab, offset))
            else:
                slab.space.give(offset)
        while self._resting and (everything or self._in_progress.ended(self._resting[0][0])):
            _, slab, offset = self._resting.popleft()
            slab.space.give(offset)
        if everything:
            self._drop_spare()
        unused = [slab for slab in self.by_number.values() if not slab.space and not slab.opened]
        cached = sum(slab.memory.nbytes for slab in unused)
        for slab in unused:
            if slab.holder.gone or cached > (0 if everything else CACHED_BYTES):
                self._free_if_unused(slab)
                cached -= slab.memory.nbytes

    def _fits(self, nbytes: int, device: WorkerDevice) -> bool:
        """Whether room may be taken for so much; if there is none, it is the device that has no memory."""
        return self.bytes_on[device] + slab_bytes_for(aligned(nbytes)) <= self.quota_bytes

    def _place(self, holder: Holder, nbytes: int, device: WorkerDevice) -> tuple[OwnSlab, int]:
        for slab in holder.slabs:
            offset = slab.space.take(nbytes) if slab.device is device else None
            if offset is not None:
                return slab, offset
        memory = self._new_slab(slab_bytes_for(aligned(nbytes)), nbytes, device)
        self._last_slab += 1
        slab = OwnSlab(self._last_slab, memory, device, holder)
        self.by_number[slab.number] = slab
        holder.slabs.append(slab)
        offset = slab.space.take(nbytes)
        assert offset is not None
        return slab, offset

    def _new_slab(self, size: int, requested_bytes: int, device: WorkerDevice) -> Slab:
        spare = self.spare
        if spare is not None and device is self._device and size == spare.nbytes:
            self.spare = None
            return spare
        try:
            self._make_room(size, requested_bytes, device)
            slab = _make_slab(size, device)
        except errors.OutOfMemory:
            self._device.free_caches()
            self.take_back(everything=True)
            self._make_room(size, requested_bytes, device)
            slab = _make_slab(size, device)
        self._took(device, size)
        return slab

    def _took(self, device: WorkerDevice, nbytes: int) -> None:
        """Count what slabs take, or take no more."""
        self.bytes_on[device] += nbytes
        self.taken_bytes += nbytes
        self._changed()

    def _drop_spare(self) -> None:
        if self.spare is not None:
            self._took(self._device, -self.spare.nbytes)
            self.spare = None

    def _make_room(self, size: int, requested_bytes: int, device: WorkerDevice) -> None:
        """Free empty slabs until there is room for another."""
        if device is self._device and self.bytes_on[device] + size > self.quota_bytes:
            self._drop_spare()
        for slab in list(self.by_number.values()):
            if self.bytes_on[device] + size <= self.quota_bytes:
                return
            if slab.device is device:
                self._free_if_unused(slab)
        if self.bytes_on[device] + size > self.quota_bytes:
            raise errors.OutOfMemory(
                f"{requested_bytes} bytes do not fit on device {self._index}: its slabs take "
                f"{self.bytes_on[device]} of {self.quota_bytes} bytes; free "
                "some refs, or have more allowed (memory_bytes)",
                maybe_executed=False,
                requested_bytes=requested_bytes,
            )

    def _free_if_unused(self, slab: OwnSlab) -> None:
        if slab.space or slab.opened:
            return
        del self.by_number[slab.number]
        slab.holder.slabs.remove(slab)
        if slab.handed_in and self._keeper is not None:
            self._keeper.freed(slab)
        self._took(slab.device, -slab.memory.nbytes)


def _make_slab(size: int, device: WorkerDevice) -> Slab:
    hooks.point("allocate")
    return device.make_slab(size)
