"""A device's memory: slabs, the buffers in them, and their holders.

A *slab* is memory that crosses processes whole; it belongs to one holder, a session or this process. A *buffer* is a
part of one. It lives as long as a session has a *lease* of it, or an object in this process refers to it: a request, an
actor that keeps it, an array over it. A slab is freed when it is empty and no process has it open.

Requests may allocate, share and claim on any thread; methods that do not say so are for the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.protocol import token
from atomr_mp.protocol.messages.control import ClientSlab, ForeignSlab
from atomr_mp.protocol.refs import SlabNumber
from atomr_mp_workers.device.base import Export, SlabMemory, WorkerDevice
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.buffers import Buffers
from atomr_mp_workers.memory.passing_reads import PassingReads
from atomr_mp_workers.memory.ref_opener import RefOpener
from atomr_mp_workers.memory.shares import Shares
from atomr_mp_workers.memory.slabs import SlabKeeper, SlabTable, StartedWork
from atomr_mp_workers.memory.workspaces import Workspaces

_LOG: Final = logging.getLogger("atomr_mp.worker")


@checks.owned(but={"tidy", "statistics"})
class Store:
    """All memory of a device's process, by the sessions that hold it.

    Args:
        device: The device.
        current: This incarnation's token.
        quota_bytes: Most bytes of all slabs together; a device with memory of its own has as much again in the host's
            memory.
        in_progress: Work that may still use memory without references.
        keeper: Keeps the slabs of results open beyond this process's end; None if they end with it.
    """

    def __init__(
        self,
        device: WorkerDevice,
        current: bytes,
        quota_bytes: int,
        in_progress: StartedWork,
        keeper: SlabKeeper | None = None,
    ) -> None:
        self.device: Final = device
        _, self._index, _ = token.unpack(current)
        self._holders: dict[int, Holder] = {}
        self._leases = 0
        self.figures: tuple[int, int, int] = (0, 0, 0)
        """The slabs' bytes, the sessions' leases, and the sessions; a new tuple after each change."""
        self._keeper: Final = keeper
        self.slabs: Final = SlabTable(device, self._index, quota_bytes, in_progress, self._count, keeper)
        self.buffers: Final = Buffers(device, current, self.slabs)
        self.shares: Final = Shares(self._index)
        self.workspaces: Final = Workspaces(self.buffers)
        self.slabs.on_shortage = self.workspaces.shrink
        self.refs: Final = RefOpener(current)
        self.passing_reads: Final = PassingReads()

    # --- sessions --------------------------------------------------------------------------------------------------

    def admit(self, number: int) -> Holder:
        """Admit a session."""
        holder = self._holders[number] = Holder(number)
        self._count()
        return holder

    def close_mappings(self, number: int) -> None:
        """Release the mappings for a session: its client's memory, and other devices'."""
        holder = self._holders.get(number)
        if holder is not None:
            holder.gone = True
            holder.client_slabs.clear()
            holder.foreign_slabs.clear()
            holder.unmapped.clear()
            holder.programs.clear()

    def reclaim(self, number: int) -> None:
        """Free the memory that only this session held; it is out of reach of other processes."""
        holder = self._holders.pop(number, None)
        if holder is None:
            return
        holder.gone = True
        for view, block in holder.views.items():
            block.borrows.close_view(number, view)
        holder.views.clear()
        for read in list(holder.passing_reads):
            self.passing_reads.end(holder, read)
        self._leases -= sum(count for _, count in holder.leases.values())
        holder.leases.clear()
        self.device.forget(holder)
        self.slabs.close_all(number)
        self._count()
        if checks.ON:
            self._check_given_back(number)

    def _check_given_back(self, number: int) -> None:
        """Check that nothing of a session is left, whose memory was given back.

        Raises:
            BrokenRuleError: Something is.
        """
        with self.slabs.lock:
            opened = [key for slab in self.slabs.by_number.values() for key in slab.opened if key[0] == number]
        if opened or self.passing_reads.are_of(number):
            raise checks.BrokenRuleError(f"something of session {number} is left, whose memory was given back")

    # --- leases and views ------------------------------------------------------------------------------------------

    def lease(self, holder: Holder, array: DeviceArray) -> int:
        """Give a session one more lease of an array's buffer; return the buffer's id.

        A slab with a result by value is handed to the supervisor first, so that the result outlives this process.
        """
        if checks.ON and holder.gone and self._holders.get(holder.number) is not holder:
            raise checks.BrokenRuleError(f"a lease for session {holder.number}, which could never give it back")
        block = array.block
        _, count = holder.leases.get(block.id, (block, 0))
        holder.leases[block.id] = block, count + 1
        if array.value and self._keeper is not None:
            slab = self.slabs.by_number[block.slab_number]
            if not slab.handed_in:
                slab.handed_in = True
                self._keeper.hand_in(slab)
        self._leases += 1
        self._count()
        return block.id

    def prepare_results(self, number: int) -> bool:
        """Make a slab for a session's results and hand it in, unless it has one; return whether it has."""
        holder = self._holders.get(number)
        if holder is None or holder.gone or self._keeper is None:
            return False
        if any(slab.handed_in for slab in holder.slabs):
            return True
        slab = self.slabs.make_for(holder)
        if slab is None:
            return False
        slab.handed_in = True
        self._keeper.hand_in(slab)
        return True

    def release(self, holder: Holder, leases: Iterable[int], views: Iterable[int], slabs: Iterable[int]) -> None:
        """Take back a client's releases; skip leases that it does not have."""
        for view in views:
            self.close_view(holder, view)
        for buffer in leases:
            block, count = holder.leases.get(buffer, (None, 0))
            if block is None:
                continue
            self._leases -= 1
            if count > 1:
                holder.leases[buffer] = block, count - 1
            else:
                del holder.leases[buffer]
        self.slabs.close(holder.number, slabs)
        self._count()

    def open_view(self, holder: Holder, array: DeviceArray, view: int, *, write: bool) -> None:
        """Record that a client has a view of an array.

        Raises:
            BorrowConflict: Another view excludes it.
        """
        self._check_new(holder, view)
        array.block.borrows.open_view(holder.number, view, write=write)
        holder.views[view] = array.block

    def begin_read(self, holder: Holder, arrays: Sequence[DeviceArray], number: int) -> None:
        """Record that a client will read arrays, so that later writers wait for it.

        Raises:
            BorrowConflict: A view excludes it.
        """
        self._check_new(holder, number)
        self.passing_reads.begin(holder, arrays, number, self.device.make_event())

    def close_view(self, holder: Holder, number: int) -> None:
        """End a client's view or read, if there is one of this id."""
        viewed = holder.views.pop(number, None)
        if viewed is not None:
            viewed.borrows.close_view(holder.number, number)
        elif holder.passing_reads:
            self.passing_reads.end(holder, number)

    def _check_new(self, holder: Holder, number: int) -> None:
        if number in holder.views or number in holder.passing_reads:
            raise errors.InvalidRequest(f"there is a borrow {number} already")

    # --- slabs of others, and own slabs elsewhere --------------------------------------------------------------------

    def export(self, number: int, slab_number: SlabNumber, to_device: int | None) -> Export:
        """Return the export of a slab for a session, and count the slab as open.

        Raises:
            GpuRefReleased: The session has no lease in it.
        """
        holder, slab = self._holders.get(number), self.slabs.by_number.get(slab_number)
        leased = holder is not None and any(block.slab_number == slab_number for block, _ in holder.leases.values())
        if slab is None or holder is None or not leased:
            raise errors.GpuRefReleased(
                f"this client has no lease in slab {slab_number} of device {self._index}", device=self._index
            )
        slab.opened[number, to_device] += 1
        return slab.memory.export()

    def opened(self, number: int, slab_number: SlabNumber) -> None:
        """Count a slab with results as open for its session, which got it from the supervisor."""
        slab = self.slabs.by_number.get(slab_number)
        if slab is not None and slab.holder.number == number and not slab.holder.gone:
            slab.opened[number, None] += 1

    def add_client_slab(self, number: int, slab: SlabNumber, memory: SlabMemory) -> None:
        """Map a client's memory."""
        holder = self._holders.get(number)
        if holder is not None and not holder.gone:
            holder.client_slabs[slab] = memory
            holder.unmapped.pop(slab, None)

    def forget_client_slab(self, number: int, slab: SlabNumber) -> None:
        """Unmap a client's memory."""
        holder = self._holders.get(number)
        if holder is not None:
            holder.client_slabs.pop(slab, None)
            holder.unmapped.pop(slab, None)

    def add_foreign_slab(self, number: int, device: int, generation: int, slab: SlabNumber, memory: SlabMemory) -> None:
        """Map another device's slab, for a session's requests."""
        holder = self._holders.get(number)
        if holder is not None and not holder.gone:
            holder.foreign_slabs[device, generation, slab] = memory
            holder.unmapped.pop((device, generation, slab), None)

    def has_mapped(self, slab: ClientSlab | ForeignSlab) -> bool:
        """Return whether a session's memory, or what it has lent, is mapped."""
        holder = self._holders.get(slab.number)
        if holder is None:
            return False
        if isinstance(slab, ClientSlab):
            return slab.slab in holder.client_slabs
        return (slab.device, slab.generation, slab.slab) in holder.foreign_slabs

    def not_mapped(self, number: int, slab: SlabNumber | tuple[int, int, SlabNumber], reason: str) -> None:
        """Keep why a session's memory could not be mapped, for the requests that use it; log it the first time."""
        holder = self._holders.get(number)
        if holder is None or holder.gone:
            return
        if slab not in holder.unmapped:
            _LOG.error("slab %s of session %d could not be mapped: %s", slab, number, reason)
        holder.unmapped[slab] = reason

    def incarnation_over(self, device: int, generation: int) -> None:
        """Forget the memory of another process that has ended; slabs lent to it are for its successor."""
        if device == self._index:
            self.slabs.predecessor = None
            return
        self.refs.incarnation_over(device, generation)
        for holder in self._holders.values():
            for key in [key for key in holder.foreign_slabs if key[:2] == (device, generation)]:
                del holder.foreign_slabs[key]
            for slab in [each for each in holder.unmapped if isinstance(each, tuple)]:
                if slab[:2] == (device, generation):
                    del holder.unmapped[slab]

    # --- tidiness --------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Give back memory without references. Cheap when there is none. Any thread."""
        if self.shares:
            self.shares.drop_expired()
        if self.slabs.untidy:
            with self.slabs.lock:
                self.slabs.take_back()

    def statistics(self) -> dict[str, int]:
        """Return figures of the memory. Any thread."""
        self.tidy()
        own = self.slabs
        with own.lock:
            slabs = list(own.by_number.values())
            holders = list(self._holders.values())
            kept = sum(self.device.cached_bytes(each) for each in (*holders, self.buffers.ours))
            kept += own.resting_bytes
            spare = sum(slab.nbytes for _, slab in own.spares)
            return {
                "slabs": len(slabs),
                "slab_bytes": own.bytes_on.total(),
                "used_bytes": sum(slab.space.used_bytes for slab in slabs) - kept,
                "cached_bytes": sum(slab.memory.nbytes for slab in slabs if not slab.space) + kept + spare,
                "quota_bytes": own.quota_bytes,
                "leases": sum(count for each in holders for _, count in list(each.leases.values())),
                "views": sum(len(each.views) + len(each.passing_reads) for each in holders),
                "open_elsewhere": sum(sum(slab.opened.values()) for slab in slabs),
                "shared": len(self.shares),
                "client_slabs": sum(len(each.client_slabs) for each in holders),
                "foreign_slabs": sum(len(each.foreign_slabs) for each in holders),
                "allocations": own.allocations,
                "copied_results": self.buffers.copied,
                "workspace_bytes": self.workspaces.nbytes,
            }

    def _count(self) -> None:
        self.figures = self.slabs.taken_bytes, self._leases, len(self._holders)
