"""Copies large arrays to and from a GPU's memory in parts, by way of memory that its worker has pinned. Needs NumPy.

A part is copied between the array and a piece of shared memory by several threads here, while the device copies others
between such pieces and its own memory. So a transfer takes hardly longer than the slower of the two, and needs no more
shared memory than a few parts, whatever the array's size.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import numpy as np

from atomr_mp.client import interrupts
from atomr_mp.client.memory.argument_slabs import ClientSlabs
from atomr_mp.client.memory.refs import GpuRef
from atomr_mp.interop.copying import Copying, CopyThreads, Index, parts_of
from atomr_mp.protocol.allocation import SLAB_BYTES
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.values import SHARED_BYTES

STAGED_BYTES: Final = SLAB_BYTES // 2
"""Larger arrays go in parts; whole, each would need a slab of its own, whose memory is seldom used again."""

PART_BYTES: Final = 8 * 2**20
"""Most bytes of a part."""

PIECES: Final = 4
"""Pieces of shared memory, of one part each: threads copy one, and have the next; the device has the others."""

BUSY_NS: Final = 1_000_000
"""If it takes so long to get the interpreter's lock back, another thread computes in Python."""

BUSY_PART_BYTES: Final = 256 * 2**20
"""Most bytes of a part beside such a thread: each part needs the lock a dozen times, and waits 5 ms for it."""


class PartReply(Protocol):
    """The reply to a request."""

    def result(self) -> Any:
        """Wait for it; raise the request's error."""


Submit = Callable[[LibraryRequest, int], PartReply]
"""Sends a request of the memory library to a device; blocks until there is room for it."""


class StagedTransfers:
    """A client's transfers in parts. Thread-safe.

    Interrupts come through while it waits for the device, and between parts. Then, and when a part fails, no thread
    goes on copying.

    Args:
        slabs: The client's shared memory.
        threads: The client's threads for copies.
        submit: Sends requests.
    """

    def __init__(self, slabs: ClientSlabs, threads: CopyThreads, submit: Submit) -> None:
        self._slabs: Final = slabs
        self._threads: Final = threads
        self._submit: Final = submit

    @interrupts.defer_interrupts
    def put(self, array: np.ndarray[Any, Any], ref: GpuRef) -> None:
        """Copy an array into a new ref of its shape, which only the caller has.

        If it fails, some parts may still be on their way: the ref must not be used.
        """
        begun, under_way = deque[tuple[Copying, memory.PutPart]](), deque[PartReply]()

        def send() -> None:
            copying, request = begun[0]
            copying.wait()
            begun.popleft()
            under_way.append(self._submit(request, ref.device))

        pieces = _Pieces(self._slabs, ref)
        try:
            for number, at in enumerate(pieces.parts()):
                interrupts.wait(_nothing)
                if number >= PIECES:
                    under_way.popleft().result()  # its piece is free
                part = ref[at]
                piece = pieces.like(part, number)
                begun.append((self._threads.begin(piece, array[at]), memory.PutPart(piece, part)))
                if number:
                    send()
            while begun:
                send()
        finally:
            for copying, _ in begun:
                copying.stop()
        for reply in under_way:
            reply.result()

    @interrupts.defer_interrupts
    def get(self, ref: GpuRef, borrow: int, out: np.ndarray[Any, Any]) -> None:
        """Copy a ref into an array of its shape and type.

        If it fails, the array may have some of the parts.

        Args:
            ref: The ref.
            borrow: A passing borrow of its memory, which has been granted.
            out: The array.
        """
        begun = deque[Copying]()
        asked: deque[tuple[PartReply, np.ndarray[Any, Any], np.ndarray[Any, Any] | None]] = deque()

        def take() -> None:
            reply, target, piece = asked.popleft()
            given = reply.result()
            begun.append(self._threads.begin(target, given if piece is None else piece))

        pieces = _Pieces(self._slabs, ref)
        try:
            for number, at in enumerate(pieces.parts()):
                interrupts.wait(_nothing)
                if number >= PIECES:
                    begun[0].wait()  # its piece is free
                    begun.popleft()
                part = ref[at]
                piece = pieces.like(part, number) if part.nbytes >= SHARED_BYTES else None  # else it is sent
                request = memory.GetPart(borrow, part.to_wire(), piece)
                asked.append((self._submit(request, ref.device), out[at], piece))
                if number >= PIECES // 2:
                    take()
            while asked:
                take()
            for copying in begun:
                copying.wait()
        finally:
            for copying in begun:
                copying.stop()


class _Pieces:
    """The pieces of shared memory of one transfer.

    They are new: after a failure the device may still use earlier ones, which come back when its worker says so.

    Args:
        slabs: The client's shared memory.
        ref: The ref that is transferred.
    """

    def __init__(self, slabs: ClientSlabs, ref: GpuRef) -> None:
        self._slabs: Final = slabs
        self._ref: Final = ref
        self._part_bytes: Final = BUSY_PART_BYTES if _is_busy() else PART_BYTES
        self._pieces: list[np.ndarray[Any, Any]] = []

    def parts(self) -> Iterator[Index]:
        """Return the indices of the parts."""
        return parts_of(self._ref.shape, self._ref.layout.item_bytes, self._part_bytes)

    def like(self, part: GpuRef, number: int) -> np.ndarray[Any, Any]:
        """Return an array like a part in the piece for the part of this number."""
        while len(self._pieces) <= number % PIECES:
            self._pieces.append(self._slabs.array((min(self._part_bytes, self._ref.nbytes),), "uint8"))
        begin = self._pieces[number % PIECES][: part.nbytes]
        array: np.ndarray[Any, Any] = begin.view(part.numpy_dtype).reshape(part.shape)
        return array


def _is_busy() -> bool:
    """Return whether another thread of this process computes in Python."""
    began_ns = time.monotonic_ns()
    time.sleep(0)  # lets go of the lock
    return time.monotonic_ns() - began_ns >= BUSY_NS


def _nothing() -> None:
    """Stand for a wait that is over: interrupts come through."""
