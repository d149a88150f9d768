"""The memory library on the host backend, with NumPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_mp.protocol.libraries import memory
from atomr_mp_workers.libraries.memory.base import MemoryLibrary, number_for
from atomr_mp_workers.memory.arrays import DeviceArray


class HostMemoryLibrary(MemoryLibrary):
    """Elements are NumPy's."""

    def copy(self, request: memory.Copy) -> None:
        """Copy elements, whatever their strides."""
        assert isinstance(request.source, DeviceArray)
        assert isinstance(request.target, DeviceArray)
        np.copyto(request.target.array, request.source.array)

    def _fill(self, array: Any, value: Any) -> None:
        assert isinstance(array, DeviceArray)
        array.array[...] = number_for(array.dtype, value)


Implementation: Final = HostMemoryLibrary
