"""Memory on a GPU that other processes map: this process's mailbox, and those of the other members.

The physical memory lives as long as a process has it mapped or has its descriptor open; so a peer's death takes nothing
from whoever reads its mailbox or writes there.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final, Self

from cuda.bindings import driver

from atomr_mp_workers.device.cuda_resident import FILE_DESCRIPTOR, READ_WRITE, allocation, checked, map_memory


class Mailbox:
    """A mailbox, mapped here; see `make` and `open`.

    Args:
        handle: The physical memory; owned from here on.
        nbytes: Its size.

    Raises:
        CUDADriverError: It cannot be mapped: there is no peer access to its GPU, for one.
    """

    def __init__(self, handle: Any, nbytes: int) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(driver.cuMemRelease, handle)
            (address,) = checked(driver.cuMemAddressReserve(nbytes, 0, 0, 0))
            undo.callback(driver.cuMemAddressFree, address, nbytes)
            map_memory(address, nbytes, handle, READ_WRITE)
            undo.pop_all()
        self.address: Final = int(address)
        self.nbytes: Final = nbytes
        self._handle: Final = handle
        self._is_open = True

    @classmethod
    def make(cls, nbytes: int) -> Self:
        """Return a new mailbox on this process's GPU; its content is undefined.

        Raises:
            CUDADriverError: There is no such memory.
        """
        what, rounded = allocation(nbytes)
        (handle,) = checked(driver.cuMemCreate(rounded, what, 0))
        return cls(handle, rounded)

    @classmethod
    def open(cls, nbytes: int, descriptor: int) -> Self:
        """Return another process's mailbox; the descriptor is owned from here on.

        Raises:
            CUDADriverError: It is no such memory, or this GPU cannot reach it.
        """
        try:
            _, rounded = allocation(nbytes)
            (handle,) = checked(driver.cuMemImportFromShareableHandle(descriptor, FILE_DESCRIPTOR))
        finally:
            os.close(descriptor)
        return cls(handle, rounded)

    def export(self) -> int:
        """Return a descriptor that opens it in another process; it is the caller's."""
        (descriptor,) = checked(driver.cuMemExportToShareableHandle(self._handle, FILE_DESCRIPTOR, 0))
        os.set_inheritable(int(descriptor), False)
        return int(descriptor)

    def close(self) -> None:
        """Unmap it: no kernel of this process uses it. Errors of a lost context have no consequence. Once is enough."""
        if self._is_open:
            self._is_open = False
            driver.cuMemUnmap(self.address, self.nbytes)
            driver.cuMemAddressFree(self.address, self.nbytes)
            driver.cuMemRelease(self._handle)
