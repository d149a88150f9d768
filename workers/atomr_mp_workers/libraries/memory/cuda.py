"""The memory library on the CUDA backend, with CuPy."""

from __future__ import annotations

from typing import Any, Final

import cupy
import numpy as np
from cupy.cuda import runtime

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries import memory
from atomr_mp_workers.libraries.memory.base import MemoryLibrary, number_for
from atomr_mp_workers.memory.arrays import DeviceArray


class CudaMemoryLibrary(MemoryLibrary):
    """Elements are in this GPU's memory; the source of a copy may be in another GPU's that this one can reach."""

    def copy(self, request: memory.Copy) -> None:
        """Copy elements, whatever their strides: without a kernel if they lie alike and without gaps."""
        source, target = request.source, request.target
        assert isinstance(source, DeviceArray)
        assert isinstance(target, DeviceArray)
        if not source.size:
            return
        if any(source.layout.is_contiguous(order) and target.layout.is_contiguous(order) for order in "CF"):
            stream = cupy.cuda.get_current_stream().ptr
            runtime.memcpyAsync(target.address, source.address, source.nbytes, runtime.memcpyDefault, stream)
        else:
            target.array[...] = _reached(source) if source.block.foreign else source.array

    def _fill(self, array: Any, value: Any) -> None:
        assert isinstance(array, DeviceArray)
        number = number_for(array.dtype, value)
        if array.dtype in dtypes.FLOAT8:  # kept as bytes
            number = np.array(number, dtypes.to_numpy(array.dtype)).view(np.uint8).item()
        array.array.fill(number)


def _reached(source: DeviceArray) -> Any:
    """Return the array of foreign memory as this GPU's own.

    CuPy would ask whether its GPU is a peer; it is known to be reachable since it was mapped.
    """
    array = source.array
    device = cupy.cuda.Device().id
    held = cupy.cuda.UnownedMemory(array.data.ptr, source.nbytes, array, device)
    return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(held, 0), array.strides)


Implementation: Final = CudaMemoryLibrary
