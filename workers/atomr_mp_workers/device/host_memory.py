"""Memory of the host backend: memfds, and NumPy's arrays over them."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from atomr_mp import errors
from atomr_mp.interop.host import MappedPart
from atomr_mp.interop.sealed import SEALS, make_sealed
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import MAX_BYTES, Layout
from atomr_mp_workers.device.base import Export, Later, Slab, SlabMemory, at_once


class HostMemory(SlabMemory):
    """A mapped memfd.

    Args:
        descriptor: The memfd; not needed any more once this returns.
        nbytes: Its size.
        writable: Whether this process may write it.
        later: Unmaps it, when nothing refers to this any more. Freeing a MiB takes the kernel about a millisecond.
    """

    def __init__(self, descriptor: int, nbytes: int, *, writable: bool, later: Later = at_once) -> None:
        self.nbytes = nbytes
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED, protection)
        weakref.finalize(self, later, self._map.close).atexit = False
        self.address = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        self._read_only = not writable

    def before_unmap(self, function: Callable[[object, int], object]) -> None:
        """Have a function called once the last reference to this has gone, before the memory is unmapped.

        Args:
            function: Takes the mapping and its address. Must not refer to this.
        """
        # Finalisers are called in the opposite order of their registration, so this one comes before the unmapping.
        weakref.finalize(self, function, self._map, self.address).atexit = False

    def bytes(self, owner: object, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Return a part as an array of bytes; it holds `owner` and the mapping."""
        return np.asarray(MappedPart(self, self.address + offset, nbytes, owner, read_only=self._read_only))

    def array(self, part: np.ndarray[Any, Any], layout: Layout, *, writable: bool) -> np.ndarray[Any, Any]:
        """Return a NumPy array over a part."""
        view: np.ndarray[Any, Any] = np.ndarray(
            layout.shape, dtypes.to_numpy(layout.dtype), part, layout.offset, layout.strides
        )
        if not writable:
            view.setflags(write=False)
        return view


class AddressSpace(HostMemory):
    """All memory of this process, from address 0 on; the owners of its parts keep them."""

    _read_only = False

    def __init__(self) -> None:
        self.nbytes, self.address = MAX_BYTES, 0


class HostSlab(HostMemory, Slab):
    """A memfd of this process.

    Args:
        nbytes: Its size.
        name: Its name.
        later: Frees it, when nothing refers to this any more.
    """

    def __init__(self, nbytes: int, name: str, later: Later = at_once) -> None:
        try:
            self._descriptor = make_sealed(name, nbytes)
            weakref.finalize(self, later, partial(os.close, self._descriptor)).atexit = False
            super().__init__(self._descriptor, nbytes, writable=True, later=later)
        except OSError as error:  # the descriptor, if there is one, is closed with this object
            raise errors.OutOfMemory(f"no slab of {nbytes} bytes: {error}", requested_bytes=nbytes) from error

    def populate(self, nbytes: int) -> None:
        """Have the kernel give the first pages now; needs Linux 5.14."""
        with contextlib.suppress(OSError):
            self._map.madvise(_POPULATE_WRITE, 0, min(nbytes, self.nbytes))

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """Fill a part with a byte."""
        self.bytes(None, offset, nbytes)[:] = value  # no word: a copy in the order of its stream

    def export(self) -> Export:
        """Return the memfd."""
        return Export(self.nbytes, b"", self._descriptor)


def map_sealed(descriptor: int, nbytes: int, *, writable: bool, later: Later = at_once) -> HostMemory:
    """Map memory of another process; the descriptor is closed.

    Args:
        descriptor: The memfd.
        nbytes: Its size.
        writable: Whether this process may write it.
        later: Unmaps it, when nothing refers to it any more.

    Raises:
        InvalidRequest: The descriptor is not such memory.
    """
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS or os.fstat(descriptor).st_size != nbytes:
            raise errors.InvalidRequest(f"a slab must be a memfd of exactly {nbytes} bytes, sealed in its size")
        return HostMemory(descriptor, nbytes, writable=writable, later=later)
    except (OSError, ValueError) as error:
        raise errors.InvalidRequest(f"a slab of {nbytes} bytes cannot be mapped: {error}") from error
    finally:
        os.close(descriptor)


_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE; not in `mmap` yet."""
