"""A client's end of shared memory: the workers' memory that it holds, and its own that they may read.

Needs NumPy; a client without arrays never imports it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.memory.argument_slabs import ClientSlabs, Placement
from atomr_mp.client.memory.borrows import BorrowReturner
from atomr_mp.client.memory.leases import Lease, Releases, ViewBorrow
from atomr_mp.client.memory.refs import GpuRef, SharedRef, read_shared, write_shared
from atomr_mp.client.memory.staging import STAGED_BYTES, PartReply, StagedTransfers
from atomr_mp.client.memory.worker_slabs import Mappings, SlabMapping
from atomr_mp.interop.copying import CopyThreads
from atomr_mp.interop.host import HostMapping
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.messages import session
from atomr_mp.protocol.messages.devices import DeviceInfo
from atomr_mp.protocol.process_tags import client_slab_name
from atomr_mp.protocol.refs import ClientArray, Operand, WireRef
from atomr_mp.protocol.values import SHARED_BYTES

ASK_TIMEOUT_S: Final = 60.0
"""How long the supervisor may take to answer. A worker that runs a method on its loop opens a slab only afterwards."""

REQUEST_DEADLINE_S: Final = 60.0
"""Deadline of the requests that a ref makes for itself."""

MOST_LOST: Final = 8
"""How often a request of a ref that may be made twice is made again after a lost connection."""

USED_AGAIN: Final = 2
"""Number of dropped large results after which the next one gets a slab: others are likely to use it again."""

T = TypeVar("T")


class MemoryReply(PartReply, Protocol):
    """The reply to a request of this client's memory."""

    def cancel(self) -> None:
        """Keep the request from starting."""

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call a function once there is an answer."""


class RefLoan(NamedTuple):
    """A request by which a call on one device may use refs of another."""

    device: int
    """The refs' device."""
    request: memory.Borrow
    borrow: ViewBorrow
    """What the call keeps until it is answered."""


class ClientMemory:
    """The memory that a client's refs and calls share. Thread-safe.

    Args:
        epoch: The pool's epoch.
        devices: The devices, as the supervisor last reported them.
        lost: Returns why the pool is lost, None if it is not.
        read_session: Takes in the supervisor's messages.
        ask: Asks the supervisor; see `PoolSession.ask`.
        tell: Tells the supervisor.
        submit: Sends a request of a method, to a device, with a deadline in seconds; blocks while there is no room.
        give_back: Sends due releases to an incarnation, if possible.
    """

    def __init__(
        self,
        epoch: bytes,
        devices: Sequence[DeviceInfo],
        *,
        lost: Callable[[], errors.PoolLost | None],
        read_session: Callable[[], None],
        ask: Callable[..., tuple[session.Answer | session.SlabOpened, int | None]],
        tell: Callable[[session.FromClient], None],
        submit: Callable[[str, LibraryRequest, int, float], MemoryReply],
        give_back: Callable[[Releases], None],
    ) -> None:
        self._epoch = epoch
        self._devices = devices
        self._lost = lost
        self._read_session = read_session
        self._ask = ask
        self._tell = tell
        self._submit = submit
        self._give_back = give_back
        self._threads: Final = CopyThreads()
        self._slabs: Final = ClientSlabs(
            self._register, self._forget, name=client_slab_name(epoch), copy=self._threads.copy
        )
        self._staged: Final = StagedTransfers(self._slabs, self._threads, self._send)
        self._dropped: Final = deque[None](maxlen=USED_AGAIN)
        """One entry for each large result in new memory that was dropped, since the last result that got a slab."""
        self._mappings: Final = Mappings(self._open)
        self._numbers = itertools.count(1)
        self._own_slabs = itertools.count(1)
        self._borrows: Final = BorrowReturner(give_back, self._ask_worker)
        self._lent: set[tuple[Releases, int, int]] = set()
        """Slabs that another device's workers map: (of, number, by)."""

    # --- for the lanes ---------------------------------------------------------------------------------------------

    def place(self, array: Any) -> Placement | None:
        """Copy an argument into memory that workers can read; None if it has to travel otherwise, and can."""
        if not isinstance(array, np.ndarray):
            return None
        lost = self._lost()
        if lost is not None:
            raise lost.again(maybe_executed=False)
        return self._slabs.place(array)

    def place_again(self, array: Any) -> Placement | None:
        """Name an argument that lies in such memory once more, without a copy; None if it does not lie there."""
        if not isinstance(array, np.ndarray) or self._slabs.room_of(array) is None:
            return None
        return self._slabs.place(array)

    def host_array(self, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
        """Return a new array in memory that workers can reach."""
        return self._slabs.array(shape, dtype)

    def attach(
        self, placed: Sequence[object], device: int | None
    ) -> tuple[list[object], Sequence[Placement], int, int | None, Sequence[GpuRef]]:
        """Check a call's arguments in shared memory.

        Args:
            placed: The arguments.
            device: The call's target; None for the device of its refs.

        Returns:
            The objects to keep until it is answered, the copies to settle then, the number of refs, the device, and
            the refs of other devices: the call must not be sent before these are lent.

        Raises:
            GpuRefWrongDevice: The refs are of several devices, and none is named.
            PoolMismatch: One is of another pool.
            GpuRefReleased: One is another client's.
        """
        keep: list[object] = list(placed)
        copies: Sequence[Placement] = ()
        refs, to, all_there = 0, device, True
        for each in placed:
            if isinstance(each, GpuRef):
                if not each.is_of(self):
                    raise self._not_ours(each)
                refs += 1
                keep.append(each.lease.hold)  # not only the ref: it may be freed meanwhile
                at = each.lease.releases.device
                if to is None:
                    to = at
                elif to != at:
                    all_there = False
            elif isinstance(each, Placement):
                copies = [*copies, each]
        return keep, copies, refs, to, () if all_there else _foreign(placed, device, to)

    def loans(self, foreign: Sequence[GpuRef]) -> list[RefLoan]:
        """Return the requests by which a call may use refs of other devices, in the order of asking.

        That is the devices' order, for all clients: else two could wait for each other. Each request comes after the
        one before has been granted.
        """
        found: dict[int, list[GpuRef]] = {}
        for ref in foreign:
            found.setdefault(ref.device, []).append(ref)
        loans: list[RefLoan] = []
        for device, refs in sorted(found.items()):
            borrow = self._new_borrow(refs[0])
            loans.append(RefLoan(device, _passing(refs, borrow), borrow))
        return loans

    def unreached(self, foreign: Iterable[GpuRef], device: int) -> list[GpuRef]:
        """Return those of other devices' refs whose memory a device has not been given yet."""
        found = {(ref.lease.releases, ref.slab, device): ref for ref in foreign}
        return [ref for key, ref in found.items() if key not in self._lent]

    def reach(self, ref: GpuRef, device: int) -> None:
        """Let a device reach another device's memory. Blocks."""
        releases = ref.lease.releases
        self._ask(
            lambda number: session.LendSlab(number, releases.device, releases.generation, ref.slab, device),
            ASK_TIMEOUT_S,
        )
        if not releases.over:
            self._lent = self._lent | {(releases, ref.slab, device)}

    @interrupts.defer_interrupts
    def lend(self, foreign: Sequence[GpuRef], device: int, deadline_s: float) -> list[ViewBorrow]:
        """Lend a device other devices' refs; later writers wait while the result is held. Blocks."""
        for ref in self.unreached(foreign, device):
            self.reach(ref, device)
        lent: list[ViewBorrow] = []
        try:
            for at, request, borrow in self.loans(foreign):
                self._take(request, borrow, at, deadline_s)
                lent.append(borrow)
        except BaseException as error:
            for borrow in lent:
                borrow.release(self._give_back)
            if isinstance(error, errors.RequestError):
                error.maybe_executed = False  # the call that needs the refs was not sent
            raise
        return lent

    def answered(self, copies: Iterable[Placement], worker: Releases, *, executed: bool) -> None:
        """Record that a call with these arguments was answered, or was not run at all."""
        for each in copies:
            self._slabs.answered(each, worker, executed=executed)

    def abandoned(self, copies: Iterable[Placement], worker: Releases, until_ns: int) -> None:
        """Record that the answer of a call with these arguments will not be read. It may start until the given time."""
        for each in copies:
            self._slabs.abandoned(each, worker, until_ns)

    def sent_again(self, copies: Iterable[Placement], until_ns: int = 0) -> None:
        """A call with these arguments is sent again, and the worker that has it lives.

        Args:
            copies: The arguments.
            until_ns: Until when an attempt may start that was lost with its connection; 0 if it was answered.
        """
        for each in copies:
            self._slabs.sent_again(each, until_ns)

    def returned(self, ids: Iterable[int]) -> None:
        """Record that a worker uses these arguments no more."""
        self._slabs.returned(ids)

    def take_offered(self, releases: Releases, slab: int, nbytes: int, descriptor: int) -> None:
        """Map a slab before any result lies in it; the descriptor is owned from here on."""
        self._mappings.take(releases, slab, lambda closed: _mapped(descriptor, nbytes, closed))

    def over(self, ended: Releases) -> None:
        """Record that an incarnation has ended."""
        self._slabs.over(ended)
        self._mappings.forget(ended)
        self._lent = {lent for lent in self._lent.copy() if lent[0] is not ended}

    def out_of_memory(self, worker: Releases) -> None:
        """Give back unused mappings that keep memory of an incarnation from being used."""
        self._mappings.close_unused(worker)

    def resolver(self, leases: Mapping[int, Lease], *, opens: bool = True) -> Callable[[WireRef | ClientArray], object]:
        """Return a function that makes refs and arrays from the content of an answer with these leases.

        Without `opens` it raises `NotOpenError` where memory has to be opened first, which blocks.
        """
        return functools.partial(self._resolve, leases, opens)

    def close(self) -> Sequence[SlabMapping]:
        """Unmap slabs without views; return those of the workers that are left."""
        self._borrows.close()
        interrupts.wait(self._threads.close)
        self._slabs.close()
        return self._mappings.close()

    # --- for refs and devices --------------------------------------------------------------------------------------

    def check(self, lease: Lease) -> None:
        """Refuse a lease that has become unusable."""
        releases, lost = lease.releases, self._lost()
        if lost is not None:
            raise lost.again(maybe_executed=True)
        if lease.released:
            raise errors.GpuRefReleased(
                f"buffer {lease.buffer:#x} of device {releases.device} was freed", device=releases.device
            )
        current = self._devices[releases.device].generation
        if releases.over or current > releases.generation:
            current = current if current > releases.generation else 0
            raise errors.GpuRefStale(
                f"the ref is of generation {releases.generation} of device {releases.device}, which has ended"
                + (f"; it is now at generation {current}" if current else ""),
                device=releases.device,
                generation=releases.generation,
                current=current,
            )

    def state_of(self, lease: Lease) -> str:
        """Return in a word whether a buffer can be used."""
        try:
            self.check(lease)
        except errors.GpuRefReleased:
            return "released"
        except errors.GpuRefStale as error:
            return f"stale, now {error.current}" if error.current else "stale"
        except errors.PoolLost:
            return "pool lost"
        return "current"

    def free(self, lease: Lease) -> None:
        """Give a buffer back, and say so at once if possible."""
        if not lease.released:
            lease.release()
            self._give_back(lease.releases)

    @interrupts.defer_interrupts
    def view(self, ref: GpuRef, *, write: bool) -> Any:
        """Return a ref's elements where they are, as an array of NumPy's or, in a GPU's memory, of CuPy's."""
        borrow = self._new_borrow(ref)
        self._take(memory.Borrow(ref.holding(borrow), borrow.number, write), borrow, ref.device)
        try:
            mapping = self._mapping(ref.lease, ref.slab)
            return mapping.array(ref.layout, writable=write, keep=(borrow, ref.lease))
        except BaseException:
            borrow.release(self._give_back)
            raise

    def copy(self, ref: GpuRef, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        """Return a copy of a ref's elements, as they are between the writers before and after it."""
        if out is not None and not isinstance(out, np.ndarray):
            raise ValueError(f"out is a {type(out).__name__}, not a NumPy array")
        if out is not None and (out.shape != ref.shape or out.dtype != ref.numpy_dtype):
            raise ValueError(
                f"out is {out.dtype} of shape {out.shape}, the ref {ref.dtype} of shape {ref.shape}; they must be the "
                "same"
            )
        return _repeated(lambda: self._copy(ref, out))

    def _copy(self, ref: GpuRef, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        on_gpu = self.on_gpu(ref.device)
        if on_gpu and out is not None and out.nbytes >= SHARED_BYTES and self._slabs.room_of(out) is not None:
            self.request(memory.Get(ref, out), ref.device)
            return out
        if ref.nbytes < SHARED_BYTES or (on_gpu and not self._is_got_in_parts(ref, out)):
            copied: np.ndarray[Any, Any] = self.request(memory.Get(ref), ref.device)
            if out is None:
                return copied
            self._threads.copy(out, copied)
            return out
        # First, since writers wait from the borrow on.
        mapping = None if on_gpu else self._mapping(ref.lease, ref.slab)
        return self._copy_borrowed(mapping, ref, out)

    @interrupts.defer_interrupts
    def _copy_borrowed(
        self, mapping: SlabMapping | None, ref: GpuRef, out: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        """Copy a ref's elements from its slab, or without a mapping in parts, while later writers wait."""
        borrow = self._new_borrow(ref)
        self._take(_passing([ref], borrow), borrow, ref.device)
        try:
            if mapping is not None:
                return interrupts.wait(self._copy_from, mapping, ref, out)
            if out is None:
                out = np.empty(ref.shape, ref.numpy_dtype)
                weakref.finalize(out, self._dropped.append, None).atexit = False
            self._staged.get(ref, borrow.number, out)
            return out
        finally:
            borrow.release(self._give_back)  # another client may want to write

    def _is_got_in_parts(self, ref: GpuRef, out: np.ndarray[Any, Any] | None) -> bool:
        """Return whether a GPU's memory is copied in parts: to an array that is there, or that needs new memory.

        An array in a slab of the worker costs nothing here, and is there five times as fast if an earlier one lay in
        that memory. If not, the slab has to be made, which takes seven times as long.
        """
        if not self._goes_in_parts(ref.nbytes):
            return False
        if out is not None:
            return True
        if len(self._dropped) >= USED_AGAIN:
            self._dropped.clear()
            return False
        return not self._mappings.has_idle(ref.lease.releases, ref.nbytes)

    def put(self, array: np.ndarray[Any, Any], dtype: str, device: int) -> GpuRef:
        """Return a new buffer with a copy of an array."""
        ref: GpuRef
        if self.on_gpu(device):
            in_parts = self._goes_in_parts(array.nbytes) and self._slabs.room_of(array) is None
            put = self._put_in_parts if in_parts else self._put_whole
            return _repeated(lambda: put(array, dtype, device))
        while True:
            ref = _repeated(lambda: self.request(memory.Empty(list(array.shape), dtype), device))
            if not array.size:
                return ref
            try:
                mapping = self._mapping(ref.lease, ref.slab)
            except errors.GpuRefStale:  # its worker has ended, and nothing is lost, so try again
                continue
            # Without a borrow, since nobody else knows of the buffer yet.
            self._copy_to(mapping, ref, array)
            return ref

    def _put_whole(self, array: np.ndarray[Any, Any], _dtype: str, device: int) -> GpuRef:
        """Have a worker copy an array from shared memory."""
        return self.request(memory.Put(array), device)  # type: ignore[no-any-return]

    def _put_in_parts(self, array: np.ndarray[Any, Any], dtype: str, device: int) -> GpuRef:
        """Have a worker copy an array while this process puts it into shared memory, part by part."""
        while True:
            ref: GpuRef = self.request(memory.Empty(list(array.shape), dtype), device)
            with contextlib.suppress(errors.GpuRefStale):  # as above
                self._staged.put(array, ref)
                return ref

    def on_gpu(self, device: int) -> bool:
        """Return whether a device's memory is a GPU's."""
        return bool(self.uuid_of(device))

    def uuid_of(self, device: int) -> str:
        """Return the UUID of a device's GPU, "" if it has none."""
        return self._devices[device].uuid

    def fill(self, ref: GpuRef, value: Scalar) -> None:
        """Write a value into all elements."""
        self.request(memory.Fill(ref, value), ref.device)

    def accept(self, ref: GpuRef) -> None:
        """Take a buffer's content as it is."""
        self.request(memory.Accept(ref), ref.device)

    def copy_on_device(self, source: GpuRef, target: GpuRef) -> None:
        """Copy elements on the target's device."""
        self.request(memory.Copy(source, target), target.device)

    def share(self, ref: GpuRef, for_s: float) -> bytes:
        """Keep a buffer for another client."""
        claim = os.urandom(16)
        self.request(memory.Share(ref, claim, for_s), ref.device)
        return write_shared(SharedRef(ref.to_wire(), claim))

    def claim(self, shared: bytes) -> GpuRef:
        """Take a ref that another client has shared."""
        message, device, generation = read_shared(shared, self._epoch)
        if device >= len(self._devices):
            raise errors.ProtocolError(f"the shared ref is of device {device}; this pool has {len(self._devices)}")
        self._read_session()
        current = self._devices[device].generation
        if generation != current:
            raise errors.GpuRefStale(
                f"the shared ref is of generation {generation} of device {device}, which is now at {current}",
                device=device,
                generation=generation,
                current=current,
            )
        ref: GpuRef = self.request(memory.Claim(message.ref.buffer, message.claim), device)
        return ref

    def request(
        self, request: LibraryRequest, device: int, deadline_s: float = REQUEST_DEADLINE_S, *, library: str = "memory"
    ) -> Any:
        """Make a request of a library, and return its result. Blocks."""
        request.check()
        try:
            return self._send(request, device, deadline_s, library=library).result()
        except errors.OutOfMemory:
            if not isinstance(request, memory.Empty | memory.Full) and not request.results():
                raise
        # Once more: unused memory of this client goes back with it.
        return self._send(request, device, deadline_s, library=library).result()

    def _send(
        self, request: LibraryRequest, device: int, deadline_s: float = REQUEST_DEADLINE_S, *, library: str = "memory"
    ) -> MemoryReply:
        """Send a request of a library. Blocks while there is no room for it."""
        return self._submit(f"{library}.{request.name}", request, device, deadline_s)

    def _goes_in_parts(self, nbytes: int) -> bool:
        """Return whether so many bytes go to and from a GPU in parts; see `staging`."""
        return nbytes > STAGED_BYTES

    @interrupts.defer_interrupts
    def _copy_from(self, mapping: Any, ref: GpuRef, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        """Copy a ref's elements out of its slab."""
        if out is None:
            out = np.empty(ref.shape, ref.numpy_dtype)
        self._threads.copy(out, mapping.array(ref.layout, writable=False))
        return out

    @interrupts.defer_interrupts
    def _copy_to(self, mapping: Any, ref: GpuRef, array: np.ndarray[Any, Any]) -> None:
        """Copy elements into a new ref's slab."""
        self._threads.copy(mapping.array(ref.layout, writable=True), array)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _not_ours(self, ref: GpuRef) -> errors.RequestError:
        if ref.to_wire().token[:16] != self._epoch:
            return errors.PoolMismatch(f"{ref!r} is of another pool, or of an earlier life of this one")
        return errors.GpuRefReleased(
            f"{ref!r} is another client's, and this one has no lease of it: share() and claim() it", device=ref.device
        )

    def _resolve(self, leases: Mapping[int, Lease], opens: bool, wire: WireRef | ClientArray) -> object:  # noqa: FBT001
        lease = leases.get(wire.buffer) if isinstance(wire, WireRef) else None
        if not isinstance(wire, WireRef) or lease is None or wire.token != lease.releases.token:
            raise errors.ProtocolError("a result with a ref for which there is no lease")
        layout = wire.layout
        if not wire.value:
            return GpuRef(self, lease, wire.slab, layout)
        try:
            lease.mapping = mapping = self._mapping(lease, wire.slab, opens=opens)
            # Without a borrow, since nobody else holds it. Where another machine has the memory, it is read here.
            return mapping.array(layout, writable=True, keep=lease)
        except errors.GpuRefStale as stale:
            raise errors.WorkerLost(
                f"a large result was not read before its worker's end: {stale.message}",
                device=stale.device,
                generation=stale.generation,
                was_running=False,
            ) from stale
        except errors.PoolLost as lost:
            before = "the request ran, and its large result was not read before: "
            raise lost.again(before, maybe_executed=True) from lost
        except (errors.AtomrError, OSError) as error:
            raise _unread(error) from error

    def _mapping(self, lease: Lease, slab: int, *, opens: bool = True) -> SlabMapping:
        device = self._devices[lease.releases.device]
        if device.pid == os.getpid():
            raise errors.GpuRefSameProcess(f"this process is the worker of device {device.index}")
        return self._mappings.get(lease, slab, opens=opens)

    def _new_borrow(self, ref: GpuRef) -> ViewBorrow:
        return self._borrows.borrow(ref.lease.releases, next(self._numbers))

    @interrupts.defer_interrupts
    def _take(
        self, request: memory.Borrow, borrow: ViewBorrow, device: int, deadline_s: float = REQUEST_DEADLINE_S
    ) -> None:
        """Wait until a borrow is granted: all earlier uses that conflict with it have ended.

        If the wait ends otherwise, the borrow has ended too. Its grant may be on its way, and nobody may read it soon.
        """
        request.check()
        reply = self._send(request, device, deadline_s)
        try:
            reply.result()
        except BaseException:
            reply.cancel()  # first: a worker that has not started it never will, and takes no notice of the release
            borrow.release(self._give_back)
            raise

    def _ask_worker(self, releases: Releases, answered: Callable[[], object]) -> None:
        """Make a request that does nothing of an incarnation's device."""
        reply = self._send(memory.Statistics(), releases.device)
        reply.add_done_callback(lambda _: answered())

    def _end_later(self, releases: Releases, wait: Callable[[], object], keep: object) -> None:
        """Take in that a view of device memory was collected; called in the middle of anything."""
        releases.end_later(wait, keep)
        self._borrows.put(releases)

    def _open(self, releases: Releases, slab: int, unmapped: Callable[[], object]) -> SlabMapping:
        opened, descriptor = self._ask(
            lambda number: session.OpenSlab(number, releases.device, releases.generation, slab),
            ASK_TIMEOUT_S,
            undo=lambda _: unmapped(),
        )
        assert isinstance(opened, session.SlabOpened)
        if descriptor is not None:
            return _mapped(descriptor, opened.nbytes, unmapped)
        if not opened.handle:
            raise errors.OutOfMemory(
                f"device {releases.device}'s memory cannot be opened: this process has as many files open as it may "
                "(ulimit -n)"
            )
        from atomr_mp.interop.cuda import CudaMapping

        uuid = self._devices[releases.device].uuid
        return CudaMapping(opened.handle, opened.nbytes, uuid, functools.partial(self._end_later, releases), unmapped)

    def _register(self, nbytes: int, descriptor: int) -> int:
        registered = 0

        def numbered(number: int) -> session.RegisterSlab:
            nonlocal registered
            registered = next(self._own_slabs)
            return session.RegisterSlab(number, registered, nbytes)

        self._ask(numbered, ASK_TIMEOUT_S, descriptor, undo=lambda _: self._forget(registered))
        return registered

    def _forget(self, slab: int) -> None:
        self._tell(session.ForgetSlab(slab))


def _foreign(placed: Iterable[object], named: int | None, device: int | None) -> list[GpuRef]:
    """Return the refs among a call's arguments that are of other devices than its target."""
    foreign = [each for each in placed if isinstance(each, GpuRef) and each.device != device]
    if named is None:
        raise errors.GpuRefWrongDevice(
            f"the arguments are of devices {device} and {foreign[0].device}: name the device that the request is for "
            "(device=), or copy one (copy_to)",
            device=foreign[0].device,
        )
    return foreign


def _repeated(request: Callable[[], T]) -> T:
    """Make a request that may be made twice; once more after each lost connection, for a while.

    A worker takes back what it has given by an answer that was lost.
    """
    for _ in range(MOST_LOST):
        with contextlib.suppress(errors.ConnectionLost):
            return request()
    return request()


def _passing(refs: Sequence[GpuRef], borrow: ViewBorrow) -> memory.Borrow:
    """Return the request for a read of refs of one device, for which later writers wait."""
    others = list[Operand](refs[1:])
    return memory.Borrow(refs[0].holding(borrow), borrow.number, passing=True, others=others)


def _mapped(descriptor: int, nbytes: int, unmapped: Callable[[], object]) -> HostMapping:
    """Return the mapping of a descriptor, which is closed."""
    try:
        return HostMapping(descriptor, nbytes, unmapped)
    finally:
        os.close(descriptor)


def _unread(error: errors.AtomrError | OSError) -> errors.ResultUnread:
    """Return the error of an answered request whose result could not be opened."""
    return errors.ResultUnread(
        f"the request ran, and its large result could not be opened: {error}; ask the same reply again, or the same "
        "stream for its next part",
        reason=error.code if isinstance(error, errors.AtomrError) else "os",
    )
