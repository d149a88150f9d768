"""Memory of a client for arguments: placed, returned, used again, bounded. The workers are a fake."""

from __future__ import annotations

import fcntl
import os
import resource
import time
from typing import Any

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.client.memory.argument_slabs import KEEP_EMPTY, ClientSlabs, Placement
from atomr_mp.client.memory.leases import Releases
from atomr_mp.interop.host import HostMapping
from atomr_mp.interop.sealed import SEALS
from atomr_mp.protocol import token
from atomr_mp.protocol.allocation import SLAB_BYTES
from atomr_mp.protocol.flow.limits import MAX_PAYLOAD_BYTES
from atomr_mp.protocol.process_tags import CLIENT_SLAB
from tests.support import open_descriptors

MIB = 2**20


class FakeWorkers:
    """Maps what is registered, as workers do."""

    def __init__(self) -> None:
        self.slabs: dict[int, HostMapping] = {}
        self.forgotten: list[int] = []
        self.refusal: errors.AtomrError | None = None
        self.registered = 0

    def register(self, nbytes: int, descriptor: int) -> int:
        """Take a slab in."""
        if self.refusal is not None:
            raise self.refusal
        assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
        assert os.fstat(descriptor).st_size == nbytes
        self.registered += 1
        self.slabs[self.registered] = HostMapping(descriptor, nbytes)
        return self.registered

    def read(self, placed: Placement) -> np.ndarray[Any, Any]:
        """Return what a call would see."""
        wire = placed.to_wire()
        return self.slabs[wire.slab].array(wire.layout, writable=False)


@pytest.fixture
def workers() -> FakeWorkers:
    """The workers."""
    return FakeWorkers()


@pytest.fixture
def slabs(workers: FakeWorkers) -> ClientSlabs:
    """Slabs of a client, with room for three."""
    return ClientSlabs(workers.register, workers.forgotten.append, 3 * SLAB_BYTES)


def place(slabs: ClientSlabs, array: np.ndarray[Any, Any]) -> Placement:
    """Place what there is room for."""
    placed = slabs.place(array)
    assert placed is not None
    return placed


def mib(n: float) -> np.ndarray[Any, Any]:
    """Return an array of so many MiB."""
    return np.zeros(int(n * MIB), "uint8")


def test_what_is_placed_is_what_the_workers_see(workers: FakeWorkers, slabs: ClientSlabs) -> None:
    """Row-major and native, however it lay."""
    arrays = [np.arange(6.0).reshape(2, 3).T, np.arange(5, dtype=">i4")[::-1], np.ones((2, 0))]
    placed = [place(slabs, array) for array in arrays]
    for array, each in zip(arrays, placed, strict=True):
        np.testing.assert_array_equal(workers.read(each), array)
    assert len({each.id for each in placed}) == 3
    assert workers.registered == 1


def test_what_lies_there_in_another_byte_order_is_copied(workers: FakeWorkers, slabs: ClientSlabs) -> None:
    """Arrays on the wire have no byte order of their own."""
    array = slabs.array((5,), "int32")
    array[:] = range(5)
    swapped = array.view(array.dtype.newbyteorder())
    np.testing.assert_array_equal(workers.read(place(slabs, swapped)), swapped)


def test_room_is_used_again_when_nobody_uses_it(workers: FakeWorkers, slabs: ClientSlabs) -> None:
    """Room that somebody uses is left alone."""
    first, second = place(slabs, mib(20)), place(slabs, mib(20))
    offsets = {first.to_wire().offset, second.to_wire().offset}
    del first, second
    again = [place(slabs, mib(20)).to_wire().offset for _ in range(10)]
    assert set(again) <= offsets
    assert workers.registered == 1


def test_what_was_answered_is_kept_until_it_is_returned(slabs: ClientSlabs) -> None:
    """Unless it certainly was not run, was returned before, or its worker has ended."""
    worker, ended = (Releases(token.pack(bytes(16), 0, generation)) for generation in (1, 2))
    kept = place(slabs, mib(1))
    number = kept.id
    slabs.answered(kept, worker, executed=True)
    for executed, returned in ((False, False), (True, True)):
        other = place(slabs, mib(1))
        if returned:
            slabs.returned([other.id])
        slabs.answered(other, worker, executed=executed)
    other = place(slabs, mib(1))
    ended.over = True
    slabs.answered(other, ended, executed=True)
    assert set(slabs._kept) == {number}
    slabs.returned([number, 12345])
    assert not slabs._kept
    slabs.answered(place(slabs, mib(1)), worker, executed=True)
    slabs.over(ended)
    assert slabs._kept
    slabs.over(worker)
    assert not slabs._kept


@pytest.mark.parametrize("why", ["returned", "ended", "late"])
def test_what_nobody_will_answer_is_kept_while_a_worker_may_read_it(
    slabs: ClientSlabs, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it was returned, its worker has ended, or its call's deadline has passed long ago."""
    worker = Releases(token.pack(bytes(16), 0, 1))
    placed = place(slabs, mib(1))
    number = placed.id
    slabs.abandoned(placed, worker, time.monotonic_ns())
    del placed
    later_ns = time.monotonic_ns() + 10**12
    if why == "late":
        monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    if why != "late":
        place(slabs, mib(1))
        assert number in slabs._uses
    if why == "returned":
        slabs.returned([number])
    worker.over = why == "ended"
    place(slabs, mib(1))
    assert number not in slabs._uses


def test_what_was_sent_twice_is_returned_twice(slabs: ClientSlabs) -> None:
    """A connection was lost: the worker may run it, and run it again."""
    worker, placed = Releases(token.pack(bytes(16), 0, 1)), place(slabs, mib(1))
    placed.uses = 2
    slabs.answered(placed, worker, executed=True)
    seen = []
    for _ in range(2):
        slabs.returned([placed.id])
        seen.append((placed.returned, len(slabs._kept)))
    assert seen == [(False, 1), (True, 0)]


@pytest.mark.parametrize("executed", [True, False])
@pytest.mark.parametrize("why", ["returned", "ended", "late"])
def test_what_may_never_have_arrived_is_kept_for_a_time(
    slabs: ClientSlabs, why: str, monkeypatch: pytest.MonkeyPatch, *, executed: bool
) -> None:
    """An attempt that was lost on its way returns nothing; one that was not may start until the call's deadline."""
    worker = Releases(token.pack(bytes(16), 0, 1))
    placed = place(slabs, mib(1))
    number = placed.id
    slabs.sent_again(placed, time.monotonic_ns())
    slabs.returned([number])
    slabs.answered(placed, worker, executed=executed)
    del placed
    later_ns = time.monotonic_ns() + 10**12
    place(slabs, mib(1))
    assert number in slabs._uses
    if why == "late":
        monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    if why == "returned":
        slabs.returned([number])
    worker.over = why == "ended"
    place(slabs, mib(1))
    assert number not in slabs._uses


def test_there_is_a_bound(slabs: ClientSlabs) -> None:
    """Above it small arrays travel otherwise; large ones are refused for now, or for good."""
    held = [place(slabs, mib(60)) for _ in range(3)]
    assert slabs.place(mib(10)) is None
    with pytest.raises(errors.Overloaded):
        slabs.place(mib(20))
    with pytest.raises(errors.InvalidRequest):
        slabs.place(mib(300))
    held.pop()
    assert slabs.place(mib(10)) is not None
    assert slabs.nbytes <= 3 * SLAB_BYTES


def test_empty_slabs_make_room(workers: FakeWorkers, slabs: ClientSlabs) -> None:
    """An empty slab goes where a slab of another size is needed."""
    held = [place(slabs, mib(40)) for _ in range(3)]
    held.clear()
    assert slabs.place(mib(150)) is not None
    assert slabs.nbytes <= 3 * SLAB_BYTES
    assert workers.forgotten


def test_slabs_that_stay_empty_are_forgotten(workers: FakeWorkers, slabs: ClientSlabs) -> None:
    """The last used one stays."""
    held = [place(slabs, mib(40)) for _ in range(3)]
    held.clear()
    for _ in range(KEEP_EMPTY):
        place(slabs, mib(1))
    assert workers.forgotten == [2]


def test_a_slab_that_cannot_be_registered_is_none(workers: FakeWorkers, slabs: ClientSlabs) -> None:
    """Small arrays travel otherwise; of large ones the caller hears why."""
    workers.refusal = errors.Overloaded("too many slabs")
    assert slabs.place(mib(1)) is None
    with pytest.raises(errors.Overloaded, match="too many"):
        slabs.place(mib(20))
    assert slabs.nbytes == 0
    workers.refusal = None
    assert slabs.place(mib(1)) is not None


def test_an_array_for_which_there_is_no_memory_was_certainly_not_used(slabs: ClientSlabs) -> None:
    """The call with it was not sent."""
    large = np.ones(MAX_PAYLOAD_BYTES + 1, np.uint8)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(errors.OutOfMemory, match="Too many open files") as failed:
            slabs.place(large)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not failed.value.maybe_executed
    assert slabs.place(large) is not None


def test_a_closed_client_that_is_kept_keeps_no_memory(workers: FakeWorkers, slabs: ClientSlabs) -> None:
    """Neither what was free, nor what an array lay in that goes later."""
    before = open_descriptors()
    array, placed = slabs.array((20,), "uint8"), place(slabs, mib(1))
    slabs.answered(placed, Releases(token.pack(bytes(16), 0, 1)), executed=True)
    del placed
    workers.slabs.clear()
    slabs.close()
    array[:] = 1
    del array
    left = open_descriptors().items() - before.items()
    assert not [path for _, path in left if CLIENT_SLAB in path], left
