"""Turns the refs in requests into arrays: checks that the session may use the memory, and that the ref stays within it.

Only with the loop's turn.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from atomr_mp import errors
from atomr_mp.protocol import token
from atomr_mp.protocol.refs import ClientArray, SlabNumber, WireRef
from atomr_mp_workers.device.base import SlabMemory
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from atomr_mp_workers.memory.blocks import Holder, Use

K = TypeVar("K", SlabNumber, tuple[int, int, SlabNumber])

ASK_NS: Final = 100_000_000
"""Least time between two questions for memory that could not be mapped."""


class RefOpener:
    """Opens the refs of all sessions' requests.

    Args:
        current: This incarnation's token.
    """

    def __init__(self, current: bytes) -> None:
        self._token: Final = current
        _, self._index, self._generation = token.unpack(current)
        self.listen: Callable[[], None] = lambda: None
        """Receives the supervisor's messages: a client may use a slab as soon as the supervisor has sent it."""
        self.ask_again: Callable[[int], None] = lambda _number: None
        """Asks the supervisor to introduce a session's memory once more."""
        self._asked_ns = 0
        """When that was asked last; CLOCK_MONOTONIC."""
        self._over: dict[int, int] = {}
        """The last incarnation of each other device that has ended, as far as known."""

    def resolver(self, holder: Holder) -> Callable[[WireRef | ClientArray], object]:
        """Return a function that turns a session's refs into arrays, and records them as `Holder.resolved`."""
        return functools.partial(self._open, holder)

    def incarnation_over(self, device: int, generation: int) -> None:
        """Record that another device's process has ended, and its memory with it."""
        self._over[device] = generation

    def _open(self, holder: Holder, ref: WireRef | ClientArray) -> object:
        if not isinstance(ref, WireRef):
            return self._open_client(holder, ref)
        array = self.array(holder, ref)
        holder.resolved.append(array)
        holder.opened_bytes += array.nbytes
        return array

    def array(self, holder: Holder, ref: WireRef) -> DeviceArray:
        """Return the array of a session's ref.

        Raises:
            GpuRefReleased: The session has no lease of it.
            GpuRefStale: Its incarnation has ended.
            GpuRefOutOfExtent: It leaves its memory.
            RequestError: It is of another pool, or of a device that has not lent it.
        """
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
        return DeviceArray(block, ref.layout)

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
        memory = self._heard(holder, holder.foreign_slabs, (device, generation, ref.slab))
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
        """Return an array over memory of a client; the client hears of it when the last reference to it goes."""
        memory = self._heard(holder, holder.client_slabs, ref.slab)
        if memory is None:
            raise errors.InvalidRequest(f"slab {ref.slab} of the client is not registered")
        layout = ref.layout
        if layout.span[1] > memory.nbytes:
            raise _out_of_extent(ref, 0, memory.nbytes)
        holder.opened_bytes += layout.nbytes
        part = memory.bytes(Use(holder.returned, ref.id), layout.offset, layout.nbytes)
        return memory.array(part, layout._replace(offset=0), writable=False)

    def _heard(self, holder: Holder, slabs: dict[K, SlabMemory], key: K) -> SlabMemory | None:
        """Return a mapped slab, after reading the supervisor's messages if it is not mapped yet.

        Raises:
            Overloaded: It could not be mapped. The supervisor is asked for it once more.
        """
        if key not in slabs:
            self.listen()
        memory = slabs.get(key)
        if memory is None and key in holder.unmapped:
            now_ns = time.monotonic_ns()
            if now_ns - self._asked_ns >= ASK_NS:
                self._asked_ns = now_ns
                self.ask_again(holder.number)
            raise errors.Overloaded(
                f"device {self._index}'s worker could not map memory that the request uses, and tries again: "
                f"{holder.unmapped[key]}",
                retry_after_s=ASK_NS / 1e9,
            )
        return memory


def _out_of_extent(ref: WireRef | ClientArray, offset: int, nbytes: int) -> errors.GpuRefOutOfExtent:
    layout = ref.layout
    low, high = layout.span
    return errors.GpuRefOutOfExtent(
        f"an array of {layout.dtype}, shape {layout.shape} and strides {layout.strides} at byte {layout.offset} "
        f"reaches from byte {low} to {high}, out of its memory from {offset} to {offset + nbytes}"
    )
