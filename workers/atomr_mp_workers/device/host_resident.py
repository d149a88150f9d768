"""Resident memory of the host backend: a memfd that the kernel has sealed against writing."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import Any, Final, Self

import numpy as np

from atomr_mp import errors
from atomr_mp.interop.sealed import SEALS
from atomr_mp.protocol.process_tags import RESIDENT
from atomr_mp_workers.device.base import Resident
from atomr_mp_workers.device.host_memory import HostMemory

SEALED: Final = SEALS | fcntl.F_SEAL_WRITE
"""Seals that sealed memory always has."""


class HostResident(HostMemory, Resident):
    """A mapped memfd, either to be filled or sealed; see `make` and `open`."""

    _writing = -1
    """The memfd, until it is sealed."""

    @classmethod
    def make(cls, nbytes: int, name: str = RESIDENT) -> Self:
        """Return new memory, to be filled; zero at first.

        Args:
            nbytes: Its size.
            name: Its name for other processes.

        Raises:
            OutOfMemory: There is no such memory.
        """
        descriptor = -1
        try:
            descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            made = cls(descriptor, nbytes, writable=True)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise errors.OutOfMemory(
                f"no resident memory of {nbytes} bytes: {error}", requested_bytes=nbytes
            ) from error
        made._writing = descriptor
        return made

    @classmethod
    def open(cls, nbytes: int, descriptor: int) -> Self:
        """Return sealed memory; the descriptor is owned from here on.

        Raises:
            InvalidRequest: It is not memory of this size, or it can be written.
        """
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALED != SEALED or os.fstat(descriptor).st_size != nbytes:
                raise errors.InvalidRequest(
                    f"resident memory must be a memfd of exactly {nbytes} bytes, sealed in its size and content"
                )
            return cls(descriptor, nbytes, writable=False)
        except (OSError, ValueError) as error:
            raise errors.InvalidRequest(f"resident memory of {nbytes} bytes cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)

    def __del__(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)

    def seal(self) -> int:
        """Map the memory again at the same address for reading, and seal it; return a read-only descriptor."""
        # The kernel seals only memory that no mapping can write, now or by mprotect: hence the read-only descriptor.
        reading = os.open(f"/proc/self/fd/{self._writing}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _map_over(self.address, self.nbytes, reading)
            self._read_only = True
            fcntl.fcntl(self._writing, fcntl.F_ADD_SEALS, SEALED | fcntl.F_SEAL_SEAL)
        except OSError as error:
            os.close(reading)
            raise errors.SetupFailed(
                f"resident memory cannot be sealed: {error.strerror}; does a process that `fill` has started still "
                "have it mapped?"
            ) from error
        os.close(self._writing)
        self._writing = -1
        return reading

    def content(self, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Return the bytes of a part, as they are."""
        return self.bytes(None, offset, nbytes)


def _map_over(address: int, nbytes: int, descriptor: int) -> None:
    """Replace a mapping by a read-only one at the same address, at once, so that nothing else can be mapped there."""
    mapped = _mmap(address, nbytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0)
    if mapped != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_MAP_FIXED: Final = 0x10
"""Linux's, on all its architectures but some that no GPU is built for; Python has no name for it."""

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_size_t
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
