"""The memory library on every backend: makes, shares and lends buffers."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any

import numpy as np

from atomr_mp import errors
from atomr_mp.interop.host import kept_by
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.libraries.base import scalar
from atomr_mp.protocol.values import SHARED_BYTES
from atomr_mp_workers import timeline
from atomr_mp_workers.libraries.base import Library
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Use
from atomr_mp_workers.requests.request import Later, current_request


class MemoryLibrary(Library):
    """Requests for memory. The backend does the work on elements."""

    def empty(self, request: memory.Empty) -> DeviceArray:
        """Make a buffer."""
        return self.context.store.buffers.allocate(self.context.holder(), request.dtype, request.shape)

    def full(self, request: memory.Full) -> DeviceArray:
        """Make a buffer and fill it."""
        array = self.context.store.buffers.allocate(self.context.holder(), request.dtype, request.shape)
        self._fill(array, request.value)
        return array

    def put(self, request: memory.Put) -> DeviceArray:
        """Make a buffer with a copy of a host array."""
        return self.context.store.buffers.keep(self.context.holder(), request.content)

    def put_part(self, request: memory.PutPart) -> None:
        """Copy a host array into a buffer."""
        assert isinstance(request.target, DeviceArray)
        timeline.copy(
            self.context.device, request.content, request.target.array, "copy host to device", current_request
        )

    def get(self, request: memory.Get) -> DeviceArray | Later | None:
        """Copy an array to host memory: into a slab, which the client opens, or for the message if it is small."""
        source = request.array
        assert isinstance(source, DeviceArray)
        if request.into is not None:
            self._write(source, request.into)
            return None
        if not self.context.device.asynchronous and source.nbytes < SHARED_BYTES:
            return Later(source.array.copy)  # the answer is this copy, which no later request writes
        return self._copied(source)

    def get_part(self, request: memory.GetPart) -> DeviceArray | Later | None:
        """Copy elements that a client reads under a borrow: they are there, and stay as they are."""
        store, holder = self.context.store, self.context.holder()
        part = store.refs.array(holder, request.part)
        if not store.passing_reads.covers(holder, request.borrow, part.block):
            raise errors.InvalidRequest(f"this client reads no such memory by a borrow {request.borrow}")
        if request.into is None:
            return self._copied(part)
        self._write(part, request.into)
        return None

    def _copied(self, source: DeviceArray) -> DeviceArray | Later:
        """Copy an array into memory that the client opens, or for the message if it is small."""
        device, buffers = self.context.device, self.context.store.buffers
        copy = buffers.allocate(self.context.holder(), source.dtype, source.shape, device.host)
        timeline.copy(device, source.array, copy.array, "copy device to host", current_request)
        if source.nbytes < SHARED_BYTES:
            return Later(lambda: copy.array)
        copy.value = True
        return copy

    def _write(self, source: DeviceArray, into: Any) -> None:
        """Copy an array into memory of the client."""
        if not self.context.device.asynchronous:
            raise errors.InvalidRequest("on this backend a client copies by itself: it can reach the memory")
        if not isinstance(kept_by(into), Use):
            raise errors.InvalidRequest("into does not lie in memory of the client: it was sent, as small arrays are")
        timeline.copy(self.context.device, source.array, into, "copy device to client", current_request)

    def fill(self, request: memory.Fill) -> None:
        """Write one value into every element."""
        self._fill(request.array, request.value)

    @abstractmethod
    def copy(self, request: memory.Copy) -> None:
        """Copy elements."""

    def borrow(self, request: memory.Borrow) -> Later | None:
        """Answer that the uses before a view or a read have ended; it was noted on arrival, see `views`."""
        if not request.passing:
            return None
        store, holder = self.context.store, self.context.holder()
        return Later(lambda: store.passing_reads.grant(holder, request.borrow, time.monotonic_ns()))

    def accept(self, request: memory.Accept) -> Later:
        """Accept a buffer's content, even if undefined, once the device has done the earlier work."""
        assert isinstance(request.array, DeviceArray)
        borrows = request.array.block.borrows

        def take() -> None:
            borrows.content = None

        return Later(take)

    def share(self, request: memory.Share) -> None:
        """Keep a buffer for another session."""
        assert isinstance(request.array, DeviceArray)
        if request.array.block.foreign:
            raise errors.GpuRefWrongDevice("a buffer is shared by its own device", device=request.array.block.device)
        self.context.store.shares.share(request.array, request.claim, request.for_s)

    def claim(self, request: memory.Claim) -> DeviceArray:
        """Hand out a shared buffer."""
        return self.context.store.shares.claim(request.buffer, request.claim)

    def statistics(self, _request: memory.Statistics) -> dict[str, int]:
        """Return figures."""
        return self.context.store.statistics()

    @abstractmethod
    def _fill(self, array: Any, value: Any) -> None:
        """Write one value into every element."""


def number_for(dtype: str, value: Scalar) -> complex:
    """Return the number that elements of a type are filled with for a value.

    Raises:
        InvalidRequest: The type cannot hold the number: it is complex, or not a value of the integer type.
    """
    number = scalar(value)
    if type(number) is complex and not dtype.startswith("complex"):
        raise errors.InvalidRequest(f"an array of {dtype} cannot hold {number}")
    return _integer(dtype, number) if dtype.startswith(("int", "uint")) else number


def _integer(dtype: str, number: complex) -> int:
    limits = np.iinfo(dtype)
    if not limits.min <= number.real <= limits.max or number != int(number.real):  # the first excludes NaN, infinities
        raise errors.InvalidRequest(f"an array of {dtype} cannot hold {number}")
    return int(number.real)
