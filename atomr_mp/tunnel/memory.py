"""A client's memory whose slabs lie on another machine. Needs NumPy.

Arguments are placed in slabs as those of any client, and their bytes copied to the relay's slab of the same number
before the call is sent. Results are read into memory of this process, so nothing of a worker's is ever mapped here.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from atomr_mp import errors
from atomr_mp.client.memory.argument_slabs import Placement
from atomr_mp.client.memory.leases import Lease, NotOpenError, Releases
from atomr_mp.client.memory.memory import ASK_TIMEOUT_S, ClientMemory
from atomr_mp.client.memory.refs import GpuRef
from atomr_mp.client.memory.worker_slabs import SlabMapping
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.messages import session
from atomr_mp.protocol.tunnel.ranges import SlabKey
from atomr_mp.tunnel.memory_channel import MemoryCopier
from atomr_mp.tunnel.uploads import ArgumentUploads

_running_loop: Final = asyncio._get_running_loop  # noqa: SLF001 - exported; the public one raises where there is none

ATTEMPTS: Final = 8
"""How often a part is tried where each relay ends before it is done."""

PART_BYTES: Final = 4 * 2**20
"""Bytes of a part: few relays end before it is done."""

NO_VIEWS: Final = (
    "a remote client cannot map the pool's memory: another machine has it. numpy() copies the elements, and requests "
    "take the ref as it is"
)
NO_HOST_ARRAYS: Final = "a remote client shares no memory with the pool: give calls a NumPy array, which is copied"


class CarriedMemory(ClientMemory):
    """The memory that a remote client's refs and calls share. Thread-safe.

    Args:
        copier: Copies ranges.
        uploads: Copies them in the background.
        base: The arguments of a local client's memory.
    """

    def __init__(self, copier: MemoryCopier, uploads: ArgumentUploads, *base: Any, **options: Any) -> None:
        super().__init__(*base, **options)
        self._copier = copier
        self._uploads = uploads

    def place(self, array: Any) -> Placement | None:
        """Copy an argument to the pool's machine; None if it has to travel otherwise, and can.

        Blocks, but in an event loop: there the copy is begun only.
        """
        placed = super().place(array)
        if placed is not None:
            wire = placed.to_wire()
            copied = SlabKey(wire.slab), wire.offset, _bytes_of(placed.array)
            if _running_loop() is None:
                self._copier.write(*copied)
            else:
                self._uploads.add(functools.partial(self._copier.write, *copied))
        return placed

    def host_array(self, _shape: tuple[int, ...], _dtype: str) -> NoReturn:
        """Refuse: no memory is shared with another machine."""
        raise errors.Unsupported(NO_HOST_ARRAYS)

    def view(self, _ref: GpuRef, *, write: bool) -> NoReturn:  # noqa: ARG002 - the face of all memories
        """Refuse: another machine's memory cannot be mapped."""
        raise errors.Unsupported(NO_VIEWS)

    def _goes_in_parts(self, _nbytes: int) -> bool:
        """Return False: a connection carries the bytes, and more requests would only cost time."""
        return False

    def close(self) -> Sequence[SlabMapping]:
        """Close it; return no slab, since the relay unmaps those of the workers."""
        super().close()
        self._copier.close()
        return ()

    def _copy_from(self, mapping: CarriedSlab, ref: GpuRef, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        if (
            out is not None
            and out.flags.c_contiguous
            and ref.layout == Layout.contiguous(ref.dtype, ref.shape, ref.layout.offset)
        ):
            mapping.read(ref.layout.offset, _bytes_of(out))
            return out
        copied = mapping.array(ref.layout, writable=True)
        if out is None:
            return copied if copied.flags.c_contiguous else copied.copy()
        self._threads.copy(out, copied)
        return out

    def _copy_to(self, mapping: CarriedSlab, ref: GpuRef, array: np.ndarray[Any, Any]) -> None:
        whole = np.asarray(array, dtypes.to_numpy(ref.dtype), order="C")
        mapping.write(ref.layout.offset, _bytes_of(whole))

    def _mapping(self, lease: Lease, slab: int, *, opens: bool = True) -> SlabMapping:
        if not opens:  # its content is read by this thread, whether the slab is known or not
            raise NotOpenError
        return self._mappings.get(lease, slab)

    def _open(self, releases: Releases, slab: int, unmapped: Callable[[], object]) -> SlabMapping:
        key = SlabKey(slab, releases.device, releases.generation)
        ask = self._ask

        def close(_: object) -> None:
            self._copier.close_slab(key)
            unmapped()

        def open_slab() -> int:
            opened, _ = ask(
                lambda number: session.OpenSlab(number, key.device, key.generation, slab), ASK_TIMEOUT_S, undo=close
            )
            assert isinstance(opened, session.SlabOpened)
            return opened.nbytes

        return CarriedSlab(self._copier, key, open_slab, unmapped)


class CarriedSlab:
    """A worker's slab, which the relay has mapped; after its end, the next one.

    Args:
        copier: Copies ranges.
        key: The slab.
        opens: Has the relay map it, and returns its size; blocks.
        unmapped: Called once it is closed, on whichever thread; it must neither wait nor take a lock.
    """

    in_use = False
    """No array lies in it: each is a copy."""

    unmapped: Callable[[], object] | None = None

    def __init__(
        self, copier: MemoryCopier, key: SlabKey, opens: Callable[[], int], unmapped: Callable[[], object]
    ) -> None:
        self._copier = copier
        self._key = key
        self._opens = opens
        self._opening = threading.Lock()
        """Held while it is opened again, so that each opening is closed."""
        self._openings = 0
        """How often it was opened again."""
        self.nbytes: Final = opens()
        self.unmapped = unmapped

    def close(self) -> bool:
        """Close it; return True. May be called twice."""
        unmapped, self.unmapped = self.unmapped, None
        if unmapped is not None:
            self._copier.close_slab(self._key)
            unmapped()
        return True

    __del__ = close

    def array(self, layout: Layout, *, writable: bool, keep: object = None) -> np.ndarray[Any, Any]:  # noqa: ARG002 - the face of all slabs
        """Return a copy of the elements with a layout. Blocks.

        Raises:
            GpuRefOutOfExtent: They do not lie in the slab.
        """
        low, high = layout.span_within(self.nbytes)
        content: Any = np.empty(high - low, np.uint8)
        self.read(low, memoryview(content))
        return np.ndarray(layout.shape, dtypes.to_numpy(layout.dtype), content, layout.offset - low, layout.strides)

    def read(self, offset: int, room: memoryview) -> None:
        """Copy bytes out of the slab. Blocks."""
        self._copy(self._copier.read, offset, room)

    def write(self, offset: int, content: memoryview) -> None:
        """Copy bytes into the slab. Blocks."""
        self._copy(self._copier.write, offset, content)

    def _copy(self, copy: Callable[[SlabKey, int, memoryview], None], offset: int, content: memoryview) -> None:
        """Copy a range, in parts that are not begun again once they are done."""
        for at in range(0, len(content), PART_BYTES):
            part = content[at : at + PART_BYTES]
            self._copied(lambda at=at, part=part: copy(self._key, offset + at, part))  # type: ignore[misc]

    def _copied(self, copy: Callable[[], None]) -> None:
        """Copy a part; a relay that has come meanwhile has to map the slab first."""
        for attempt in range(ATTEMPTS):
            openings = self._openings
            try:
                copy()
                return
            except errors.GpuRefReleased:
                if attempt == ATTEMPTS - 1:
                    raise
            with self._opening:
                if self._openings == openings:  # else another thread has done it
                    self._opens()
                    self._openings += 1


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the bytes of an array without gaps."""
    content: Any = array.reshape(-1).view(np.uint8)
    return memoryview(content)
