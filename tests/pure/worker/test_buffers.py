"""A device's memory beside a model of who needs what: each buffer is filled with a pattern of its own, and keeps it.

Slabs are small here, so that they fill up, empty, and are freed all the time; the clock moves when told.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from unittest import mock

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atomr_mp import checks, errors
from atomr_mp.interop.sealed import SEALS
from atomr_mp.protocol import allocation, token
from atomr_mp.protocol.allocation import aligned, slab_bytes_for
from atomr_mp.protocol.refs import ClientArray, WireRef
from atomr_mp_workers.device.background import Background
from atomr_mp_workers.device.base import Event, Slab, SlabMemory
from atomr_mp_workers.device.host import HostDevice, HostEvent
from atomr_mp_workers.memory import buffers as buffers_module
from atomr_mp_workers.memory import shares as shares_module
from atomr_mp_workers.memory import slabs as slabs_module
from atomr_mp_workers.memory.actor_memory import ActorMemory
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder, OwnSlab
from atomr_mp_workers.memory.borrows import Borrows
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.off_loop.in_progress import InProgress

T = TypeVar("T")
Array = npt.NDArray[Any]

SMALL_SLAB_BYTES: Final = 8192
SMALL_PAGE_BYTES: Final = 4096
CACHED_BYTES: Final = 2 * SMALL_SLAB_BYTES
QUOTA_BYTES: Final = 6 * SMALL_SLAB_BYTES

EPOCH: Final = b"e" * 16
DEVICE: Final = 1
GENERATION: Final = 5
CURRENT: Final = token.pack(EPOCH, DEVICE, GENERATION)


class CountingDevice(HostDevice):
    """Knows which of the slabs that it has made still exist."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Slab]] = []

    def make_slab(self, nbytes: int) -> Slab:
        """Make a slab, and remember it."""
        slab = super().make_slab(nbytes)
        self._made.append(weakref.ref(slab))
        return slab

    def living(self) -> set[int]:
        """Return what the slabs are known by that have not been freed."""
        self._made = [each for each in self._made if each() is not None]
        return {id(each()) for each in self._made}


@dataclass
class Clock:
    """Stands in the place of the module `time`."""

    now_ns: int = 10**9

    def monotonic_ns(self) -> int:
        """Return the time that the test has set."""
        return self.now_ns


@dataclass(eq=False)
class Running:
    """A request that uses a buffer."""

    array: DeviceArray
    write: bool
    event: Event
    after: Sequence[Event]


@dataclass(eq=False)
class Buffer:
    """A buffer as the model knows it."""

    ref: WireRef
    pattern: bytes
    owner: int
    kept: list[Any] = field(default_factory=list)
    """Arrays over it that an actor keeps, of either kind."""
    running: list[Running] = field(default_factory=list)
    shares: dict[bytes, int] = field(default_factory=dict)
    """Until when, by secret."""

    @property
    def id(self) -> int:
        """Its name."""
        return self.ref.buffer


@dataclass(eq=False)
class Session:
    """A session as the model knows it."""

    number: int
    holder: Holder
    resolver: Callable[[WireRef | ClientArray], Any]
    ended: bool = False
    leases: Counter[int] = field(default_factory=Counter)
    views: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Buffer and whether it may be written, by id."""
    client_slabs: dict[int, bytes] = field(default_factory=dict)
    """Content by number."""
    foreign_slabs: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    client_arrays: dict[int, tuple[Array, bytes]] = field(default_factory=dict)
    """What an actor keeps of the client's memory, by the use's id."""
    returned: set[int] = field(default_factory=set)
    """Uses that must have been returned."""

    def resolve(self, ref: WireRef | ClientArray) -> Any:
        """Return what a ref stands for, as for a request; which hears of it, and forgets it when it is done."""
        noted = self.holder.resolved
        assert noted == []
        found = self.resolver(ref)
        assert noted == ([found] if isinstance(ref, WireRef) else [])
        noted.clear()
        return found


def refused(error: type[BaseException], function: Callable[..., object], *arguments: Any, **options: Any) -> bool:
    """Return whether a call raises this error. Nothing of it is kept alive, as `pytest.raises` would."""
    try:
        function(*arguments, **options)
    except error:
        return True
    return False


def filled(number: int, nbytes: int) -> bytes:
    """Return a pattern that differs from others' nearly everywhere."""
    return (number * 2654435761 % 2**40).to_bytes(5, "little") * (nbytes // 5 + 1)


def memfd(content: bytes) -> int:
    """Return a sealed memfd with this content."""
    descriptor = os.memfd_create("atomr-mp-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


picks = st.integers(0, 10**6)
"""Picks one of what there is, see `DeviceMemory.pick`."""

sizes = st.integers(0, 1500) | st.integers(0, 3 * SMALL_SLAB_BYTES)
secrets = st.sampled_from([b"1" * 16, b"2" * 16])


class DeviceMemory(RuleBasedStateMachine):
    """Sessions that do whatever they may, and an actor that keeps what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.patches = contextlib.ExitStack()
        for patch in (
            mock.patch.object(allocation, "SLAB_BYTES", SMALL_SLAB_BYTES),
            mock.patch.object(allocation, "PAGE_BYTES", SMALL_PAGE_BYTES),
            mock.patch.object(slabs_module, "CACHED_BYTES", CACHED_BYTES),
            mock.patch.object(shares_module, "time", self.clock),
        ):
            self.patches.enter_context(patch)
        self.device = CountingDevice()
        self.store = Store(self.device, CURRENT, QUOTA_BYTES, InProgress())
        self.sessions: dict[int, Session] = {}
        self.buffers: dict[int, Buffer] = {}
        """Those that somebody needs, or needed when last looked."""
        self.opened: Counter[tuple[int, int, int | None]] = Counter()
        """Where slabs are open: (slab, session, device)."""
        self.over: dict[int, int] = {}
        """The last incarnation of other devices that has ended."""
        self.mappings: dict[int, SlabMemory] = {}
        """What the openers see of a slab."""
        self.gone: list[WireRef] = []
        """Refs to what had become superfluous."""
        self.numbers = 0

    @initialize(spare=st.booleans())
    def prepare(self, spare: bool) -> None:  # noqa: FBT001
        """A standby has a slab ready for whoever comes first."""
        if spare:
            self.store.slabs.keep_spares({self.device: 1})
            assert self.store.statistics()["cached_bytes"] == SMALL_SLAB_BYTES

    # --- what the model says ---------------------------------------------------------------------------------

    def number(self) -> int:
        """Return a number that was not used before."""
        self.numbers += 1
        return self.numbers

    def pick(self, pick: int, among: Sequence[T]) -> T:
        """Return one of several."""
        return among[pick % len(among)]

    @property
    def present(self) -> list[Session]:
        """Sessions that may send requests."""
        return [session for session in self.sessions.values() if not session.ended]

    def leased(self, session: Session) -> list[Buffer]:
        """Return what a session may use."""
        return [self.buffers[buffer] for buffer in session.leases]

    def needed(self, buffer: Buffer) -> bool:
        """Return whether anything needs a buffer."""
        return bool(
            buffer.kept
            or buffer.running
            or buffer.shares
            or any(session.leases[buffer.id] for session in self.sessions.values())
            or self.views(buffer)
        )

    def views(self, buffer: Buffer) -> list[bool]:
        """Return the views of a buffer, whether each may write."""
        return [
            write
            for session in self.sessions.values()
            for viewed, write in session.views.values()
            if viewed == buffer.id
        ]

    def forget_what_nobody_needs(self) -> None:
        """Take from the model what the store must give back."""
        for buffer in [buffer for buffer in self.buffers.values() if not self.needed(buffer)]:
            del self.buffers[buffer.id]
            self.gone.append(buffer.ref)

    def lease(self, session: Session, array: DeviceArray) -> None:
        """Lease what a result refers to."""
        assert self.store.lease(session.holder, array) == array.block.id
        session.leases[array.block.id] += 1

    # --- sessions --------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.sessions) < 3)
    @rule()
    def admit(self) -> None:
        """A client comes."""
        number = self.number()
        holder = self.store.admit(number)
        self.sessions[number] = Session(number, holder, self.store.refs.resolver(holder))

    @precondition(lambda self: self.present)
    @rule(pick=picks)
    def end(self, pick: int) -> None:
        """A session ends: what was started ends first, and its mappings go; memory stays until it is reclaimed."""
        session = self.pick(pick, self.present)
        for buffer in self.leased(session):
            self.finish_all(buffer)
        self.store.close_mappings(session.number)
        session.ended = True
        session.client_slabs.clear()
        session.foreign_slabs.clear()

    @precondition(lambda self: len(self.present) < len(self.sessions))
    @rule(pick=picks)
    def reclaim(self, pick: int) -> None:
        """An ended session's memory is out of reach from outside."""
        session = self.pick(pick, [session for session in self.sessions.values() if session.ended])
        self.store.reclaim(session.number)
        del self.sessions[session.number]
        for key in [key for key in self.opened if key[1] == session.number]:
            del self.opened[key]
        assert not session.holder.leases
        assert not session.holder.views

    @rule(number=st.integers(-3, 100))
    def reclaim_nobody(self, number: int) -> None:
        """What is unknown, or was reclaimed before, changes nothing."""
        if number not in self.sessions:
            self.store.close_mappings(number)
            self.store.reclaim(number)
            assert refused(errors.GpuRefReleased, self.store.export, number, 1, None)

    # --- buffers ---------------------------------------------------------------------------------------------

    @rule(pick=picks, nbytes=sizes, keep=st.booleans(), ours=st.booleans())
    def allocate(self, pick: int, nbytes: int, keep: bool, ours: bool) -> None:  # noqa: FBT001
        """A request makes a buffer: of its session's, or an actor one of its own; and may return or keep it."""
        session = self.pick(pick, self.present) if self.present else None
        holder = self.store.buffers.ours if ours or session is None else session.holder
        try:
            array = ActorMemory(self.store, lambda: holder).empty("uint8", (nbytes,))
        except errors.OutOfMemory:
            self.forget_what_nobody_needs()
            in_use = {buffer.ref.slab for buffer in self.buffers.values()} | {slab for slab, _, _ in self.opened}
            assert in_use == self.store.slabs.by_number.keys(), "what is empty was not freed first"
            assert not self.store.slabs.spares
            assert self.store.slabs.bytes_on.total() + slab_bytes_for(aligned(nbytes)) > QUOTA_BYTES
            return
        self.forget_what_nobody_needs()
        array.array[...] = np.frombuffer(filled(array.block.id, nbytes), np.uint8, nbytes)
        ref = array.to_wire()
        assert ref.token == CURRENT
        assert ref.offset % allocation.ALIGNMENT_BYTES == 0
        buffer = Buffer(ref, filled(array.block.id, nbytes)[:nbytes], holder.number)
        assert buffer.id not in self.buffers
        assert all(buffer.id != old.buffer for old in self.gone), "an id was used again"
        self.buffers[buffer.id] = buffer
        if keep:
            buffer.kept.append(array)
        if session is not None:
            self.lease(session, array)

    @rule(pick=picks, nbytes=sizes)
    def place(self, pick: int, nbytes: int) -> None:
        """A large result goes into a buffer; the socket takes it if there is no room."""
        if not self.present:
            return
        session = self.pick(pick, self.present)
        number = self.number()
        content = np.frombuffer(filled(number, nbytes), np.uint8, nbytes)
        array = self.store.buffers.place(session.holder, content)
        self.forget_what_nobody_needs()
        if array is not None:
            ref = array.to_wire()
            assert ref.value
            self.buffers[ref.buffer] = Buffer(ref, content.tobytes(), session.number)
            self.lease(session, array)

    @precondition(lambda self: self.present and self.buffers)
    @rule(pick=picks, other=picks)
    def return_what_is_kept(self, pick: int, other: int) -> None:
        """An actor returns again what it keeps: one more lease."""
        session, buffer = self.pick(pick, self.present), self.pick(other, list(self.buffers.values()))
        arrays = [array for array in buffer.kept if isinstance(array, DeviceArray)]
        if arrays and buffer.owner in {session.number, self.store.buffers.ours.number}:
            self.lease(session, arrays[-1])

    @precondition(lambda self: self.present)
    @rule(pick=picks, leases=st.lists(picks, max_size=4), views=st.lists(picks, max_size=2), never=st.booleans())
    def release(self, pick: int, leases: list[int], views: list[int], never: bool) -> None:  # noqa: FBT001
        """A client gives back what it has, and what it never had, or has no more."""
        session = self.pick(pick, self.present)
        buffers_ = [*self.buffers, *(ref.buffer for ref in self.gone[-3:]), 0]
        given = [self.pick(each, list(session.leases) or buffers_) for each in leases]
        given += [self.pick(pick, buffers_)] * never
        views = [self.pick(each, list(session.views)) for each in views if session.views] + [2**63] * never
        slabs = [self.pick(pick, [slab for slab, _, _ in self.opened])] if self.opened and never else []
        self.store.release(session.holder, given, views, [*slabs, 2**32 - 1])
        for buffer in given:
            if session.leases[buffer] <= 1:
                del session.leases[buffer]
            else:
                session.leases[buffer] -= 1
        for view in views:
            session.views.pop(view, None)
        for slab in slabs:  # each entry is of one opening
            self.opened -= Counter([(slab, session.number, None)])

    @precondition(lambda self: self.buffers)
    @rule(pick=picks)
    def let_go(self, pick: int) -> None:
        """An actor forgets what it kept first."""
        kept = [buffer for buffer in self.buffers.values() if buffer.kept]
        if kept:
            del self.pick(pick, kept).kept[0]

    # --- refs ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.present and self.buffers)
    @rule(pick=picks, other=picks, start=picks, length=picks, keep=st.sampled_from(["nothing", "ref", "array", "view"]))
    def resolve(self, pick: int, other: int, start: int, length: int, keep: str) -> None:
        """A ref in a request is an array of the right content, for whoever has a lease of it and no one else."""
        session, buffer = self.pick(pick, self.present), self.pick(other, list(self.buffers.values()))
        low = start % (len(buffer.pattern) + 1)
        high = low + length % (len(buffer.pattern) + 1 - low)
        ref = msgspec.structs.replace(buffer.ref, shape=[high - low], offset=buffer.ref.offset + low)
        if not session.leases[buffer.id]:
            del session.leases[buffer.id]
            assert refused(errors.GpuRefReleased, session.resolve, ref)
            return
        array = session.resolve(ref)
        assert array.array.tobytes() == buffer.pattern[low:high]
        assert not array.array.flags.writeable
        assert array.elements.tobytes() == buffer.pattern[low:high]
        if keep == "ref":
            buffer.kept.append(array)
        elif keep == "array":
            buffer.kept.append(array.array)
        elif keep == "view":
            buffer.kept.append(array.array[:0])

    @precondition(lambda self: self.present and self.buffers)
    @rule(pick=picks, other=picks, before=st.integers(0, 2), after=st.integers(0, 2))
    def reach_beyond(self, pick: int, other: int, before: int, after: int) -> None:
        """A ref that leaves its buffer is refused, in the slab or not."""
        session, buffer = self.pick(pick, self.present), self.pick(other, list(self.buffers.values()))
        nbytes, offset = len(buffer.pattern), buffer.ref.offset
        wide = msgspec.structs.replace(
            buffer.ref, shape=[nbytes + before + after], offset=max(offset - before, 0), value=False
        )
        outside = before > 0 and (offset > 0 or nbytes + after > 0)
        if (outside and offset > 0) or after or wide.shape[0] > nbytes:
            assert refused(errors.RequestError, session.resolve, wide)
        for beyond in (offset + nbytes + 1, offset - 1):
            if beyond >= 0:
                empty = msgspec.structs.replace(buffer.ref, shape=[0], offset=beyond)
                assert refused(errors.RequestError, session.resolve, empty)

    @precondition(lambda self: self.present and (self.gone or self.buffers))
    @rule(pick=picks, other=picks)
    def resolve_what_is_not_there(self, pick: int, other: int) -> None:
        """Refs to freed memory, of an earlier generation, of another pool, of a device that lent nothing."""
        session = self.pick(pick, self.present)
        for gone in self.gone[-3:]:
            assert refused(errors.GpuRefReleased, session.resolve, gone)
        ref = self.pick(other, [*self.gone, *(buffer.ref for buffer in self.buffers.values())])
        for packed, error in (
            (token.pack(EPOCH, DEVICE, GENERATION - 1), errors.GpuRefStale),
            (token.pack(EPOCH, DEVICE, GENERATION + 1), errors.GpuRefStale),
            (token.pack(b"f" * 16, DEVICE, GENERATION), errors.PoolMismatch),
            (token.pack(EPOCH, DEVICE + 7, GENERATION), errors.GpuRefWrongDevice),
        ):
            assert refused(error, session.resolve, msgspec.structs.replace(ref, token=packed))

    # --- requests, views -------------------------------------------------------------------------------------

    @precondition(lambda self: self.present)
    @rule(pick=picks, other=picks, write=st.booleans())
    def begin(self, pick: int, other: int, write: bool) -> None:  # noqa: FBT001
        """A request begins, or waits for exactly those before it that conflict; a view that excludes it refuses it."""
        session = self.pick(pick, self.present)
        if not session.leases:
            return
        buffer = self.pick(other, self.leased(session))
        array = session.resolve(buffer.ref)
        borrows = array.block.borrows
        if any(self.views(buffer)) or (write and self.views(buffer)):
            assert refused(errors.BorrowConflict, borrows.before, write=write)
            return
        after = list(borrows.before(write=write))
        expected = [each.event for each in buffer.running if (write or each.write) and not each.event.done]
        assert sorted(map(id, after)) == sorted(map(id, expected))
        array.writable = write
        event = self.device.make_event()
        borrows.add(event, write=write)
        buffer.running.append(Running(array, write, event, after))

    @rule(pick=picks, dropped=st.booleans())
    def finish_one(self, pick: int, dropped: bool) -> None:  # noqa: FBT001
        """A request runs and ends, once all have that it waits for; or it is dropped, which it may be at any time."""
        running = [(buffer, each) for buffer in self.buffers.values() for each in buffer.running]
        ready = [(buffer, each) for buffer, each in running if all(event.done for event in each.after)]
        if dropped and running:
            buffer, each = self.pick(pick, running)
            self.finish(buffer, each)
        elif ready:
            buffer, each = self.pick(pick, ready)
            others = [other for other in buffer.running if other is not each and not other.event.done]
            if each.write:
                assert all(each.event in other.after for other in others), "a writer is not alone"
                number = self.number()
                buffer.pattern = filled(number, len(buffer.pattern))[: len(buffer.pattern)]
                each.array.array[...] = np.frombuffer(buffer.pattern, np.uint8)
            assert each.array.array.tobytes() == buffer.pattern
            self.finish(buffer, each)

    def finish(self, buffer: Buffer, running: Running) -> None:
        """End a request."""
        assert not running.event.done
        running.event.end()
        buffer.running.remove(running)

    def finish_all(self, buffer: Buffer) -> None:
        """End all requests that use a buffer; nothing of them stays behind in a variable."""
        for running in list(buffer.running):
            self.finish(buffer, running)

    @precondition(lambda self: self.present)
    @rule(pick=picks, other=picks, view=st.integers(1, 4), write=st.booleans())
    def open_view(self, pick: int, other: int, view: int, write: bool) -> None:  # noqa: FBT001
        """A client takes a view: any number may read, or one may write."""
        session = self.pick(pick, self.present)
        if not session.leases:
            return
        buffer = self.pick(other, self.leased(session))
        array = session.resolve(buffer.ref)
        there = self.views(buffer)
        if view in session.views:
            assert refused(errors.InvalidRequest, self.store.open_view, session.holder, array, view, write=write)
        elif any(there) or (write and there):
            assert refused(errors.BorrowConflict, self.store.open_view, session.holder, array, view, write=write)
        else:
            self.store.open_view(session.holder, array, view, write=write)
            session.views[view] = (buffer.id, write)

    # --- sharing ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.present)
    @rule(pick=picks, other=picks, secret=secrets, for_s=st.sampled_from([1.0, 60.0]))
    def share(self, pick: int, other: int, secret: bytes, for_s: float) -> None:
        """A client keeps a buffer for another; it may do so for several."""
        session = self.pick(pick, self.present)
        if session.leases:
            buffer = self.pick(other, self.leased(session))
            self.store.shares.share(session.resolve(buffer.ref), secret, for_s)
            buffer.shares[secret] = self.clock.now_ns + int(for_s * 1e9)

    @precondition(lambda self: self.present and self.buffers)
    @rule(pick=picks, other=picks, secret=secrets)
    def claim(self, pick: int, other: int, secret: bytes) -> None:
        """Whoever shows the secret gets a lease, once and in time."""
        session, buffer = self.pick(pick, self.present), self.pick(other, list(self.buffers.values()))
        self.expire()
        if secret not in buffer.shares:
            assert refused(errors.GpuRefReleased, self.store.shares.claim, buffer.id, secret)
            return
        array = self.store.shares.claim(buffer.id, secret)
        assert array.array.tobytes() == buffer.pattern
        assert array.block.id == buffer.id
        self.lease(session, array)
        del buffer.shares[secret]

    @rule(s=st.sampled_from([0.5, 0.5, 1.0, 60.0]))
    def wait(self, s: float) -> None:
        """Time passes; the store says when it wants to be looked after."""
        until = [until for buffer in self.buffers.values() for until in buffer.shares.values()]
        assert self.store.shares.next_expiry_ns == min(until, default=None)
        self.clock.now_ns += int(s * 1e9)
        self.store.tidy()
        self.expire()

    def expire(self) -> None:
        """Forget what was not claimed in time."""
        for buffer in self.buffers.values():
            buffer.shares = {each: until for each, until in buffer.shares.items() if until >= self.clock.now_ns}

    # --- slabs elsewhere, and others' here -------------------------------------------------------------------

    @precondition(lambda self: self.sessions and self.store.slabs.by_number)
    @rule(pick=picks, other=picks, device=st.none() | st.integers(2, 3))
    def open_elsewhere(self, pick: int, other: int, device: int | None) -> None:
        """A slab is opened by who has a lease in it; what is opened is the memory itself."""
        session = self.pick(pick, list(self.sessions.values()))
        number = self.pick(other, list(self.store.slabs.by_number))
        if number not in {buffer.ref.slab for buffer in self.leased(session)}:
            assert refused(errors.GpuRefReleased, self.store.export, session.number, number, device)
            return
        export = self.store.export(session.number, number, device)
        assert export.descriptor is not None
        self.opened[number, session.number, device] += 1
        self.mappings[number] = self.device.open_slab(export.nbytes, export.handle, os.dup(export.descriptor))

    @precondition(lambda self: self.present)
    @rule(pick=picks)
    def relay_ends(self, pick: int) -> None:
        """The process that had mapped slabs for a client has ended; the session and other devices keep theirs."""
        mapped = {number for _, number, device in self.opened if device is None}
        session = self.pick(pick, [each for each in self.present if each.number in mapped] or self.present)
        self.store.slabs.close_opened(session.number)
        for key in [key for key in self.opened if key[1:] == (session.number, None)]:
            del self.opened[key]
        slabs = self.store.slabs.by_number
        found = {(number, *key): count for number, slab in slabs.items() for key, count in slab.opened.items()}
        assert found == {key: count for key, count in self.opened.items() if key[0] in slabs}

    @rule(device=st.integers(2, 3), generation=st.integers(1, 2))
    def incarnation_over(self, device: int, generation: int) -> None:
        """Another device's process ends: nothing of its own is left here. The next one has open what it was lent."""
        self.store.incarnation_over(device, generation)
        self.over[device] = generation
        for session in self.sessions.values():
            for foreign in [key for key in session.foreign_slabs if key[:2] == (device, generation)]:
                del session.foreign_slabs[foreign]

    @precondition(lambda self: self.sessions)
    @rule(pick=picks, device=st.integers(2, 3), generation=st.integers(1, 2), slab=st.integers(1, 2))
    def lend_foreign(self, pick: int, device: int, generation: int, slab: int) -> None:
        """Another device's slab is lent to a session's requests; to one that has ended, nothing is."""
        session = self.pick(pick, list(self.sessions.values()))
        content = filled(self.number(), SMALL_PAGE_BYTES)[:SMALL_PAGE_BYTES]
        memory = self.device.open_slab(SMALL_PAGE_BYTES, b"", memfd(content))
        self.store.add_foreign_slab(session.number, device, generation, slab, memory)
        if not session.ended:
            session.foreign_slabs[device, generation, slab] = content

    @precondition(lambda self: self.present)
    @rule(
        pick=picks,
        device=st.integers(2, 3),
        generation=st.integers(1, 2),
        slab=st.integers(1, 2),
        low=st.integers(0, SMALL_PAGE_BYTES),
        length=st.integers(0, 100),
    )
    def resolve_foreign(self, pick: int, device: int, generation: int, slab: int, low: int, length: int) -> None:
        """A lent slab is read; one that was not lent, or not to this session, is not; and never beyond its end."""
        session = self.pick(pick, self.present)
        ref = WireRef(token.pack(EPOCH, device, generation), 77, slab, "uint8", (length,), (1,), low)
        content = session.foreign_slabs.get((device, generation, slab))
        if content is None:
            over = generation <= self.over.get(device, 0)
            assert refused(errors.GpuRefStale if over else errors.GpuRefWrongDevice, session.resolve, ref)
        elif low + length > SMALL_PAGE_BYTES:
            assert refused(errors.GpuRefOutOfExtent, session.resolve, ref)
        else:
            array = session.resolve(ref)
            assert array.array.tobytes() == content[low : low + length]
            assert refused(errors.GpuRefWrongDevice, array.to_wire)

    @precondition(lambda self: self.sessions)
    @rule(pick=picks, slab=st.integers(1, 2), forget=st.booleans())
    def register(self, pick: int, slab: int, forget: bool) -> None:  # noqa: FBT001
        """A client registers memory of its own, or forgets it."""
        session = self.pick(pick, list(self.sessions.values()))
        if forget:
            self.store.forget_client_slab(session.number, slab)
            session.client_slabs.pop(slab, None)
            return
        content = filled(self.number(), SMALL_PAGE_BYTES)[:SMALL_PAGE_BYTES]
        memory = self.device.open_client_slab(SMALL_PAGE_BYTES, memfd(content))
        self.store.add_client_slab(session.number, slab, memory)
        if not session.ended:
            session.client_slabs[slab] = content

    @precondition(lambda self: self.present)
    @rule(pick=picks, slab=st.integers(1, 2), low=st.integers(0, SMALL_PAGE_BYTES), length=st.integers(0, 200))
    def use_client_memory(self, pick: int, slab: int, low: int, length: int) -> None:
        """An array in a client's memory is read in place, and kept for as long as the actor likes."""
        session = self.pick(pick, self.present)
        use = self.number()
        ref = ClientArray(use, slab, "uint8", (length,), low)
        content = session.client_slabs.get(slab)
        if content is None:
            assert refused(errors.InvalidRequest, session.resolve, ref)
        elif low + length > SMALL_PAGE_BYTES:
            assert refused(errors.GpuRefOutOfExtent, session.resolve, ref)
        else:
            array = session.resolve(ref)
            assert not array.flags.writeable
            session.client_arrays[use] = array[::2], content[low : low + length : 2]

    @precondition(lambda self: self.present)
    @rule(pick=picks, other=picks)
    def return_client_memory(self, pick: int, other: int) -> None:
        """The client hears of each use that has ended, once, and of no other."""
        session = self.pick(pick, self.present)
        if session.client_arrays:
            use = self.pick(other, list(session.client_arrays))
            del session.client_arrays[use]
            session.returned.add(use)
        returned = session.holder.take_returned()
        assert sorted(returned) == sorted(session.returned)
        session.returned.clear()

    # --- what always holds -----------------------------------------------------------------------------------

    @invariant()
    def every_buffer_has_its_pattern(self) -> None:
        """Here, in every array that is kept, and where its slab is open elsewhere."""
        for buffer in self.buffers.values():
            if not self.needed(buffer):
                continue
            ref, nbytes = buffer.ref, len(buffer.pattern)
            slab = self.store.slabs.by_number[ref.slab]
            assert slab.memory.bytes(None, ref.offset, nbytes).tobytes() == buffer.pattern
            assert slab.holder.number == buffer.owner, "in another session's slab"
            if any(opened == ref.slab for opened, _, _ in self.opened):
                assert self.mappings[ref.slab].bytes(None, ref.offset, nbytes).tobytes() == buffer.pattern
            for array in buffer.kept:
                content = array.array if isinstance(array, DeviceArray) else array
                assert content.tobytes() in buffer.pattern
        for session in self.sessions.values():
            for array, content in session.client_arrays.values():
                assert array.tobytes() == content

    @invariant()
    def no_slab_goes_while_it_is_open(self) -> None:
        """Nor is there more than the quota allows."""
        assert {slab for slab, _, _ in self.opened} <= self.store.slabs.by_number.keys()
        spare = SMALL_SLAB_BYTES * len(self.store.slabs.spares)
        assert (
            self.store.slabs.bytes_on.total()
            == sum(slab.memory.nbytes for slab in self.store.slabs.by_number.values()) + spare
        )
        assert self.store.slabs.bytes_on.total() <= QUOTA_BYTES

    @rule()
    def look(self) -> None:
        """After tidying, just that is taken which somebody needs, and the figures say so."""
        self.store.tidy()
        self.expire()
        self.forget_what_nobody_needs()
        figures = self.store.statistics()
        sessions = self.sessions.values()
        slabs = self.store.slabs.by_number.values()
        assert figures["used_bytes"] == sum(aligned(len(buffer.pattern)) for buffer in self.buffers.values())
        assert figures["slab_bytes"] == self.store.slabs.bytes_on.total()
        assert figures["slabs"] == len(slabs)
        assert figures["leases"] == sum(session.leases.total() for session in sessions)
        assert figures["views"] == sum(len(session.views) for session in sessions)
        assert figures["open_elsewhere"] == self.opened.total()
        assert figures["shared"] == sum(len(buffer.shares) for buffer in self.buffers.values())
        assert figures["client_slabs"] == sum(len(session.client_slabs) for session in sessions)
        assert figures["foreign_slabs"] == sum(len(session.foreign_slabs) for session in sessions)
        spare = {id(slab) for _, slab in self.store.slabs.spares}
        assert self.device.living() == {id(slab.memory) for slab in slabs} | spare
        unused = [slab for slab in slabs if not slab.space and not slab.opened]
        assert sum(slab.memory.nbytes for slab in unused) <= CACHED_BYTES
        assert not any(slab.holder.gone for slab in unused if slab.holder.number not in self.sessions)

    def teardown(self) -> None:
        """When all have gone, nothing is left but what is cached, and all of it can be had again."""
        try:
            for buffer in self.buffers.values():
                self.finish_all(buffer)
                buffer.kept.clear()
            for session in list(self.sessions.values()):
                self.store.close_mappings(session.number)
                self.store.reclaim(session.number)
                session.returned |= session.client_arrays.keys()
                session.client_arrays.clear()
                assert sorted(session.holder.take_returned()) == sorted(session.returned)
            self.sessions.clear()
            self.opened.clear()
            self.clock.now_ns += 10**12
            self.look()
            assert not self.buffers
            assert all(slab.holder is self.store.buffers.ours for slab in self.store.slabs.by_number.values())
            whole = self.store.buffers.allocate(self.store.buffers.ours, "uint8", (QUOTA_BYTES,))
            assert whole.nbytes == QUOTA_BYTES
        finally:
            self.patches.close()


TestDeviceMemory = DeviceMemory.TestCase
TestDeviceMemory.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)


# --- borrows of one buffer -----------------------------------------------------------------------------------


def test_a_request_that_is_dropped_stands_for_nobody() -> None:
    """A cancelled writer ends at once; what it would have waited for goes on, and is still waited for."""
    borrows = Borrows()
    reader, dropped = HostEvent(), HostEvent()
    borrows.add(reader, write=False)
    assert list(borrows.before(write=True)) == [reader]
    borrows.add(dropped, write=True)
    dropped.end()
    assert list(borrows.before(write=True)) == [reader]
    assert list(borrows.before(write=False)) == []


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 30), max_size=3)), max_size=30))
def test_what_comes_before_is_what_conflicts(requests: list[tuple[bool, list[int]]]) -> None:
    """All unfinished writers for a reader, all unfinished requests for a writer; nothing is kept of what has ended."""
    borrows = Borrows()
    noted: list[tuple[HostEvent, bool]] = []
    for write, ended in requests:
        expected = [event for event, writes in noted if not event.done and (write or writes)]
        assert sorted(map(id, borrows.before(write=write))) == sorted(map(id, expected))
        event = HostEvent()
        noted.append((event, write))
        borrows.add(event, write=write)
        for at in ended:
            noted[at % len(noted)][0].end()
    for event, _ in noted:
        event.end()
    assert list(borrows.before(write=True)) == []
    assert not borrows._readers
    assert not borrows._writers


def test_the_view_of_another_sessions_same_id_is_another() -> None:
    """Ids are unique in a session only; closing one that is not there changes nothing."""
    borrows = Borrows()
    borrows.open_view(1, 7, write=False)
    borrows.open_view(2, 7, write=False)
    with pytest.raises(errors.InvalidRequest, match="7"):
        borrows.open_view(1, 7, write=False)
    with pytest.raises(errors.BorrowConflict, match="2 open views"):
        borrows.before(write=True)
    borrows.close_view(1, 7)
    borrows.close_view(1, 7)
    with pytest.raises(errors.BorrowConflict, match="1 open view of"):
        borrows.before(write=True)
    borrows.close_view(2, 7)
    borrows.open_view(1, 7, write=True)
    with pytest.raises(errors.BorrowConflict, match=r"reads .* a writable view"):
        borrows.before(write=False)


# --- the store, by itself ------------------------------------------------------------------------------------


@pytest.fixture
def small() -> Iterator[Clock]:
    """Make slabs small, and the clock one that the test moves."""
    clock = Clock()
    with (
        mock.patch.object(allocation, "SLAB_BYTES", SMALL_SLAB_BYTES),
        mock.patch.object(allocation, "PAGE_BYTES", SMALL_PAGE_BYTES),
        mock.patch.object(shares_module, "time", clock),
    ):
        yield clock


def test_a_buffer_can_be_shared_with_several(small: Clock) -> None:
    """Each claim has its own secret and its own time."""
    store = Store(HostDevice(), CURRENT, QUOTA_BYTES, InProgress())
    array = store.buffers.keep(store.admit(1), np.arange(5))
    store.shares.share(array, b"a" * 16, 1)
    store.shares.share(array, b"b" * 16, 60)
    assert store.shares.claim(array.block.id, b"a" * 16).array.tolist() == [0, 1, 2, 3, 4]
    small.now_ns += 2 * 10**9
    assert store.shares.claim(array.block.id, b"b" * 16).block is array.block
    assert refused(errors.GpuRefReleased, store.shares.claim, array.block.id, b"b" * 16)


@pytest.mark.usefixtures("small")
def test_the_slab_of_a_session_that_is_gone_is_freed_when_the_last_opener_closes_it() -> None:
    """Also if nothing else happens then."""
    device = CountingDevice()
    store = Store(device, CURRENT, QUOTA_BYTES, InProgress())
    giver, receiver = store.admit(1), store.admit(2)
    array = store.buffers.allocate(giver, "uint8", (10,))
    slab = array.block.slab_number
    buffer = store.lease(receiver, array)
    del array
    store.export(2, slab, None)
    store.reclaim(1)
    store.release(receiver, [buffer], [], [])
    store.tidy()
    assert len(device.living()) == 1
    store.release(receiver, [], [], [slab])
    assert not device.living()


@pytest.mark.usefixtures("small")
def test_slabs_that_a_relay_had_open_are_free_after_its_end_though_the_session_goes_on() -> None:
    """Those of other sessions and devices are not; words of the former process's closing change nothing later."""
    device = CountingDevice()
    store = Store(device, CURRENT, QUOTA_BYTES, InProgress())
    receiver, givers = store.admit(2), (3, 4, 5)
    arrays = [store.buffers.allocate(store.admit(giver), "uint8", (10,)) for giver in givers]
    slabs = [array.block.slab_number for array in arrays]
    assert len(set(slabs)) == 3
    buffers = [store.lease(receiver, array) for array in arrays]
    del arrays
    for slab, to_device in zip(slabs, (None, 1, None), strict=True):
        store.export(2, slab, to_device)
    store.slabs.close_opened(2)
    store.export(2, slabs[2], None)
    store.release(receiver, buffers, [], [slabs[0]])
    for giver in givers:
        store.reclaim(giver)
    store.tidy()
    assert len(device.living()) == 2
    store.release(receiver, [], [], [slabs[2]])
    assert len(device.living()) == 1


@pytest.mark.parametrize("nbytes", [8, checks.FILLED_BYTES + 8, 3 * checks.FILLED_BYTES])
def test_freed_memory_is_filled_at_both_ends(nbytes: int) -> None:
    """A view that is kept too long shows no number there, and its neighbours' memory is as it was."""
    store = Store(HostDevice(), CURRENT, 2**27, InProgress())
    holder = store.admit(1)
    before, freed, after = (store.buffers.keep(holder, np.ones(nbytes // 8)) for _ in range(3))
    offset = freed.block.offset
    (slab,) = holder.slabs
    late = slab.memory.bytes(None, offset, nbytes)
    del freed
    store.tidy()
    ends = np.concatenate([late[: checks.FILLED_BYTES], late[-checks.FILLED_BYTES :]])
    assert np.isnan(ends.view(np.float64)).all()
    assert np.isfinite(late[checks.FILLED_BYTES : -checks.FILLED_BYTES].view(np.float64)).all()
    assert (before.array == 1).all()
    assert (after.array == 1).all()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float8_e5m2", "bool", "complex64"])
def test_what_is_kept_is_a_copy_of_the_same_type(dtype: str) -> None:
    """In whatever order the original lies."""
    from atomr_mp.protocol import dtypes

    store = Store(HostDevice(), CURRENT, QUOTA_BYTES, InProgress())
    original = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtypes.to_numpy(dtype)).T
    kept = store.buffers.keep(store.buffers.ours, original)
    assert kept.array.dtype == original.dtype
    assert (kept.array == original).all()
    assert kept.layout.is_contiguous()
    assert not np.shares_memory(kept.array, original)


@pytest.mark.usefixtures("small")
def test_views_of_an_array_are_views_of_the_same_memory() -> None:
    """They keep it too, and each can be sent."""
    store = Store(HostDevice(), CURRENT, QUOTA_BYTES, InProgress())
    session = store.admit(1)
    array = store.buffers.keep(session, np.arange(24, dtype=np.int16).reshape(4, 6))
    store.lease(session, array)
    view = array[1:, ::-2].transpose()
    expected = np.arange(24).reshape(4, 6)[1:, ::-2].T
    assert (view.array == expected).all()
    received = store.refs.resolver(session)(view.to_wire())
    assert isinstance(received, DeviceArray)
    assert (received.array == expected).all()
    assert received.overlaps(array)
    assert array.reshape(2, -1).shape == (2, 12)
    assert set(received.elements.tolist()) >= set(expected.reshape(-1).tolist())
    del array, view
    assert store.statistics()["used_bytes"] == aligned(48)


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # but possible still
@pytest.mark.usefixtures("small")
def test_every_request_gets_arrays_of_its_own() -> None:
    """What one does to its array, another does not see; and they do not keep the memory any longer."""
    store = Store(HostDevice(), CURRENT, QUOTA_BYTES, InProgress())
    session = store.admit(1)
    array = store.buffers.keep(session, np.arange(12, dtype=np.int16))
    leased = store.lease(session, array)
    ref = array.to_wire()
    del array
    resolve: Any = store.refs.resolver(session)
    first = resolve(ref).array
    first.shape = (3, 4)
    second, part = resolve(ref), resolve(msgspec.structs.replace(ref, shape=(2,), offset=ref.offset + 4))
    assert second.array.shape == (12,)
    assert part.array.tolist() == [2, 3]
    second.writable = True
    second.array[2] = 7
    assert part.array.tolist() == first[0, 2:].tolist() == [7, 3]
    third = resolve(ref).array
    assert not any(each.flags.writeable for each in (first, part.array, third))
    session.resolved.clear()
    store.release(session, [leased], [], [])
    assert refused(errors.GpuRefReleased, resolve, ref)
    del second, part, first
    assert third.tolist() == [0, 1, 7, *range(3, 12)]
    assert store.statistics()["used_bytes"] > 0
    del third
    assert store.statistics()["used_bytes"] == 0


@pytest.mark.usefixtures("small")
def test_a_result_goes_through_the_socket_if_there_is_no_room() -> None:
    """But what is too large for it is an error."""
    store = Store(HostDevice(), CURRENT, QUOTA_BYTES, InProgress())
    session = store.admit(1)
    assert store.buffers.place(session, np.zeros(QUOTA_BYTES + 1, np.uint8)) is None
    with mock.patch.object(buffers_module, "MAX_PAYLOAD_BYTES", QUOTA_BYTES):
        assert refused(errors.OutOfMemory, store.buffers.place, session, np.zeros(QUOTA_BYTES + 1, np.uint8))
    assert store.statistics()["slabs"] == 0


def test_threads_may_allocate_share_and_claim_while_the_loop_tidies_up() -> None:
    """Nothing is lost, nothing is used twice, and no session stumbles over the others."""
    store = Store(HostDevice(), CURRENT, 2**30, InProgress())
    begin, failures = threading.Barrier(5), list[BaseException]()

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        begin.wait(30)
        try:
            kept: list[tuple[DeviceArray, int]] = []
            for step in range(1000):
                value = number * 1000 + step
                made = store.buffers.allocate(store.buffers.ours, "int64", (int(random.integers(0, 300)),))
                made.array[...] = value
                store.shares.share(made, b"%016d" % value, 3600)
                kept.append((made, value))
                if len(kept) > 20:
                    array, value = kept.pop(int(random.integers(0, 20)))
                    claimed = store.shares.claim(array.block.id, b"%016d" % value)
                    assert (claimed.array == value).all()
            for array, value in kept:
                assert (store.shares.claim(array.block.id, b"%016d" % value).array == value).all()
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    begin.wait(30)
    while any(thread.is_alive() for thread in threads):
        store.tidy()
        assert store.statistics()["used_bytes"] >= 0
        expiry_ns = store.shares.next_expiry_ns
        assert expiry_ns is None or expiry_ns > 0
    for thread in threads:
        thread.join(30)
    assert not failures
    assert store.statistics()["used_bytes"] == 0
    assert store.statistics()["shared"] == 0


class SlowDevice(CountingDevice):
    """Makes a slab only when it is let, as a driver does that another process keeps busy."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    def make_slab(self, nbytes: int) -> Slab:
        """Wait, and make a slab."""
        self.asked.set()
        assert self.go_on.wait(30)
        return super().make_slab(nbytes)


@pytest.mark.usefixtures("small")
def test_nobody_waits_for_a_slab_that_another_has_asked_for() -> None:
    """What has room goes on, and so does the loop, which tidies at each turn."""
    device = SlowDevice()
    device.go_on.set()
    store = Store(device, CURRENT, QUOTA_BYTES, InProgress())
    first, second = store.admit(1), store.admit(2)
    kept = [store.buffers.allocate(first, "uint8", (10,))]
    device.go_on.clear()
    device.asked.clear()
    waiting = threading.Thread(target=lambda: kept.append(store.buffers.allocate(second, "uint8", (10,))))
    waiting.start()
    assert device.asked.wait(30)
    kept.append(store.buffers.allocate(first, "uint8", (10,)))
    store.tidy()
    assert store.statistics()["slab_bytes"] == 2 * SMALL_SLAB_BYTES  # what is made counts from the beginning
    device.go_on.set()
    waiting.join(30)
    assert len(kept) == 3
    assert kept[2].block.slab_number != kept[0].block.slab_number


@pytest.mark.usefixtures("small")
def test_room_can_be_made_beforehand_and_elsewhere() -> None:
    """Whoever needs it hears when it is there; who has some already hears that, and nothing is made."""
    device = SlowDevice()
    store = Store(device, CURRENT, QUOTA_BYTES, InProgress())
    session, event, woken = store.admit(1), device.make_event(), threading.Event()
    assert store.slabs.provide(session, 100, event, woken.set)
    assert device.asked.wait(30)
    before = event.done
    device.go_on.set()
    assert woken.wait(30)
    assert (before, event.done) == (False, True)
    assert not store.slabs.provide(session, 100, device.make_event(), woken.set)
    assert store.buffers.allocate(session, "uint8", (100,)).block.slab_number == 1
    assert len(device.living()) == 1


@pytest.mark.usefixtures("small")
def test_room_for_a_session_that_has_ended_meanwhile_is_given_back() -> None:
    """Nothing would ever come back to such a slab, by which it would be found to be unused."""
    device = SlowDevice()
    store = Store(device, CURRENT, QUOTA_BYTES, InProgress())
    session, woken = store.admit(1), threading.Event()
    assert store.slabs.provide(session, 100, device.make_event(), woken.set)
    assert device.asked.wait(30)
    store.close_mappings(1)
    store.reclaim(1)
    device.go_on.set()
    assert woken.wait(30)
    assert store.slabs.bytes_on.total() == 0
    assert not session.slabs


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("driver", [False, True])
def test_after_a_promotion_spare_slabs_are_let_go_of(*, driver: bool) -> None:
    """Once the driver was left alone, and then the loop hears of it; one stays where a slab takes long to make."""
    device, woken, background = CountingDevice(), threading.Event(), Background()
    host = CountingDevice() if driver else device
    with (
        mock.patch.object(CountingDevice, "background", background),
        mock.patch.object(CountingDevice, "host", host),
    ):
        store = Store(device, CURRENT, QUOTA_BYTES, InProgress())
        store.slabs.keep_spares({device: 3})
        store.slabs.leave_driver_alone(0.0, woken.set)
        assert (store.slabs.quiet, len(store.slabs.spares)) == (True, 3)
        background.start()
        assert woken.wait(30)
        assert (store.slabs.quiet, len(store.slabs.spares)) == (False, int(driver))
        assert store.figures[0] == SMALL_SLAB_BYTES * driver


class Keeper:
    """Notes which slabs the supervisor keeps open."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def hand_in(self, slab: OwnSlab) -> None:
        """Note it."""
        self.kept.append(slab.number)

    def freed(self, slab: OwnSlab) -> None:
        """Forget it."""
        self.kept.remove(slab.number)


@pytest.mark.usefixtures("small")
def test_a_standby_has_a_slab_ready_for_results_of_a_session() -> None:
    """It is handed in before there are any, and lies in half of the quota; it goes with the session."""
    device, keeper = CountingDevice(), Keeper()
    store = Store(device, CURRENT, QUOTA_BYTES, InProgress(), keeper)
    assert not store.prepare_results(1)
    holders = [store.admit(number) for number in range(1, 5)]
    assert [store.prepare_results(number) for number in (1, 2, 1, 3, 4)] == [True, True, True, True, False]
    assert keeper.kept == [1, 2, 3]
    assert 2 * store.slabs.bytes_on.total() == QUOTA_BYTES
    placed = store.buffers.place(holders[1], np.ones(10))
    assert placed is not None
    store.lease(holders[1], placed)
    assert placed.block.slab_number == 2
    assert keeper.kept == [1, 2, 3]  # not once more
    for number in (1, 3):
        store.close_mappings(number)
        store.reclaim(number)
    assert keeper.kept == [2]
    assert len(device.living()) == 1
    with mock.patch.object(slabs_module, "SPARE_BYTES", SMALL_SLAB_BYTES):
        assert not store.prepare_results(4)
    with mock.patch.object(CountingDevice, "make_slab", side_effect=errors.OutOfMemory("none")):
        assert not store.prepare_results(4)
    assert store.slabs.bytes_on.total() == SMALL_SLAB_BYTES
    assert store.prepare_results(4)


@pytest.mark.usefixtures("small")
def test_room_that_cannot_be_made_is_told_too() -> None:
    """The request finds out what there is to report; nothing stays counted."""
    device = CountingDevice()
    store = Store(device, CURRENT, QUOTA_BYTES, InProgress())
    session, event, woken = store.admit(1), device.make_event(), threading.Event()
    assert store.slabs.provide(session, QUOTA_BYTES + 1, event, woken.set)
    assert woken.wait(30)
    assert event.done
    assert store.slabs.bytes_on.total() == 0
    with mock.patch.object(CountingDevice, "make_slab", side_effect=errors.OutOfMemory("none")):
        assert refused(errors.OutOfMemory, store.buffers.allocate, session, "uint8", (10,))
    assert store.slabs.bytes_on.total() == 0


@pytest.mark.usefixtures("small")
def test_spare_slabs_are_for_the_first_that_need_one() -> None:
    """As many as are wanted and as there is room for; each goes to a session of its own."""
    device = CountingDevice()
    store = Store(device, CURRENT, QUOTA_BYTES, InProgress())
    store.slabs.keep_spares({device: 3})
    store.slabs.keep_spares({device: 2})
    assert len(store.slabs.spares) == len(device.living()) == 3
    holders = [store.admit(number) for number in (1, 2)]
    arrays = [store.buffers.allocate(holder, "uint8", (10,)) for holder in holders]
    assert len({array.block.slab_number for array in arrays}) == 2
    assert len(device.living()) == 3
    store.slabs.keep_spares({device: 100})
    assert store.slabs.bytes_on.total() == QUOTA_BYTES
    store.slabs.drop_spares(but=1)
    assert len(device.living()) == 3
    with mock.patch.object(slabs_module, "SPARE_BYTES", 2 * SMALL_SLAB_BYTES):
        store.slabs.keep_spares({device: 100})
    assert len(store.slabs.spares) == 2
