"""Copies large arrays to and from a GPU's memory in parts, by way of memory that its worker has pinned. Needs NumPy.

A part is copied between the array and a piece of shared memory by several threads here, while the device copies others
between such pieces and its own memory. So a transfer takes hardly longer than the slower of the two, and needs no more
shared memory than a few parts, whatever the array's size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np

from atomr_mp.client import interrupts
from atomr_mp.client.memory.argument_slabs import ClientSlabs
from atomr_mp.client.memory.refs import GpuRef
from atomr_mp.interop.copying import LARGE_BYTES, CopyThreads, parts_of
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.libraries.base import LibraryRequest

STAGED_BYTES: Final = LARGE_BYTES
"""Larger arrays are copied in parts: the further requests of smaller ones cost more than they save."""

PART_BYTES: Final = 16 * 2**20
"""Most bytes of a part."""

PIECES: Final = 3
"""Most pieces of shared memory, of one part each, that a transfer takes: the device has one, this process another, and
the third is on its way."""


class PartReply(Protocol):
    """The reply to a request."""

    def result(self) -> Any:
        """Wait for it; raise the request's error."""


Submit = Callable[[LibraryRequest, int], PartReply]
"""Sends a request of the memory library to a device; blocks until there is room for it."""


class StagedTransfers:
    """A client's transfers in parts. Thread-safe.

    Interrupts come through while it waits for the device, and between parts; no thread copies then.

    Args:
        slabs: The client's shared memory.
        submit: Sends requests.
    """

    def __init__(self, slabs: ClientSlabs, submit: Submit) -> None:
        self._slabs: Final = slabs
        self._submit: Final = submit

    @interrupts.defer_interrupts
    def put(self, array: np.ndarray[Any, Any], ref: GpuRef) -> None:
        """Copy an array into a new ref of its shape, which only the caller has.

        If it fails, some parts may still be on their way: the ref must not be used.
        """
        pieces, under_way = self._pieces(ref), deque[PartReply]()
        with CopyThreads() as threads:
            for number, at in enumerate(parts_of(ref.shape, ref.layout.item_bytes, PART_BYTES)):
                interrupts.wait(_nothing)
                if number >= PIECES:
                    under_way.popleft().result()  # its piece is free
                part = ref[at]
                piece = _shaped(pieces[number % PIECES], part)
                threads.copy(piece, array[at])
                under_way.append(self._submit(memory.PutPart(piece, part), ref.device))
            for answer in under_way:
                answer.result()

    @interrupts.defer_interrupts
    def get(self, ref: GpuRef, borrow: int, out: np.ndarray[Any, Any]) -> None:
        """Copy a ref into an array of its shape and type.

        If it fails, the array may have some of the parts.

        Args:
            ref: The ref.
            borrow: A passing borrow of its memory, which has been granted.
            out: The array.
        """
        pieces = self._pieces(ref)
        under_way: deque[tuple[PartReply, np.ndarray[Any, Any], np.ndarray[Any, Any]]] = deque()
        with CopyThreads() as threads:

            def take() -> None:
                answer, target, piece = under_way.popleft()
                answer.result()
                interrupts.wait(_nothing)
                threads.copy(target, piece)

            for number, at in enumerate(parts_of(ref.shape, ref.layout.item_bytes, PART_BYTES)):
                if number >= PIECES:
                    take()
                part = ref[at]
                piece = _shaped(pieces[number % PIECES], part)
                answer = self._submit(memory.GetPart(borrow, part.to_wire(), piece), ref.device)
                under_way.append((answer, out[at], piece))
            while under_way:
                take()

    def _pieces(self, ref: GpuRef) -> list[np.ndarray[Any, Any]]:
        """Return new pieces of shared memory.

        After a failure the device may still use earlier ones, which come back when its worker says so.
        """
        return [self._slabs.array((min(PART_BYTES, ref.nbytes),), "uint8") for _ in range(PIECES)]


def _shaped(piece: np.ndarray[Any, Any], part: GpuRef) -> np.ndarray[Any, Any]:
    """Return the beginning of a piece as an array like a part."""
    array: np.ndarray[Any, Any] = piece[: part.nbytes].view(part.numpy_dtype).reshape(part.shape)
    return array


def _nothing() -> None:
    """Stand for a wait that is over: interrupts come through."""
