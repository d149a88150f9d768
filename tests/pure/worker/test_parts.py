"""Large copies in parts, in the worker: what they may touch, and what is refused. The device is the host's memory."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.interop.host import MappedPart
from atomr_mp.protocol import token
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.refs import WireRef
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.device.streams import StreamAllocator
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.libraries.memory.host import HostMemoryLibrary
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Use
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.requests.request import Later

CURRENT: Final = token.pack(bytes(16), 0, 3)
BORROW: Final = 8


class Apart(HostDevice):
    """A device whose memory clients cannot reach."""

    asynchronous = True


class Worker:
    """A worker's memory library, and two sessions; each has a buffer of twenty numbers."""

    def __init__(self, device: HostDevice) -> None:
        self.store: Final = Store(device, CURRENT, 2**30, InProgress())
        self.holder, other = self.store.admit(1), self.store.admit(2)
        streams = StreamAllocator("single", lambda name, _priority: device.make_stream(name, inline_bytes=0))
        context = LibraryContext("host", device, self.store, streams, lambda: self.holder, lambda: None)
        self.library: Final = HostMemoryLibrary(context, device.make_stream("memory", inline_bytes=2**20))
        self.mine, self.theirs = self.made(self.holder), self.made(other)

    def made(self, holder: Any) -> DeviceArray:
        """Return a new array with a lease."""
        array = self.store.buffers.keep(holder, np.arange(20.0))
        self.store.lease(holder, array)
        return array

    def get(self, part: WireRef, borrow: int = BORROW) -> list[float]:
        """Return the elements of a part."""
        sent = memory.GetPart(borrow, part)
        sent.check()
        answer = self.library.get_part(sent)
        assert isinstance(answer, Later)
        content: Any = bytearray(part.layout.nbytes)
        room: Any = np.asarray(MappedPart(None, _address(content), len(content), Use(deque(), 1), read_only=False))
        into = room.view(part.dtype).reshape(part.shape)
        request = memory.GetPart(borrow, part, into)
        request.check()
        assert self.library.get_part(request) is None
        assert into.tolist() == answer.read().tolist()
        return into.tolist()  # type: ignore[no-any-return]


@pytest.fixture
def worker() -> Worker:
    """A worker whose memory clients cannot reach."""
    return Worker(Apart())


def test_a_part_of_what_is_read_is_written_where_the_client_says(worker: Worker) -> None:
    """Once the turn of the read has come, until it ends; whatever the strides."""
    worker.store.begin_read(worker.holder, [worker.mine], BORROW)
    part = worker.mine[4:10:2].to_wire()
    with pytest.raises(errors.InvalidRequest, match="borrow 8"):
        worker.get(part)
    worker.store.passing_reads.grant(worker.holder, BORROW, 1)
    assert worker.get(part) == [4, 6, 8]
    assert worker.get(worker.mine[::-1].to_wire()) == list(range(19, -1, -1))
    assert not worker.holder.resolved, "the next request would borrow it"
    worker.store.close_view(worker.holder, BORROW)
    with pytest.raises(errors.InvalidRequest, match="borrow 8"):
        worker.get(part)


def test_nothing_else_is_read_by_a_borrow(worker: Worker) -> None:
    """Neither other buffers, nor what lies around the buffer, nor an earlier generation's memory."""
    second = worker.made(worker.holder)
    worker.store.begin_read(worker.holder, [worker.mine], BORROW)
    worker.store.passing_reads.grant(worker.holder, BORROW, 1)
    mine = worker.mine.to_wire()
    for part, error in [
        (second.to_wire(), errors.InvalidRequest),
        (worker.theirs.to_wire(), errors.GpuRefReleased),
        (_changed(mine, offset=mine.offset + 8), errors.GpuRefOutOfExtent),
        (_changed(mine, strides=(16,)), errors.GpuRefOutOfExtent),
        (_changed(mine, token=token.pack(bytes(16), 0, 2)), errors.GpuRefStale),
        (_changed(mine, token=token.pack(bytes(16), 1, 1)), errors.GpuRefWrongDevice),
        (_changed(mine, strides=(3,)), errors.InvalidRequest),
    ]:
        with pytest.raises(error):
            worker.get(part)
    with pytest.raises(errors.InvalidRequest, match="borrow 9"):
        worker.get(mine, borrow=9)


def test_parts_must_fit() -> None:
    """Both ways: shape and element type."""
    worker = Worker(Apart())
    for given in (np.zeros(19), np.zeros(20, "float32"), np.zeros((20, 1)), [0.0] * 20):
        with pytest.raises(errors.InvalidRequest, match="content"):
            memory.PutPart(given, worker.mine).check()
        with pytest.raises(errors.InvalidRequest, match="into"):
            memory.GetPart(BORROW, worker.mine.to_wire(), given).check()


def test_a_part_is_written_into_its_place(worker: Worker) -> None:
    """And nowhere else."""
    target = worker.mine[3:6]
    request = memory.PutPart(np.array([7.0, 8.0, 9.0]), target)
    request.check()
    assert request.written() == [target]
    target.writable = True  # as borrowing makes it
    worker.library.put_part(request)
    assert worker.mine.array.tolist() == [0, 1, 2, 7, 8, 9, *range(6, 20)]


@pytest.mark.parametrize(("device", "why"), [(HostDevice, "copies by itself"), (Apart, "was sent")])
def test_only_memory_of_the_client_is_written(device: type[HostDevice], why: str) -> None:
    """Not the message in which a small array came; and no memory where the client can reach the device's."""
    worker = Worker(device())
    worker.store.begin_read(worker.holder, [worker.mine], BORROW)
    worker.store.passing_reads.grant(worker.holder, BORROW, 1)
    for request in (
        memory.Get(worker.mine, np.zeros(20)),
        memory.GetPart(BORROW, worker.mine.to_wire(), np.zeros(20)),
    ):
        request.check()
        with pytest.raises(errors.InvalidRequest, match=why):
            getattr(worker.library, request.name)(request)


def _address(content: bytearray) -> int:
    address: int = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
    return address


def _changed(wire: WireRef, **changes: Any) -> WireRef:
    fields = {name: getattr(wire, name) for name in wire.__struct_fields__}
    return WireRef(**fields | changes)
