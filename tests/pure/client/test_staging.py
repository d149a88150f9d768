"""Transfers in parts, beside a device that does what it is asked late: whatever the arrays, and wherever they fail."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.client.memory import staging
from atomr_mp.client.memory.argument_slabs import ClientSlabs
from atomr_mp.client.memory.leases import Lease, Releases
from atomr_mp.client.memory.refs import GpuRef
from atomr_mp.client.memory.staging import PIECES, StagedTransfers
from atomr_mp.interop import copying
from atomr_mp.interop.copying import CopyThreads
from atomr_mp.protocol import dtypes, token
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.libraries.base import LibraryRequest

Array = np.ndarray[Any, Any]

PART_BYTES: Final = 128
SENT_BYTES: Final = 40
BORROW: Final = 5


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfer small parts, each by several threads."""
    monkeypatch.setattr(staging, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(staging, "BUSY_NS", 2**62)
    monkeypatch.setattr(staging, "SHARED_BYTES", SENT_BYTES)
    monkeypatch.setattr(copying, "PART_BYTES", 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(4)))


THREADS: Final = CopyThreads()


@pytest.fixture(scope="module", autouse=True)
def _end() -> Iterator[None]:
    """End the threads."""
    yield
    THREADS.close()


class LateDevice:
    """A device that does its requests in their order, some of them no sooner than somebody waits.

    Args:
        lags: How many requests it leaves undone, after each request in turn.
        fails_at: The number of the request that fails.
        interrupts_at: The number of the request at which Ctrl-C comes.
    """

    def __init__(self, lags: list[int], fails_at: int = -1, interrupts_at: int = -1) -> None:
        self.memory: Any = np.zeros(2**16, np.uint8)
        self.todo: list[tuple[int, LibraryRequest]] = []
        self.asked = 0
        self.done = 0
        self.most_under_way = 0
        self._given: dict[int, Array] = {}
        self._lags = itertools.cycle(lags)
        self._fails_at = fails_at
        self._interrupts_at = interrupts_at
        self.slabs: Final = ClientSlabs(lambda _nbytes, _descriptor: 1, lambda _number: None)
        self.transfers: Final = StagedTransfers(self.slabs, THREADS, self._submit)

    def ref(self, layout: Layout) -> GpuRef:
        """Return a ref to its memory."""
        return GpuRef(Mock(), Lease(Releases(token.pack(bytes(16), 3, 1)), 9), 2, layout)

    def array(self, layout: Layout) -> Array:
        """Return the elements of a ref."""
        dtype = dtypes.to_numpy(layout.dtype)
        return np.ndarray(layout.shape, dtype, self.memory, layout.offset, layout.strides)

    def work(self, leave: int = 0) -> None:
        """Do what was asked, but for some of the last requests."""
        while len(self.todo) > leave:
            number, request = self.todo.pop(0)
            self.done += 1
            if number == self._fails_at:
                continue
            if isinstance(request, memory.PutPart):
                self.array(request.target.layout)[...] = request.content
            else:
                assert isinstance(request, memory.GetPart)
                assert request.borrow == BORROW
                found = self.array(request.part.layout)
                if request.into is None:
                    assert found.nbytes < SENT_BYTES
                    self._given[number] = found.copy()
                else:
                    assert found.nbytes >= SENT_BYTES
                    request.into[...] = found

    def _submit(self, request: LibraryRequest, device: int) -> Any:
        assert device == 3
        request.check()
        number = self.asked
        self.asked += 1
        self.todo.append((number, request))
        self.most_under_way = max(self.most_under_way, len(self.todo))
        if number == self._interrupts_at:
            signal.raise_signal(signal.SIGINT)
        self.work(next(self._lags))

        def result() -> Any:
            if self.done <= number:
                self.work(self.asked - number - 1)
            if number == self._fails_at:
                raise errors.WorkerLost("as asked", device=device, generation=1, was_running=True)
            return self._given.get(number)

        return Mock(result=result)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Return layouts of up to a dozen parts, without gaps and with some."""
    dtype = draw(st.sampled_from(["uint8", "float32", "complex128", "bfloat16"]))
    lengths = st.integers(1, 1500 // dtypes.item_bytes(dtype)).map(lambda n: [n])
    shape = draw(st.one_of(lengths, st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    layout = Layout.contiguous(dtype, shape, 512)
    if draw(st.booleans()):
        layout = layout.transposed(draw(st.permutations(range(len(shape)))))
    indices: list[Any] = [(), slice(None, None, -1), slice(None, None, 2)]
    return layout.indexed(draw(st.sampled_from(indices)))


LAGS: Final = st.lists(st.integers(0, 5), min_size=1, max_size=5)


def content_of(layout: Layout) -> Array:
    """Return an array like a ref, with all elements different as far as possible."""
    return (np.arange(layout.size) % 251).reshape(layout.shape).astype(dtypes.to_numpy(layout.dtype))


@given(layout=layouts(), lags=LAGS, backwards=st.booleans())
def test_what_is_put_is_what_the_device_has(layout: Layout, lags: list[int], *, backwards: bool) -> None:
    """Whenever it takes the parts; with no more pieces under way than a transfer has."""
    device, array = LateDevice(lags), content_of(layout)
    if backwards:
        array = array[::-1]
    device.transfers.put(array, device.ref(layout))
    np.testing.assert_array_equal(device.array(layout), array)
    assert not device.todo
    assert device.most_under_way <= PIECES


@given(layout=layouts(), lags=LAGS, backwards=st.booleans())
def test_what_the_device_has_is_what_one_gets(layout: Layout, lags: list[int], *, backwards: bool) -> None:
    """Whenever it gives the parts; an array of any strides takes them."""
    device, out = LateDevice(lags), np.zeros(layout.shape, dtypes.to_numpy(layout.dtype))
    device.array(layout)[...] = content_of(layout)
    device.transfers.get(device.ref(layout), BORROW, out[::-1] if backwards else out)
    np.testing.assert_array_equal(out[::-1] if backwards else out, content_of(layout))
    assert device.most_under_way <= PIECES


@given(lags=LAGS, at=st.integers(0, 9), is_put=st.booleans())
def test_a_part_that_fails_fails_the_transfer(lags: list[int], at: int, *, is_put: bool) -> None:
    """What is still under way then disturbs no later transfer, and no thread is left."""
    layout = Layout.contiguous("uint8", (10 * PART_BYTES,))
    device = LateDevice(lags, fails_at=at)
    with pytest.raises(errors.WorkerLost):
        transfer(device, layout, is_put=is_put)
    transfer(device, layout._replace(offset=2**13), is_put=is_put)
    device.work()
    if is_put:
        np.testing.assert_array_equal(device.array(layout._replace(offset=2**13)), content_of(layout))


def test_beside_a_thread_that_computes_parts_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be as large as the array."""
    monkeypatch.setattr(staging, "BUSY_NS", 0)
    for is_put in (True, False):
        device = LateDevice([2])
        transfer(device, Layout.contiguous("uint8", (10 * PART_BYTES,)), is_put=is_put)
        assert device.asked == 1


@pytest.mark.usefixtures("interrupting")
@given(lags=LAGS, at=st.integers(0, 9), is_put=st.booleans())
def test_an_interrupt_ends_a_transfer_between_its_parts(lags: list[int], at: int, *, is_put: bool) -> None:
    """Soon, though it has parts left to do; no thread writes the array then."""
    layout = Layout.contiguous("uint8", (20 * PART_BYTES,))
    device = LateDevice(lags, interrupts_at=at)
    with pytest.raises(KeyboardInterrupt):
        transfer(device, layout, is_put=is_put)
    assert device.asked <= max(at + 2, PIECES)
    transfer(device, layout, is_put=is_put)


def transfer(device: LateDevice, layout: Layout, *, is_put: bool) -> None:
    """Put an array, or get one and check it."""
    if is_put:
        device.transfers.put(content_of(layout), device.ref(layout))
        return
    device.array(layout)[...] = content_of(layout)
    out = np.zeros(layout.shape, dtypes.to_numpy(layout.dtype))
    device.transfers.get(device.ref(layout), BORROW, out)
    np.testing.assert_array_equal(out, content_of(layout))
