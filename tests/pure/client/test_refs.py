"""Refs and views without a pool: what is refused before anything is sent, what refs say, how long views live."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.client.memory.leases import Lease, LeaseKind, Releases
from atomr_mp.client.memory.memory import ClientMemory
from atomr_mp.client.memory.refs import GpuRef, SharedRef, read_shared, wire_of, write_shared
from atomr_mp.client.memory.worker_slabs import Mappings
from atomr_mp.interop.host import HostMapping
from atomr_mp.interop.sealed import make_sealed
from atomr_mp.protocol import dtypes, token
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState
from atomr_mp.protocol.refs import WireRef

EPOCH = bytes.fromhex("ab12cd34") + bytes(12)


class FakeClient:
    """The parts of a client that the tested code uses."""

    def __init__(self, epoch: bytes = EPOCH) -> None:
        self.epoch = epoch
        self.lost: errors.PoolLost | None = None
        self.devices = [DeviceInfo(n, f"host:{n}", DeviceState.READY, 2, "", True, 1, 0, "") for n in range(2)]
        self.given_back: list[Releases] = []
        sends = Mock(side_effect=AssertionError("nothing may be sent"))
        self.memory = ClientMemory(
            epoch,
            self.devices,
            lost=lambda: self.lost,
            read_session=sends,
            ask=sends,
            tell=sends,
            submit=sends,
            give_back=self.given_back.append,
        )

    def ref(self, shape: tuple[int, ...] = (3, 4), device: int = 0) -> GpuRef:
        """Return a ref of the current generation."""
        lease = Lease(Releases(token.pack(self.epoch, device, 2)), 0x5EED)
        return GpuRef(self.memory, lease, 4, Layout.contiguous("float32", shape, 512))


@pytest.fixture
def client() -> Iterator[FakeClient]:
    """A client."""
    fake = FakeClient()
    yield fake
    fake.memory.close()


def test_a_ref_says_everything_about_itself(client: FakeClient) -> None:
    """Pool, device, generation, state, memory, array."""
    ref = client.ref()
    assert repr(ref) == (
        "<GpuRef float32[3, 4], device 0 generation 2 (current), buffer 0x5eed, slab 4 + 512, pool ab12cd34>"
    )
    assert "float32[4, 2], strides (4, 16), device 0 generation 2 (current), buffer 0x5eed, slab 4 + 528" in repr(
        ref[1:].T
    )
    ref.free()
    assert "(released)" in repr(ref)


def test_a_ref_is_refused_before_anything_is_sent(client: FakeClient) -> None:
    """The error names the first reason."""
    ref = client.ref()
    for _ in range(2):
        assert ref.to_wire() == wire_of(ref.lease, 4, ref.layout)
    ref.lease.releases.over = True
    with pytest.raises(errors.GpuRefStale) as stale:
        ref.to_wire()
    assert (stale.value.device, stale.value.generation, stale.value.current) == (0, 2, 0)
    client.devices[0] = msgspec.structs.replace(client.devices[0], generation=3)
    with pytest.raises(errors.GpuRefStale) as stale:
        ref[1:].to_wire()
    assert stale.value.current == 3
    ref.T.free()
    with pytest.raises(errors.GpuRefReleased):
        ref.to_wire()
    client.lost = errors.PoolLost("gone")
    with pytest.raises(errors.PoolLost):
        ref.to_wire()


def test_a_call_takes_refs_of_its_own_client_only(client: FakeClient) -> None:
    """Another pool's do not fit; another client's have no lease here."""
    with pytest.raises(errors.PoolMismatch):
        client.memory.attach([FakeClient(bytes(16)).ref()], None)
    with pytest.raises(errors.GpuRefReleased):
        client.memory.attach([FakeClient().ref()], None)


def test_a_call_goes_where_its_refs_are(client: FakeClient) -> None:
    """If they are in one place."""
    refs = [client.ref(device=1), client.ref(device=1)]
    holds = [ref.lease.hold for ref in refs]
    assert client.memory.attach(refs, None) == ([*refs, *holds], (), 2, 1, ())
    with pytest.raises(errors.GpuRefWrongDevice):
        client.memory.attach([client.ref(device=1), client.ref()], None)


def test_freeing_is_told_once(client: FakeClient) -> None:
    """However many views there are."""
    ref = client.ref()
    releases = ref.lease.releases
    with ref[0]:
        pass
    ref.free()
    del ref
    gc.collect()
    assert client.given_back == [releases]
    assert list(releases.pending) == [(LeaseKind.LEASE, 0x5EED)]


def test_a_lease_lasts_as_long_as_the_last_view(client: FakeClient) -> None:
    """Refs of refs share it."""
    ref = client.ref()
    releases = ref.lease.releases
    part = ref[1].reshape(2, 2)
    del ref
    assert not releases.pending
    del part
    assert list(releases.pending) == [(LeaseKind.LEASE, 0x5EED)]


def test_a_ref_behaves_like_no_value(client: FakeClient) -> None:
    """It is neither pickled nor copied, nor true."""
    ref = client.ref()
    for use in (pickle.dumps, copy.copy, copy.deepcopy, bool):
        with pytest.raises(TypeError):
            use(ref)
    assert ref.T.T.layout == ref.layout
    assert (ref.ndim, ref.size, ref.nbytes, len(ref)) == (2, 12, 48, 3)
    with pytest.raises(TypeError):
        len(ref[0, 0])
    with pytest.raises(IndexError):
        ref[3]
    with pytest.raises(ValueError, match="reshaped"):
        ref.reshape(5, -1)
    assert ref.reshape((4, 3)).shape == ref.reshape(4, 3).shape == ref.transpose((1, 0)).shape == (4, 3)


# --- sharing -------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=100))
def test_any_bytes_are_a_share_or_an_error(shared: bytes) -> None:
    """Nothing else is raised."""
    with pytest.raises((errors.ProtocolError, errors.PoolMismatch)):
        read_shared(shared, EPOCH)


def test_a_share_names_where_it_is(client: FakeClient) -> None:
    """Device and generation, in its own pool."""
    ref = client.ref(device=1)
    shared = write_shared(SharedRef(ref.to_wire(), bytes(16)))
    message, device, generation = read_shared(shared, EPOCH)
    assert (message.ref, device, generation) == (ref.to_wire(), 1, 2)
    with pytest.raises(errors.PoolMismatch):
        read_shared(shared, bytes(16))
    with pytest.raises(errors.ProtocolError):
        read_shared(shared[:-1], EPOCH)


# --- views ---------------------------------------------------------------------------------------------------------


def mapped(nbytes: int = 4096) -> tuple[HostMapping, list[str]]:
    """Return a mapped slab, and where its end is noted."""
    noted: list[str] = []
    descriptor = make_sealed("test", nbytes)
    try:
        return HostMapping(descriptor, nbytes, lambda: noted.append("unmapped")), noted
    finally:
        os.close(descriptor)


class Kept:
    """Something that a view keeps."""


def test_a_view_keeps_its_memory_to_the_last_slice() -> None:
    """The mapping, and whatever it was given, live as long as any array over it."""
    mapping, noted = mapped()
    kept = Kept()
    gone = weakref.ref(kept)
    view: Any = mapping.array(Layout.contiguous("bfloat16", (4, 5), 64), writable=True, keep=kept)
    part = view[1:, ::2].T
    assert view.dtype == dtypes.to_numpy("bfloat16")
    del mapping, kept, view
    part[...] = 2
    assert gone() is not None
    assert part.sum() == 18
    del part
    assert gone() is None
    assert noted == ["unmapped"]


def test_views_of_one_slab_see_the_same_bytes() -> None:
    """Whatever their layout, backwards too; a read-only one stays so."""
    mapping, _ = mapped()
    layout = Layout.contiguous("int32", (3, 4), 128)
    mapping.array(layout, writable=True)[...] = np.arange(12).reshape(3, 4)
    backwards = mapping.array(layout.indexed((slice(None, None, -1), slice(1, None, 2))), writable=False)
    np.testing.assert_array_equal(backwards, np.arange(12).reshape(3, 4)[::-1, 1::2])
    assert not backwards.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        backwards.flags.writeable = True
    assert mapping.array(Layout.contiguous("int32", (0, 4), 4096), writable=True).shape == (0, 4)


@pytest.mark.parametrize("layout", [Layout("int8", (2,), (1,), 4095), Layout("int8", (2,), (-1,), 0)])
def test_a_view_beyond_the_slab_is_refused(layout: Layout) -> None:
    """A view may pass either end of the slab."""
    with pytest.raises(errors.GpuRefOutOfExtent):
        mapped()[0].array(layout, writable=False)


def test_what_is_not_sealed_or_of_another_size_is_not_mapped() -> None:
    """An access beyond its end would end this process."""
    sealed, unsealed = make_sealed("test", 4096), os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4096)
    pipe = os.pipe()
    for descriptor, nbytes in ((sealed, 8192), (unsealed, 4096), (sealed, 0), (pipe[0], 4096)):
        with pytest.raises(errors.ProtocolError):
            HostMapping(descriptor, nbytes)
    for descriptor in (sealed, unsealed, *pipe):
        os.close(descriptor)


def test_a_mapping_is_closed_under_no_view() -> None:
    """Once closed, nothing can be seen in it."""
    mapping, noted = mapped()
    view = mapping.array(Layout.contiguous("int8", (3,)), writable=True)
    assert not mapping.close()
    del view
    assert mapping.close()
    assert mapping.close()
    assert noted == ["unmapped"]
    with pytest.raises(errors.GpuRefReleased):
        mapping.array(Layout.contiguous("int8", (3,)), writable=True)


class FakeSlabs:
    """Hands out slabs of 1 MiB."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.releases = Releases(token.pack(EPOCH, 0, 1))

    def open(self, _releases: Releases, slab: int, unmapped: Callable[[], object]) -> HostMapping:
        """Return a new slab."""
        self.opened.append(slab)
        descriptor = make_sealed("test", 2**20)
        try:
            return HostMapping(descriptor, 2**20, unmapped)
        finally:
            os.close(descriptor)

    def closed(self) -> list[int]:
        """Return the slabs that the worker would hear of."""
        return [due[1] for due in self.releases.pending if isinstance(due, tuple) and due[0] is LeaseKind.SLAB]


def test_a_slab_is_asked_for_once() -> None:
    """It stays mapped while there is a lease or a view; after that, as long as there is room."""
    fake = FakeSlabs()
    mappings = Mappings(fake.open, idle_bytes=2 * 2**20)
    leases = {n: Lease(fake.releases, n) for n in range(4)}
    for _ in range(2):
        for n, lease in leases.items():
            mappings.get(lease, n)
    assert fake.opened == [0, 1, 2, 3]
    view: Any = mappings.get(leases[0], 0).array(Layout.contiguous("int8", (3,)), writable=False)
    del lease
    leases.clear()
    mappings.get(Lease(fake.releases, 9), 9)
    assert fake.closed() == [1]
    del view
    mappings.get(Lease(fake.releases, 10), 10)
    assert fake.closed() == [1, 2, 3]
    mappings.get(Lease(fake.releases, 1), 1)
    assert (fake.opened.count(1), fake.closed().count(1)) == (2, 1)


def test_a_slab_is_closed_as_often_as_it_was_opened() -> None:
    """The worker counts: also when two threads open it at once, or it is opened before its end was reported."""
    fake = FakeSlabs()
    together = threading.Barrier(2)

    def open_together(releases: Releases, slab: int, unmapped: Callable[[], object]) -> HostMapping:
        opened = fake.open(releases, slab, unmapped)
        together.wait()
        return opened

    mappings = Mappings(open_together)
    leases = [Lease(fake.releases, 1), Lease(fake.releases, 2)]
    threads = [threading.Thread(target=mappings.get, args=(lease, 7)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threads.clear()
    for lease in leases:
        lease.release()
    mappings.close_unused(fake.releases)
    assert (fake.opened, fake.closed()) == ([7, 7], [7, 7])
    mappings = Mappings(fake.open)
    mappings.get(Lease(fake.releases, 3), 7)
    mappings.close_unused(fake.releases)
    assert (fake.opened, fake.closed()) == ([7, 7, 7], [7, 7, 7])


def test_an_idle_slab_is_one_that_is_mapped_and_has_room() -> None:
    """Of the same incarnation; neither a lease nor an array is in it."""
    fake = FakeSlabs()
    mappings = Mappings(fake.open)
    assert not mappings.has_idle(fake.releases, 1)
    lease = Lease(fake.releases, 1)
    mapping = mappings.get(lease, 1)
    assert not mappings.has_idle(fake.releases, 1)
    view: Any = mapping.array(Layout.contiguous("int8", (3,)), writable=False)
    lease.release()
    assert not mappings.has_idle(fake.releases, 1)
    del view
    assert mappings.has_idle(fake.releases, mapping.nbytes)
    assert not mappings.has_idle(fake.releases, mapping.nbytes + 1)
    assert not mappings.has_idle(Releases(fake.releases.token), 1)


def test_large_results_lie_in_slabs_where_results_come_and_go(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a slab takes long, and pays where another result finds it empty; who keeps them gets new memory."""
    client.devices[0] = msgspec.structs.replace(client.devices[0], uuid="GPU-1")
    asked, idle, ref = list[str](), list[bool](), client.ref((3000, 4000))

    def answer(request: object, _device: int) -> Any:
        asked.append(type(request).__name__)
        return np.zeros(1)

    monkeypatch.setattr(client.memory, "request", answer)
    monkeypatch.setattr(client.memory, "_take", lambda request, _borrow, device: answer(request, device))
    monkeypatch.setattr(client.memory._staged, "get", lambda *_: None)
    monkeypatch.setattr(client.memory._mappings, "has_idle", lambda *_: bool(idle))
    kept = [ref.numpy() for _ in range(5)]
    assert asked == ["Borrow"] * 5
    del kept[:1]
    kept.append(ref.numpy())
    assert asked[5:] == ["Borrow"]
    part = kept.pop()[1:2]  # keeps it too
    kept.append(ref.numpy())
    assert asked[6:] == ["Borrow"]
    del part
    kept.append(ref.numpy())
    assert asked[7:] == ["Get"]
    kept.append(ref.numpy())
    assert asked[8:] == ["Borrow"]
    idle.append(True)
    kept.append(ref.numpy())
    assert asked[9:] == ["Get"]
    ref.numpy(out=kept[0])
    assert asked[10:] == ["Borrow"]


def test_views_outlive_their_generation_and_their_client() -> None:
    """They are the last to hold a slab; without them it goes at once."""
    fake = FakeSlabs()
    mappings = Mappings(fake.open)
    first, second = Lease(fake.releases, 1), Lease(fake.releases, 2)
    view: Any = mappings.get(first, 1).array(Layout.contiguous("int8", (3,)), writable=False)
    mappings.get(second, 2)
    fake.releases.over = True
    mappings.forget(fake.releases)
    assert fake.closed() == [2]
    assert len(mappings.close()) == 1
    assert view.sum() == 0
    del view
    assert fake.closed() == [2, 1]
    with pytest.raises(errors.PoolLost):
        mappings.get(second, 2)
    assert fake.closed() == [2, 1, 2]


def test_a_result_with_a_ref_needs_its_lease(client: FakeClient) -> None:
    """The lease must be of the incarnation that has answered."""
    releases = Releases(token.pack(EPOCH, 0, 2))
    resolve = client.memory.resolver(releases.leases([5]))
    wire = WireRef(releases.token, 5, 1, "int8", (3,), (1,), 0)
    ref = resolve(wire)
    assert isinstance(ref, GpuRef)
    assert ref.shape == (3,)
    for changed in ({"buffer": 6}, {"token": bytes(22)}):
        with pytest.raises(errors.ProtocolError):
            resolve(msgspec.structs.replace(wire, **changed))
    with pytest.raises(errors.InvalidRequest):
        resolve(msgspec.structs.replace(wire, strides=[]))
