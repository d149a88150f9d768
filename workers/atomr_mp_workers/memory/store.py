"""A device's memory: slabs, the buffers in them, and who holds which.

A *slab* is memory that crosses processes whole; it belongs to one holder, a session or this process. A *buffer* is a
part of one. It lives as long as somebody has a *lease* of it, or anything in this process refers to it: a request that
uses it, an actor that keeps it, an array over it. A slab is freed when nothing is in it and nobody has it open.

Requests may allocate, share and claim on any thread; everything that does not say so is for the loop's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from atomr_mp import errors
from atomr_mp.protocol import dtypes, token
from atomr_mp.protocol.allocation import aligned, slab_bytes_for
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.limits import MAX_PAYLOAD_BYTES
from atomr_mp.protocol.refs import ClientArray, SlabNumber, WireRef
from atomr_mp_workers.device.base import Export, Slab, SlabMemory, WorkerDevice
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import OURS, SEVERAL, Block, Extent, Holder, OwnSlab, Use
from atomr_mp_workers.memory.predecessor import Predecessor
from atomr_mp_workers.requests.in_progress import Underway

K = TypeVar("K")

CACHED_BYTES: Final = 2**30
"""Most memory in empty slabs that are kept for what comes next, if nobody has asked for it."""

NONCE_BITS: Final = 24


class ActorMemory:
    """What actors make arrays with; any thread.

    Args:
        store: The device's memory.
        holder: Returns who will hold it.
    """

    def __init__(self, store: Store, holder: Callable[[], Holder]) -> None:
        self._store = store
        self.holder: Final = holder

    def empty(self, dtype: str, shape: Iterable[int]) -> DeviceArray:
        """Return a new array, its content undefined."""
        return self._store.allocate(self.holder(), dtype, shape)

    def keep(self, array: Any) -> DeviceArray:
        """Return a copy of an array."""
        return self._store.keep(self.holder(), array)

    def take(self, holder: Holder, nbytes: int) -> tuple[SlabMemory, object, int]:
        """Return room in a holder's memory: the slab, what keeps it taken, and its offset."""
        slab, extent, offset = self._store.room(holder, nbytes, self._store.device)
        return slab.memory, extent, offset


class Store:
    """All memory of a device's process.

    Args:
        device: The device.
        current: This incarnation's token.
        quota_bytes: Most that all slabs together may take; on a device with memory of its own, as much again for
            those in the host's.
        underway: Work that may use memory to which nothing refers any more.
        listen: Takes in what the supervisor has said: a client may use a slab as soon as the supervisor has sent it.
    """

    def __init__(
        self,
        device: WorkerDevice,
        current: bytes,
        quota_bytes: int,
        underway: Underway,
        listen: Callable[[], None] = lambda: None,
    ) -> None:
        self.device: Final = device
        self._token = current
        _, self._index, self._generation = token.unpack(current)
        self._quota_bytes = quota_bytes
        self._underway = underway
        self._listen = listen
        self._holders: dict[int, Holder] = {}
        self._slabs: dict[SlabNumber, OwnSlab] = {}
        self._slab_bytes: Counter[WorkerDevice] = Counter()
        self._spare: Slab | None = None
        """Made before anybody needs it, and never used."""
        self._last_slab = 0
        self._last_buffer = 0
        self._given_back: deque[tuple[OwnSlab, int]] = deque()
        """Parts of slabs that nothing refers to any more; anything may have dropped the last reference, anywhere."""
        self._resting: deque[tuple[int, OwnSlab, int]] = deque()
        """Those of them that work which was submitted before may still use, and up to which request."""
        self._shares: dict[tuple[int, bytes], tuple[DeviceArray, int]] = {}
        """What waits to be claimed, by buffer and secret: what was shared, until when."""
        self._over: dict[int, int] = {}
        """The last incarnation of other devices of which it is known that it has ended."""
        self._lock = threading.Lock()
        self.ours: Final = Holder(OURS)
        self.several: Final = Holder(SEVERAL)
        """Holds what is made in batches of several sessions; none of them ever gets it."""
        self._allocations = 0
        self._copied = 0
        self._taken_bytes = 0
        self._leases = 0
        self.predecessor: Predecessor | None = None
        """Who dies, and has not given back its memory yet; allocations wait for that before they fail."""
        self.figures: tuple[int, int] = (0, 0)
        """The slabs' bytes, and the sessions' leases; another tuple whenever they change."""

    # --- sessions --------------------------------------------------------------------------------------------------

    def admit(self, number: int) -> Holder:
        """Take a session in."""
        holder = self._holders[number] = Holder(number)
        return holder

    def close_mappings(self, number: int) -> None:
        """Let go of what was mapped for a session, of its client's memory and of other devices'."""
        holder = self._holders.get(number)
        if holder is not None:
            holder.gone = True
            holder.unread.clear()
            holder.client_slabs.clear()
            holder.foreign_slabs.clear()

    def reclaim(self, number: int) -> None:
        """Free what only this session held; nothing outside this process can reach the memory any more."""
        holder = self._holders.pop(number, None)
        if holder is None:
            return
        holder.gone = True
        for view, block in holder.views.items():
            block.borrows.close_view(number, view)
        holder.views.clear()
        self._leases -= sum(count for _, count in holder.leases.values())
        holder.leases.clear()
        self.device.forget(holder)
        with self._lock:
            for slab in self._slabs.values():
                for key in [key for key in slab.opened if key[0] == number]:
                    del slab.opened[key]
            self._settle()
        self._count()

    def keep_spare(self) -> None:
        """Make a slab for whoever needs the first: on a GPU that takes a third of a millisecond."""
        size = slab_bytes_for(1)
        with self._lock, contextlib.suppress(errors.OutOfMemory):
            if self._slab_bytes[self.device] + size <= self._quota_bytes:
                self._spare = _make_slab(size, self.device)
                self._took(self.device, size)

    # --- buffers ---------------------------------------------------------------------------------------------------

    def allocate(
        self, holder: Holder, dtype: str, shape: Iterable[int], device: WorkerDevice | None = None
    ) -> DeviceArray:
        """Return a new array without gaps, its content undefined. Any thread.

        Args:
            holder: Who will have it.
            dtype: Name of its element type.
            shape: Its lengths.
            device: In whose memory; by default this process's device.

        Raises:
            InvalidRequest: There can be no such array.
            OutOfMemory: There is no room, also after everything empty was freed.
        """
        layout = Layout.contiguous(dtype, tuple(shape))
        slab, extent, offset = self.room(holder, layout.nbytes, device or self.device)
        return self._new(slab, extent, layout._replace(offset=offset))

    def hand_out(self, holder: Holder, array: Any, layout: Layout) -> DeviceArray | None:
        """Return an array of user code as a buffer, if its memory is in a slab of this holder; else None.

        Args:
            holder: Whose slab it may be in.
            array: Keeps the memory.
            layout: Where it lies, in the address space.
        """
        if not layout.is_contiguous():
            return None
        for slab in holder.slabs:
            offset = layout.offset - slab.memory.address
            if slab.device is self.device and 0 <= offset <= slab.memory.nbytes - layout.nbytes:
                return self._new(slab, array, layout._replace(offset=offset))
        return None

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
        with self._lock:
            self._settle()
            slab, offset = self._place(holder, nbytes, device)
            self._allocations += 1
        return slab, Extent(self._given_back, slab, offset), offset

    def _fits(self, nbytes: int, device: WorkerDevice) -> bool:
        """Whether room may be taken for so much; if there is none, it is the device that has no memory."""
        return self._slab_bytes[device] + slab_bytes_for(aligned(nbytes)) <= self._quota_bytes

    def _new(self, slab: OwnSlab, owner: object, layout: Layout) -> DeviceArray:
        """Return a new buffer with an array in it."""
        with self._lock:
            self._last_buffer += 1
            buffer = self._last_buffer << NONCE_BITS | int.from_bytes(os.urandom(NONCE_BITS // 8), "big")
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

    def place(self, holder: Holder, array: Any) -> DeviceArray | None:
        """Return what a result is sent as that is not to go through the socket; None if it has to.

        A large array of the host's is copied to where the client can have it. One of the device's is handed out if it
        lies in memory of this holder, which user code cannot tell from other memory; else a copy.
        """
        ours = self.device.to_array(array)
        if ours is not None:
            handed_out = self.hand_out(holder, *ours)
            if handed_out is None:
                handed_out = self.keep(holder, ours[0])
                self._copied += 1
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

    def keep(self, holder: Holder, array: Any, device: WorkerDevice | None = None) -> DeviceArray:
        """Return a copy of an array, of the host or of this device, in a new buffer. Any thread.

        Raises:
            InvalidRequest: Its element type does not cross the wire.
            OutOfMemory: There is no room.
        """
        kept = self.allocate(holder, dtypes.name_of(array.dtype), array.shape, device)
        self.device.copy(array, kept.array)
        return kept

    def moved(self, holder: Holder, value: Any) -> Any:
        """Return a result of a batch of several sessions with its arrays in memory of the one that gets it. Any thread.

        Raises:
            OutOfMemory: There is no room.
        """
        if isinstance(value, DeviceArray):
            slab = self._slabs.get(value.block.slab_number)
            ours = not value.block.foreign and slab is not None and slab.holder is self.several
            return self.keep(holder, value.array) if ours else value
        if isinstance(value, dict):
            return {name: self.moved(holder, each) for name, each in value.items()}
        return [self.moved(holder, each) for each in value] if isinstance(value, list | tuple) else value

    def lease(self, holder: Holder, array: DeviceArray) -> int:
        """Give a session one more lease of an array's buffer; return the buffer's id."""
        block = array.block
        _, count = holder.leases.get(block.id, (block, 0))
        holder.leases[block.id] = block, count + 1
        if array.value and not self._slabs[block.slab_number].opened[holder.number, None]:
            holder.unread[block.id] = time.monotonic_ns()
        self._leases += 1
        self._count()
        return block.id

    def release(self, holder: Holder, leases: Iterable[int], views: Iterable[int], slabs: Iterable[int]) -> None:
        """Take back what a client does not need any more; what it does not have is passed over."""
        for view in views:
            viewed = holder.views.pop(view, None)
            if viewed is not None:
                viewed.borrows.close_view(holder.number, view)
        for buffer in leases:
            block, count = holder.leases.get(buffer, (None, 0))
            if block is None:
                continue
            self._leases -= 1
            if count > 1:
                holder.leases[buffer] = block, count - 1
            else:
                del holder.leases[buffer]
                holder.unread.pop(buffer, None)
        with self._lock:
            for number in slabs:
                slab = self._slabs.get(number)
                if slab is not None:
                    slab.opened -= Counter([(holder.number, None)])
            self._settle()
        self._count()

    def open_view(self, holder: Holder, array: DeviceArray, view: int, *, write: bool) -> None:
        """Note that a client has a view of an array.

        Raises:
            BorrowConflict: Another view excludes it.
        """
        if view in holder.views:
            raise errors.InvalidRequest(f"there is a borrow {view} already")
        array.block.borrows.open_view(holder.number, view, write=write)
        holder.views[view] = array.block

    @property
    def last_unread_ns(self) -> int:
        """When the last result was sent that its client has not read, and cannot any more after this process; or 0."""
        return max((at_ns for holder in self._holders.values() for at_ns in holder.unread.values()), default=0)

    def share(self, array: DeviceArray, claim: bytes, for_s: float) -> None:
        """Keep an array for a session that will claim it. Any thread."""
        with self._lock:
            self._shares[array.block.id, claim] = array, time.monotonic_ns() + int(for_s * 1e9)

    def claim(self, buffer: int, claim: bytes) -> DeviceArray:
        """Return what was shared under this secret, once. Any thread.

        Raises:
            GpuRefReleased: Nothing is, any more.
        """
        with self._lock:
            self._drop_expired_shares()
            array, _ = self._shares.pop((buffer, claim), (None, 0))
        if array is None:
            raise errors.GpuRefReleased(
                "what was shared is not there: it was claimed, or its time is over; share it again",
                device=self._index,
            )
        return array

    # --- refs ------------------------------------------------------------------------------------------------------

    def resolver(self, holder: Holder) -> Callable[[WireRef | ClientArray], object]:
        """Return what turns the refs of a session's requests into arrays, and notes them as `Holder.resolved`."""
        return functools.partial(self._open, holder)

    def _open(self, holder: Holder, ref: WireRef | ClientArray) -> object:
        if not isinstance(ref, WireRef):
            return self._open_client(holder, ref)
        if ref.token == self._token:
            leased = holder.leases.get(ref.buffer)
            if leased is None:
                raise errors.GpuRefReleased(
                    f"this client has no lease of buffer {ref.buffer:#x} of device {self._index}", device=self._index
                )
            block = leased[0]
            low, high = ref.span
            if low < block.offset or high > block.offset + block.nbytes:
                raise _out_of_extent(ref, block.offset, block.nbytes)
        else:
            block = self._open_foreign(holder, ref)
        array = DeviceArray(block, ref.layout)
        holder.resolved.append(array)
        return array

    def _open_foreign(self, holder: Holder, ref: WireRef) -> Block:
        epoch, device, generation = token.unpack(ref.token)
        if epoch != self._token[: len(epoch)]:
            raise errors.PoolMismatch("the ref is of another pool, or of an earlier life of this one")
        if device == self._index:
            raise errors.GpuRefStale(
                f"the ref is of generation {generation} of device {device}, which is now at {self._generation}",
                device=device,
                generation=generation,
                current=self._generation,
            )
        memory = self._heard(holder.foreign_slabs, (device, generation, ref.slab))
        if memory is None and generation <= self._over.get(device, 0):
            raise errors.GpuRefStale(
                f"the ref is of generation {generation} of device {device}, which has ended",
                device=device,
                generation=generation,
            )
        if memory is None:
            raise errors.GpuRefWrongDevice(
                f"the ref is of device {device} (generation {generation}), whose slab {ref.slab} device {self._index} "
                "does not have: it was not lent, or that generation has ended",
                device=device,
            )
        low, high = ref.span
        if low < 0 or high > memory.nbytes:
            raise _out_of_extent(ref, 0, memory.nbytes)
        return Block(
            memory,
            memory.bytes(None, low, high - low),
            token=ref.token,
            device=device,
            buffer=ref.buffer,
            slab_number=ref.slab,
            offset=low,
            nbytes=high - low,
            foreign=True,
        )

    def _open_client(self, holder: Holder, ref: ClientArray) -> Any:
        """Return an array over memory of a client; when the last reference to it goes, the client is told."""
        memory = self._heard(holder.client_slabs, ref.slab)
        if memory is None:
            raise errors.InvalidRequest(f"slab {ref.slab} of the client is not registered")
        layout = ref.layout
        if layout.span[1] > memory.nbytes:
            raise _out_of_extent(ref, 0, memory.nbytes)
        part = memory.bytes(Use(holder.returned, ref.id), layout.offset, layout.nbytes)
        return memory.array(part, layout._replace(offset=0), writable=False)

    def _heard(self, slabs: dict[K, SlabMemory], key: K) -> SlabMemory | None:
        """Return a mapped slab, after having listened if it is not there yet."""
        if key not in slabs:
            self._listen()
        return slabs.get(key)

    # --- slabs of others, and ours elsewhere -------------------------------------------------------------------------

    def export(self, number: int, slab_number: SlabNumber, to_device: int | None) -> Export:
        """Return what opens a slab for a session, and count it as open.

        Raises:
            GpuRefReleased: The session has no lease in it.
        """
        holder, slab = self._holders.get(number), self._slabs.get(slab_number)
        leased = holder is not None and any(block.slab_number == slab_number for block, _ in holder.leases.values())
        if slab is None or holder is None or not leased:
            raise errors.GpuRefReleased(
                f"this client has no lease in slab {slab_number} of device {self._index}", device=self._index
            )
        if to_device is None:
            holder.unread = {
                each: at_ns
                for each, at_ns in holder.unread.items()
                if holder.leases[each][0].slab_number != slab_number
            }
        slab.opened[number, to_device] += 1
        return slab.memory.export()

    def add_client_slab(self, number: int, slab: SlabNumber, memory: SlabMemory) -> None:
        """Take in memory of a client."""
        holder = self._holders.get(number)
        if holder is not None and not holder.gone:
            holder.client_slabs[slab] = memory

    def forget_client_slab(self, number: int, slab: SlabNumber) -> None:
        """Let go of memory of a client."""
        holder = self._holders.get(number)
        if holder is not None:
            holder.client_slabs.pop(slab, None)

    def add_foreign_slab(self, number: int, device: int, generation: int, slab: SlabNumber, memory: SlabMemory) -> None:
        """Take in another device's slab, for a session's requests."""
        holder = self._holders.get(number)
        if holder is not None and not holder.gone:
            holder.foreign_slabs[device, generation, slab] = memory

    def incarnation_over(self, device: int, generation: int) -> None:
        """Another process has ended, and its memory with it; what it was lent is for the next one."""
        if device == self._index:
            self.predecessor = None
            return
        self._over[device] = generation
        for holder in self._holders.values():
            for key in [key for key in holder.foreign_slabs if key[:2] == (device, generation)]:
                del holder.foreign_slabs[key]

    # --- tidiness --------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Give back what nothing refers to any more. Cheap when there is nothing. Any thread."""
        if self._shares or self._given_back or self._resting:
            with self._lock:
                self._drop_expired_shares()
                self._settle()

    @property
    def next_expiry_ns(self) -> int | None:
        """When something that was shared goes if nobody claims it; CLOCK_MONOTONIC."""
        # A list at once, here and below: requests on other threads may share meanwhile.
        if not self._shares:
            return None
        return min((until_ns for _, until_ns in list(self._shares.values())), default=None)

    def statistics(self) -> dict[str, int]:
        """Return figures of the memory. Any thread."""
        self.tidy()
        with self._lock:
            slabs = list(self._slabs.values())
            holders = list(self._holders.values())
            kept = sum(self.device.cached_bytes(each) for each in (*holders, self.ours))
            kept += sum(slab.space.taken(offset) for _, slab, offset in self._resting)
            spare = 0 if self._spare is None else self._spare.nbytes
            return {
                "slabs": len(slabs),
                "slab_bytes": self._slab_bytes.total(),
                "used_bytes": sum(slab.space.used_bytes for slab in slabs) - kept,
                "cached_bytes": sum(slab.memory.nbytes for slab in slabs if not slab.space) + kept + spare,
                "quota_bytes": self._quota_bytes,
                "leases": sum(count for each in holders for _, count in list(each.leases.values())),
                "views": sum(len(each.views) for each in holders),
                "open_elsewhere": sum(sum(slab.opened.values()) for slab in slabs),
                "shared": len(self._shares),
                "client_slabs": sum(len(each.client_slabs) for each in holders),
                "foreign_slabs": sum(len(each.foreign_slabs) for each in holders),
                "allocations": self._allocations,
                "copied_results": self._copied,
            }

    def _place(self, holder: Holder, nbytes: int, device: WorkerDevice) -> tuple[OwnSlab, int]:
        for slab in holder.slabs:
            offset = slab.space.take(nbytes) if slab.device is device else None
            if offset is not None:
                return slab, offset
        memory = self._new_slab(slab_bytes_for(aligned(nbytes)), nbytes, device)
        self._last_slab += 1
        slab = OwnSlab(self._last_slab, memory, device, holder)
        self._slabs[slab.number] = slab
        holder.slabs.append(slab)
        offset = slab.space.take(nbytes)
        assert offset is not None
        return slab, offset

    def _new_slab(self, size: int, requested_bytes: int, device: WorkerDevice) -> Slab:
        spare = self._spare
        if spare is not None and device is self.device and size == spare.nbytes:
            self._spare = None
            return spare
        try:
            self._make_room(size, requested_bytes, device)
            slab = _make_slab(size, device)
        except errors.OutOfMemory:
            self.device.free_caches()
            self._settle(everything=True)
            self._make_room(size, requested_bytes, device)
            slab = _make_slab(size, device)
        self._took(device, size)
        return slab

    def _took(self, device: WorkerDevice, nbytes: int) -> None:
        """Count what slabs take, or take no more."""
        self._slab_bytes[device] += nbytes
        self._taken_bytes += nbytes
        self._count()

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._took(self.device, -self._spare.nbytes)
            self._spare = None

    def _make_room(self, size: int, requested_bytes: int, device: WorkerDevice) -> None:
        """Free empty slabs until there is room for another."""
        if device is self.device and self._slab_bytes[device] + size > self._quota_bytes:
            self._drop_spare()
        for slab in list(self._slabs.values()):
            if self._slab_bytes[device] + size <= self._quota_bytes:
                return
            if slab.device is device:
                self._free_if_unused(slab)
        if self._slab_bytes[device] + size > self._quota_bytes:
            raise errors.OutOfMemory(
                f"{requested_bytes} bytes do not fit on device {self._index}: its slabs take "
                f"{self._slab_bytes[device]} of {self._quota_bytes} bytes; free "
                "some refs, or have more allowed (memory_bytes)",
                maybe_executed=False,
                requested_bytes=requested_bytes,
            )

    def _settle(self, *, everything: bool = False) -> None:
        """Return to their slabs the parts that nothing refers to any more, and free slabs that are not to be kept.

        Args:
            everything: Also those that work might use, and empty slabs: the device is idle, and memory short.
        """
        while self._given_back:
            slab, offset = self._given_back.popleft()
            if self.device.asynchronous and not everything and not self._underway.ended(self._underway.last):
                self._resting.append((self._underway.last, slab, offset))
            else:
                slab.space.give(offset)
        while self._resting and (everything or self._underway.ended(self._resting[0][0])):
            _, slab, offset = self._resting.popleft()
            slab.space.give(offset)
        if everything:
            self._drop_spare()
        unused = [slab for slab in self._slabs.values() if not slab.space and not slab.opened]
        cached = sum(slab.memory.nbytes for slab in unused)
        for slab in unused:
            if slab.holder.gone or cached > (0 if everything else CACHED_BYTES):
                self._free_if_unused(slab)
                cached -= slab.memory.nbytes

    def _free_if_unused(self, slab: OwnSlab) -> None:
        if slab.space or slab.opened:
            return
        del self._slabs[slab.number]
        slab.holder.slabs.remove(slab)
        self._took(slab.device, -slab.memory.nbytes)

    def _count(self) -> None:
        self.figures = self._taken_bytes, self._leases

    def _drop_expired_shares(self) -> None:
        now_ns = time.monotonic_ns()
        for key in [key for key, (_, until_ns) in self._shares.items() if until_ns < now_ns]:
            del self._shares[key]


def _make_slab(size: int, device: WorkerDevice) -> Slab:
    hooks.point("allocate")
    return device.make_slab(size)


def _out_of_extent(ref: WireRef | ClientArray, offset: int, nbytes: int) -> errors.GpuRefOutOfExtent:
    layout = ref.layout
    low, high = layout.span
    return errors.GpuRefOutOfExtent(
        f"an array of {layout.dtype}, shape {layout.shape} and strides {layout.strides} at byte {layout.offset} "
        f"reaches from byte {low} to {high}, out of its memory from {offset} to {offset + nbytes}"
    )
