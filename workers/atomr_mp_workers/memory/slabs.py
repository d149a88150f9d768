"""The slabs of a device's process, and the room in them. Any thread.

A part of a slab is taken when room is asked for, and comes back when the last array over it has gone, on any thread
(`Extent`). It is used again once no earlier work can still use it.

Slabs are made without the lock, which the loop takes at each turn, and their memory is freed in the background:
either may take milliseconds. In the first second after a promotion both may take much longer. Then active sessions have
spare slabs, and a request that needs another slab waits for it off the loop (`provide`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from atomr_mp import checks, errors
from atomr_mp.protocol.allocation import aligned, slab_bytes_for, slab_bytes_within
from atomr_mp.protocol.refs import SlabNumber
from atomr_mp_workers.device.base import Event, Slab, WorkerDevice
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.memory.blocks import Extent, Holder, OwnSlab
from atomr_mp_workers.memory.predecessor import Predecessor

CACHED_BYTES: Final = 2**30
"""Most memory in empty slabs that are kept for later requests."""

SPARE_BYTES: Final = 2**30
"""Most memory in slabs that are made in advance."""

POPULATED_BYTES: Final = 2**21
"""So many bytes of a slab for results are populated in advance: the first write of 320 KiB takes ten times as long
where the kernel has to give each page."""


class StartedWork(Protocol):
    """The work that the device was given, numbered in the order of its start."""

    last: int
    """The number of the work that was started last."""

    def ended(self, number: int, /) -> bool:
        """Return whether this work and all earlier work has ended. Any thread."""


class SlabKeeper(Protocol):
    """Keeps slabs open beyond this process's end."""

    def hand_in(self, slab: OwnSlab) -> None:
        """Ask the supervisor to keep a slab, before the first answer that needs it."""

    def freed(self, slab: OwnSlab) -> None:
        """Tell the supervisor to keep a slab no longer. Any thread."""


class SlabTable:
    """This process's slabs.

    Args:
        device: The device.
        index: Its number in the pool.
        quota_bytes: Most bytes of all slabs together; a device with memory of its own has as much again in the host's
            memory.
        in_progress: Work that may still use memory without references.
        changed: Called when `taken_bytes` has changed.
        keeper: Keeps slabs that are handed in.
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
        """Guards all state of the table, and `OwnSlab.opened`."""
        self.by_number: Final[dict[SlabNumber, OwnSlab]] = {}
        self.bytes_on: Final[Counter[WorkerDevice]] = Counter()
        """Bytes of slabs in each device's memory, spare slabs included."""
        self.spares: Final[list[tuple[WorkerDevice, Slab]]] = []
        """Spare slabs, which were never used, with the device whose memory they are."""
        self.quiet = False
        """Whether to avoid calls of the driver: a request on the loop that needs another slab has to `provide` it
        first."""
        self.allocations = 0
        self.taken_bytes = 0
        """Size of all slabs together."""
        self.predecessor: Predecessor | None = None
        """The process that dies and may still have memory; allocations wait for its end before they fail."""
        self.on_shortage: Callable[[], None] = lambda: None
        """Releases memory that can be made again, before an allocation fails; called without the lock, on any
        thread."""
        self._device = device
        self._index = index
        self._in_progress = in_progress
        self._changed = changed
        self._keeper = keeper
        self._last_slab = 0
        self._given_back: deque[tuple[OwnSlab, int]] = deque()
        """Parts of slabs without references."""
        self._resting: deque[tuple[int, OwnSlab, int]] = deque()
        """Parts without references that earlier work may still use: the number of that work, the slab, and the
        offset."""

    def keep_spares(self, counts: Mapping[WorkerDevice, int]) -> None:
        """Keep slabs ready for holders' first requests: making one takes a third of a millisecond on a GPU.

        Args:
            counts: Number of slabs in each device's memory; fewer if there is no room.
        """
        size = slab_bytes_for(1)
        for device, count in counts.items():
            with contextlib.suppress(errors.OutOfMemory):
                while self._keeps_another(device, count, size):
                    spare = self._make_reserved(size, device)
                    with self.lock:
                        self.spares.append((device, spare))

    def make_for(self, holder: Holder) -> OwnSlab | None:
        """Make a slab for a session's results before there are any; None if there is no room.

        With it at most half of the quota is taken, so that new sessions find room.
        """
        device, size = self._device.host, slab_bytes_for(1)
        with self.lock:
            if self.taken_bytes + size > SPARE_BYTES or 2 * (self.bytes_on[device] + size) > self.quota_bytes:
                return None
            self._took(device, size)
        try:
            memory = self._make_reserved(size, device)
        except errors.OutOfMemory:
            return None
        memory.populate(POPULATED_BYTES)
        with self.lock:
            return self._add(holder, memory, device)

    def drop_spares(self, but: int = 0) -> None:
        """Free all spare slabs but so many of each device."""
        with self.lock:
            self._drop_spares(but)

    def leave_driver_alone(self, seconds: float, wake: Callable[[], None]) -> None:
        """Keep the loop from calling the driver for a while, and defer work that can wait; then free spare slabs.

        One of each kind is kept on a GPU, where a slab takes long to make.

        Args:
            seconds: How long.
            wake: Called when spare slabs have been freed off the loop, so that the loop shows it.
        """
        background = self._device.background
        if background is None:
            self.drop_spares()
            return

        def calm() -> None:
            self.quiet = False
            self.drop_spares(but=0 if self._device.host is self._device else 1)
            wake()

        self.quiet = True
        background.submit(calm)  # first of the deferred requests
        background.rest(seconds)

    def provide(self, holder: Holder, nbytes: int, event: Event, wake: Callable[[], None]) -> bool:
        """Make room for a holder in the device's memory, on a thread; return False if there is room already.

        Args:
            holder: Its future holder.
            nbytes: How many bytes.
            event: Ends when there is room, or there cannot be any.
            wake: Called when the event ends.
        """
        device = self._device
        with self.lock:
            self.take_back()
            found = self._find(holder, nbytes, device)
            if found is not None:
                found[0].space.give(found[1])
                return False

        def make() -> None:
            try:
                memory = self._make(slab_bytes_for(aligned(nbytes)), nbytes, device)
                with self.lock:
                    slab = self._add(holder, memory, device)
                    if holder.gone:  # its parts would never come back, so the slab would never be freed
                        self._free_if_unused(slab)
            except errors.OutOfMemory:
                pass  # the request finds that out for itself
            finally:
                event.end()
                wake()

        # A daemon: a driver that does not answer must not keep a worker alive that was told to leave.
        threading.Thread(target=make, name="slab", daemon=True).start()
        return True

    def room(self, holder: Holder, nbytes: int, device: WorkerDevice) -> tuple[OwnSlab, Extent, int]:
        """Return room in a holder's memory: the slab, the object that keeps the room taken, and its offset. Any thread.

        Raises:
            OutOfMemory: There is no room.
        """
        predecessor = self.predecessor
        try:
            return self._room(holder, nbytes, device)
        except errors.OutOfMemory:
            # Here the lock is free: the loop takes it at every turn.
            if predecessor is None or not self._fits(nbytes, device) or not predecessor.has_ended():
                raise
        return self._room(holder, nbytes, device)

    def _room(self, holder: Holder, nbytes: int, device: WorkerDevice) -> tuple[OwnSlab, Extent, int]:
        with self.lock:
            self.take_back()
            found = self._find(holder, nbytes, device)
            self.allocations += 1
        if found is None:
            memory = self._make(slab_bytes_for(aligned(nbytes)), nbytes, device)
            with self.lock:
                slab = self._add(holder, memory, device)
                offset = slab.space.take(nbytes)
                assert offset is not None
                found = slab, offset
        slab, offset = found
        return slab, Extent(self._given_back, slab, offset), offset

    @property
    def resting_bytes(self) -> int:
        """Bytes without references that work may still use. With the lock."""
        return sum(slab.space.taken(offset) for _, slab, offset in self._resting)

    @property
    def untidy(self) -> bool:
        """Whether a part was given back, or rests."""
        return bool(self._given_back or self._resting)

    def close(self, session: int, numbers: Iterable[SlabNumber]) -> None:
        """Count slabs as closed by a session's client; skip a slab that is not open."""
        with self.lock:
            for number in numbers:
                slab = self.by_number.get(number)
                if slab is not None:
                    slab.opened -= Counter([(session, None)])
            self.take_back()

    def close_opened(self, session: int) -> None:
        """Count all slabs that a session's client has opened as closed."""
        with self.lock:
            for slab in self.by_number.values():
                slab.opened.pop((session, None), None)
            self.take_back()

    def close_all(self, session: int) -> None:
        """Count all slabs of a session as closed, here and on other devices."""
        with self.lock:
            for slab in self.by_number.values():
                for key in [key for key in slab.opened if key[0] == session]:
                    del slab.opened[key]
            self.take_back()

    def take_back(self, *, everything: bool = False) -> None:
        """Return parts without references to their slabs; free slabs that need not be kept. With the lock.

        Args:
            everything: Whether to return parts that work might use, and free empty slabs, since the device is idle and
                memory is short.
        """
        while self._given_back:
            slab, offset = self._given_back.popleft()
            if self._device.asynchronous and not everything and not self._in_progress.ended(self._in_progress.last):
                self._resting.append((self._in_progress.last, slab, offset))
            else:
                self._free(slab, offset)
        while self._resting and (everything or self._in_progress.ended(self._resting[0][0])):
            _, slab, offset = self._resting.popleft()
            self._free(slab, offset)
        if everything:
            self._drop_spares()
        unused = [slab for slab in self.by_number.values() if not slab.space and not slab.opened]
        cached = sum(slab.memory.nbytes for slab in unused)
        for slab in unused:
            if slab.holder.gone or cached > (0 if everything else CACHED_BYTES):
                self._free_if_unused(slab)
                cached -= slab.memory.nbytes

    def _free(self, slab: OwnSlab, offset: int) -> None:
        """Return an unused part to its slab. With the lock."""
        if checks.ON and not self.quiet:
            nbytes = slab.space.taken(offset)
            at_ends = min(nbytes, checks.FILLED_BYTES)
            for at in {offset, offset + nbytes - at_ends}:
                slab.memory.fill(at, at_ends, checks.FILLER)
        slab.space.give(offset)

    def _fits(self, nbytes: int, device: WorkerDevice) -> bool:
        """Return whether so many bytes may be taken; if there is no room then, the device itself has no memory."""
        return self.bytes_on[device] + slab_bytes_for(aligned(nbytes)) <= self.quota_bytes

    def _find(self, holder: Holder, nbytes: int, device: WorkerDevice) -> tuple[OwnSlab, int] | None:
        """Return room in an existing slab, the holder's or a spare one; None if there is none. With the lock."""
        for slab in holder.slabs:
            offset = slab.space.take(nbytes) if slab.device is device else None
            if offset is not None:
                return slab, offset
        size = slab_bytes_for(aligned(nbytes))
        for at, (owner, spare) in enumerate(self.spares):
            if owner is device and spare.nbytes == size:
                del self.spares[at]
                slab = self._add(holder, spare, device)
                offset = slab.space.take(nbytes)
                assert offset is not None
                return slab, offset
        return None

    def _add(self, holder: Holder, memory: Slab, device: WorkerDevice) -> OwnSlab:
        """Add a new slab. With the lock."""
        self._last_slab += 1
        slab = OwnSlab(self._last_slab, memory, device, holder)
        self.by_number[slab.number] = slab
        holder.slabs.append(slab)
        return slab

    def _make(self, size: int, requested_bytes: int, device: WorkerDevice) -> Slab:
        """Make a slab; if there is no memory, try again after freeing all unused memory. Without the lock.

        It is smaller than `size` where that is all that its quota leaves, and the requested bytes still have room.

        Raises:
            OutOfMemory: There is no memory.
        """
        try:
            with self.lock:
                reserved = self._reserve(size, requested_bytes, device)
            return self._make_reserved(reserved, device)
        except errors.OutOfMemory:
            self.on_shortage()
            self._device.free_caches()
            with self.lock:
                self.take_back(everything=True)
                reserved = self._reserve(size, requested_bytes, device)
        background = self._device.background
        if background is not None:
            background.finish()
        return self._make_reserved(reserved, device)

    def _make_reserved(self, size: int, device: WorkerDevice) -> Slab:
        """Make a slab that is counted already; uncount it if it cannot be made. Without the lock.

        Raises:
            OutOfMemory: The device has no such memory.
        """
        try:
            hooks.point("allocate")
            return device.make_slab(size)
        except BaseException:
            with self.lock:
                self._took(device, -size)
            raise

    def _keeps_another(self, device: WorkerDevice, count: int, size: int) -> bool:
        """Count another spare slab if that many are wanted and there is room; return whether it was counted."""
        with self.lock:
            enough = sum(owner is device for owner, _ in self.spares) >= count
            if enough or (len(self.spares) + 1) * size > SPARE_BYTES or not self._fits(1, device):
                return False
            self._took(device, size)
            return True

    def _took(self, device: WorkerDevice, nbytes: int) -> None:
        """Count bytes that slabs take, or no longer take."""
        self.bytes_on[device] += nbytes
        self.taken_bytes += nbytes
        self._changed()

    def _drop_spares(self, but: int = 0) -> None:
        kept: Counter[WorkerDevice] = Counter()
        spares, self.spares[:] = list(self.spares), []
        for device, spare in spares:
            kept[device] += 1
            if kept[device] <= but:
                self.spares.append((device, spare))
            else:
                self._took(device, -spare.nbytes)

    def _reserve(self, size: int, requested_bytes: int, device: WorkerDevice) -> int:
        """Count a slab before it is made, after freeing empty ones if there is no room; return its size. With the lock.

        Raises:
            OutOfMemory: There is no room.
        """
        if self.bytes_on[device] + size > self.quota_bytes:
            self._drop_spares()
        for slab in list(self.by_number.values()):
            if self.bytes_on[device] + size <= self.quota_bytes:
                break
            if slab.device is device:
                self._free_if_unused(slab)
        room = slab_bytes_within(self.quota_bytes - self.bytes_on[device])
        if room < size and room >= aligned(requested_bytes):
            size = room
        if self.bytes_on[device] + size > self.quota_bytes:
            raise errors.OutOfMemory(
                f"{requested_bytes} bytes do not fit on device {self._index}: its slabs take "
                f"{self.bytes_on[device]} of {self.quota_bytes} bytes; free "
                "some refs, or have more allowed (memory_bytes)",
                maybe_executed=False,
                requested_bytes=requested_bytes,
            )
        self._took(device, size)
        return size

    def _free_if_unused(self, slab: OwnSlab) -> None:
        if slab.space or slab.opened:
            return
        del self.by_number[slab.number]
        slab.holder.slabs.remove(slab)
        if slab.handed_in and self._keeper is not None:
            self._keeper.freed(slab)
        self._took(slab.device, -slab.memory.nbytes)
