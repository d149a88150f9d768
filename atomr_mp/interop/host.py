"""EDGE: slabs of the host backend, which are memfds, mapped and seen as NumPy arrays.

A mapping is never pulled away from under an array: it ends when nothing refers to it any more, or when it is closed
while no array lies in it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from atomr_mp import errors
from atomr_mp.interop.mapped import Mapped
from atomr_mp.interop.sealed import check_sealed
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout


class HostMapping(Mapped):
    """A slab of host memory in this process, readable and writable.

    Args:
        descriptor: Its memfd; stays the caller's, and is not needed once this returns.
        nbytes: Its stated size.
        unmapped: See `Mapped`.

    Raises:
        ProtocolError: It is no memfd of this size, or not sealed in its size.
        OutOfMemory: It cannot be mapped.
    """

    def __init__(self, descriptor: int, nbytes: int, unmapped: Callable[[], object] | None = None) -> None:
        check_sealed(descriptor, nbytes)
        try:
            mapped = mmap.mmap(descriptor, nbytes)
        except OSError as error:
            raise errors.OutOfMemory(f"a slab of {nbytes} bytes cannot be mapped: {error}") from error
        self.address: Final[int] = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
        self.nbytes: Final = nbytes
        super().__init__(mapped.close, unmapped)

    def array(self, layout: Layout, *, writable: bool, keep: object = None) -> np.ndarray[Any, Any]:
        """Return an array in the slab, zero-copy.

        Args:
            layout: How it lies in the slab.
            writable: Whether it may be written; if not, its flag cannot be set either.
            keep: Kept alive by the array and whatever is made from it without a copy.

        Raises:
            GpuRefOutOfExtent: It does not lie in the slab.
            GpuRefReleased: The mapping was closed.
        """
        low, high = layout.span_within(self.nbytes)
        with self._lock:
            self._check_mapped()
            part = MappedPart(self, self.address + low, high - low, keep, read_only=not writable)
            self._parts.add(part)
        content: Any = np.asarray(part)
        return np.ndarray(layout.shape, dtypes.to_numpy(layout.dtype), content, layout.offset - low, layout.strides)


class MappedPart:
    """A part of mapped memory. NumPy keeps it for as long as any array over it lives: it is their base's base.

    Args:
        mapping: Unmaps the memory once nothing refers to it.
        address: Where the part begins.
        nbytes: Its size.
        keep: Kept alive too.
        read_only: Whether arrays over it can never be made writable.
    """

    def __init__(self, mapping: object, address: int, nbytes: int, keep: object = None, *, read_only: bool) -> None:
        self._mapping = mapping
        self.keep: Final = keep
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (address, read_only),
        }


def kept_by(array: np.ndarray[Any, Any]) -> object:
    """Return the object kept by an array from `HostMapping.array`, or by the array that it is a view of; else None."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base.keep if isinstance(base, MappedPart) else None
