"""Resident memory of the CUDA backend: physical memory of the GPU by itself, named by a file descriptor.

It lives as long as a process has the descriptor open or has it mapped; the supervisor keeps the descriptor, without
CUDA. Each mapping has protection bits of its own, as on the host.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any, Final, Self

import cupy
from cuda.bindings import driver
from cupy.cuda import driver as cupy_driver

from atomr_mp_workers.device.base import Resident
from atomr_mp_workers.device.cuda_memory import CudaMemory

ORDINAL: Final = 0
"""The GPU of this process is the first that it sees."""

FILE_DESCRIPTOR: Final = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ: Final = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE: Final = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


class CudaResident(CudaMemory, Resident):
    """Mapped memory, either to be filled or sealed; see `make` and `open`.

    Args:
        handle: The physical memory; owned from here on.
        nbytes: Its size.
        access: The access of its mapping.

    Raises:
        CUDADriverError: It cannot be mapped.
    """

    def __init__(self, handle: Any, nbytes: int, access: Any) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(driver.cuMemRelease, handle)
            (address,) = checked(driver.cuMemAddressReserve(nbytes, 0, 0, 0))
            undo.callback(driver.cuMemAddressFree, address, nbytes)
            map_memory(address, nbytes, handle, access)
            undo.pop_all()
        super().__init__(int(address), nbytes)
        self._handle = handle
        weakref.finalize(self, _unmap, address, nbytes, handle).atexit = False

    @classmethod
    def make(cls, nbytes: int) -> Self:
        """Return new memory, to be filled.

        Raises:
            CUDADriverError: There is no such memory.
        """
        what, rounded = allocation(nbytes)
        (handle,) = checked(driver.cuMemCreate(rounded, what, 0))
        return cls(handle, rounded, READ_WRITE)

    @classmethod
    def open(cls, nbytes: int, descriptor: int) -> Self:
        """Return sealed memory; the descriptor is owned from here on.

        Raises:
            CUDADriverError: It is not memory of this size.
        """
        try:
            _, rounded = allocation(nbytes)
            (handle,) = checked(driver.cuMemImportFromShareableHandle(descriptor, FILE_DESCRIPTOR))
        finally:
            os.close(descriptor)
        return cls(handle, rounded, READ)

    def seal(self) -> int:
        """Wait for the GPU's work, map the memory again in place for reading, and return its descriptor."""
        cupy.cuda.runtime.deviceSynchronize()
        address = driver.CUdeviceptr(self.address)
        checked(driver.cuMemUnmap(address, self.nbytes))
        map_memory(address, self.nbytes, self._handle, READ)
        (descriptor,) = checked(driver.cuMemExportToShareableHandle(self._handle, FILE_DESCRIPTOR, 0))
        os.set_inheritable(int(descriptor), False)
        return int(descriptor)

    def content(self, offset: int, nbytes: int) -> Any:
        """Return a copy of the bytes of a part."""
        return self.bytes(None, offset, nbytes).get()


def allocation(nbytes: int) -> tuple[Any, int]:
    """Return the properties of memory that a descriptor names, and the size rounded up to its granularity."""
    what = driver.CUmemAllocationProp()
    what.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    what.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    what.location.id = ORDINAL
    what.requestedHandleTypes = FILE_DESCRIPTOR
    minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    (granularity,) = checked(driver.cuMemGetAllocationGranularity(what, minimum))
    return what, -(-nbytes // granularity) * granularity


def map_memory(address: Any, nbytes: int, handle: Any, access: Any) -> None:
    """Map physical memory at an address, for this process's GPU.

    Raises:
        CUDADriverError: It cannot be mapped, or this GPU cannot reach it.
    """
    checked(driver.cuMemMap(address, nbytes, 0, handle, 0))
    how = driver.CUmemAccessDesc()
    how.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    how.location.id = ORDINAL
    how.flags = access
    try:
        checked(driver.cuMemSetAccess(address, nbytes, [how], 1))
    except BaseException:
        driver.cuMemUnmap(address, nbytes)
        raise


def _unmap(address: Any, nbytes: int, handle: Any) -> None:
    """Unmap memory; errors of a lost context have no consequence."""
    driver.cuCtxSynchronize()  # a kernel that uses it may not have begun
    driver.cuMemUnmap(address, nbytes)
    driver.cuMemAddressFree(address, nbytes)
    driver.cuMemRelease(handle)


def checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results of a driver's call, without its status.

    Raises:
        CUDADriverError: The call has failed.
    """
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise cupy_driver.CUDADriverError(int(status))
    return tuple(values)
